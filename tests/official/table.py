"""The table of clients in docs/reference/dialects.md: versions, cases and results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/dialects.md"
_BEGIN, _END = "<!-- clients: begin -->", "<!-- clients: end -->"
_HEAD = ["| client | version | case | result |", "|---|---|---|---|"]
#: Distributions whose versions the table shows, by the first word of the client's name.
_PACKAGES = {
    "openai": "openai", "elevenlabs": "elevenlabs", "cartesia": "cartesia",
    "deepgram-sdk": "deepgram-sdk", "fish-audio-sdk": "fish-audio-sdk",
    "Pipecat": "pipecat-ai", "LiveKit": "livekit-agents",
}  # fmt: skip


class Row(NamedTuple):
    """A row of the table."""

    client: str
    version: str
    case: str
    result: str


def version(client: str) -> str:
    """The installed version of a client; for JavaScript, the locked version."""
    if client.endswith("(JavaScript)"):
        packages = json.loads((ROOT / "tests/official/js/package.json").read_text())
        return str(packages["dependencies"][client.partition(" ")[0]])
    return metadata.version(_PACKAGES[client.partition(" ")[0]])


def read() -> list[Row]:
    """Parse the table in the page."""
    _, _, rest = PAGE.read_text().partition(_BEGIN)
    lines = rest.partition(_END)[0].strip().splitlines()
    assert lines[:2] == _HEAD
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[2:]]


def write(results: Mapping[tuple[str, str], bool]) -> None:
    """Write the table into the page. ``results``: whether each (client, case) passed."""
    lines = list(_HEAD)
    for (client, case), passed in sorted(results.items()):
        result = "speaks" if passed else "fails"
        lines.append(f"| {client} | {version(client)} | {case} | {result} |")
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text(before + "\n".join((_BEGIN, *lines, _END)) + after)
