"""The tables of docs/reference/markup.md: what each family speaks for each form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from talker.families.fish_s2.prompts import RENDERING as FISH_S2
from talker.families.higgs_v2.normalisation import RENDERING as HIGGS_V2
from talker.families.higgs_v3.prompts import RENDERING as HIGGS_V3
from talker.families.qwen3_tts.prompts import RENDERING as QWEN3_TTS
from text.markup.elements import Ignored, Pause, Shape, Substitute, Text
from text.markup.rendering import Rendering
from text.pronunciation.in_band import SOUNDED
from text.registry import FRONT_ENDS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "markup.md"
#: The columns of the tables. The embedded voice has the tags of Higgs v3, but no ids for them, and
#: a front end that speaks phonemes.
FAMILIES = {
    "embedded voice": replace(
        HIGGS_V3.only(()), signs_of=FRONT_ENDS["english-sounds"].signs_of, languages=("en",)
    ),
    "Higgs Audio v3": HIGGS_V3,
    "Higgs Audio v2": HIGGS_V2,
    "Fish Speech S2 Pro": FISH_S2,
    "Qwen3-TTS": QWEN3_TTS,
}
_CODE = re.compile(r"(`+) ?(?P<code>.+?) ?\1")


class Row(NamedTuple):
    """A text, and for each family what it speaks and whether the client is warned."""

    written: str
    spoken: list[tuple[str, bool]]


def outcome(rendering: Rendering, *parts: str) -> tuple[str, bool]:
    """Return what a family speaks for a text in parts, without spaces around it, and whether the
    client is warned. Words by their sounds are between slashes.
    """
    reader = rendering.reader()
    said, warned = "", False
    shape: dict[str, float] = {}
    read = [e for part in parts for e in reader.push(part)] + reader.flush(is_last=True)
    for element in rendering.render(read):
        match element:
            case Text(text=text) | Substitute(text=text):
                said += text
            case Pause(seconds=seconds):
                said += f"({seconds:g} s)"
            case Shape(aspect=aspect, factor=factor) if shape.get(aspect, 1.0) != factor:
                shape[aspect] = factor
                said += f"({aspect} {factor:g})"
            case Ignored():
                warned = True
    return SOUNDED.sub(r"/\g<sounds>/", said).strip(" "), warned


def rows() -> Iterator[Row]:
    """Read the tables of the page."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != len(FAMILIES) + 2 or not cells[1].startswith("`"):
            continue
        spoken: list[tuple[str, bool]] = []
        for cell in cells[2:]:
            spoken.append(spoken[0] if cell == "same" else (_code(cell), "(warning)" in cell))
        yield Row(_code(cells[1]), spoken)


def _code(cell: str) -> str:
    found = _CODE.search(cell)
    assert found is not None, cell
    return found["code"].replace("\\|", "|").replace("⏎", "\n")
