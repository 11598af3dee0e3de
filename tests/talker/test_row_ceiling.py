"""The ceiling of an utterance's rows: wide enough for slow readers, too low for runaways."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.ports import SpeechRequest
from talker.checkpoint import Checkpoint, open_checkpoint
from talker.families.family import Family
from talker.families.fish_s2 import FishS2
from talker.families.higgs_v2 import HiggsV2
from talker.families.higgs_v3 import HiggsV3
from talker.families.qwen3_tts import Qwen3TTS
from talker.request_builder import RequestBuilder
from talker.row_ceiling import SpeechLength
from talker.shape import CheckpointError
from tests.talker import tiny_fish, tiny_v2
from text.registry import FRONT_ENDS
from text.turns import SLOW_CHARS_PER_S, max_speech_chars

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "embedded" / "checkpoint"
#: Families, with the frames per second of their codecs.
FAMILIES = [(HiggsV3(), 25.0), (HiggsV2(), 25.0), (FishS2(), 44_100 / 2048), (Qwen3TTS(), 12.5)]
ROOM = 8192


def readings() -> list[tuple[str, str]]:
    """Texts, and their readings in words."""
    cases = (ROOT / "tests" / "text" / "reading_cases.txt").read_text(encoding="utf-8")
    lines = [line for line in cases.splitlines() if line and not line.startswith("#")]
    pairs = [line.replace("\\n", "\n").split("=> ", 1) for line in lines]
    return [(text.strip(), reading) for text, reading in pairs]


@pytest.fixture(scope="module")
def embedded() -> Checkpoint:
    return open_checkpoint(str(EMBEDDED))


@pytest.fixture(scope="module")
def fish(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(tiny_fish.write_checkpoint(tmp_path_factory.mktemp("fish"))))


@pytest.fixture(scope="module")
def higgs_v2(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(tiny_v2.write_checkpoint(tmp_path_factory.mktemp("v2"))))


@pytest.mark.parametrize(("family", "frames_per_s"), FAMILIES)
def test_texts_read_in_words_at_slow_speed_fit_the_ceiling(
    family: Family, frames_per_s: float
) -> None:
    """Although these models get digits and signs as they are written."""
    cut = [
        text
        for text, reading in readings()
        if len(reading) / SLOW_CHARS_PER_S * frames_per_s
        > family.row_ceiling.rows(SpeechLength(max_speech_chars(text)))
    ]
    assert cut == []


@pytest.mark.parametrize(("family", "frames_per_s"), FAMILIES)
@pytest.mark.parametrize("text", ["Yes.", "Hi!", "Okay, thanks."])
def test_short_text_ends_within_15_seconds(family: Family, frames_per_s: float, text: str) -> None:
    rows = family.row_ceiling.rows(SpeechLength(max_speech_chars(text)))
    assert 5 * frames_per_s < rows < 15 * frames_per_s < family.defaults.max_frames / 4


@given(st.text(), st.text())
def test_longer_text_has_no_lower_ceiling(first: str, second: str) -> None:
    together = max_speech_chars(first + second)
    assert together == max_speech_chars(first) + max_speech_chars(second)
    assert together >= len(first) + len(second)


@pytest.mark.parametrize(
    ("chars", "written"),
    [
        (1, "a"), (3, " "), (3, "\n"), (4, "."), (4, "W"), (8, "7"), (8, "²"), (8, "½"), (3, "好"),
        (3, "ሰ"), (4, "🙂"), (0, ""), (14, "Yes, a"),
    ],
)  # fmt: skip
def test_spoken_length_at_most(chars: int, written: str) -> None:
    assert max_speech_chars(written) == chars


@pytest.mark.parametrize(
    ("kind", "text", "tags"),
    [
        ("fish", "[whisper] Go now. [long pause] Go!", 2),
        ("fish", "<|speaker:1|>Go now.<|speaker:0|>No.", 0),
        ("higgs_v2", "[laugh] Go now. [cough]", 2),
        ("higgs_v2", "[SPEAKER0] Go now. [SPEAKER1] No.", 0),
        ("embedded", "Go now.", 0),
    ],
)
def test_tags_and_written_events_are_counted_without_speakers(
    kind: str, text: str, tags: int, request: pytest.FixtureRequest
) -> None:
    checkpoint: Checkpoint = request.getfixturevalue(kind)
    assert checkpoint.prompt_builder(ROOM).build(text).speech.tags == tags


def test_delivery_and_sound_tags_of_higgs_v3_are_counted(tiny_checkpoint: Path) -> None:
    builder = open_checkpoint(str(tiny_checkpoint)).prompt_builder(ROOM)
    plain = builder.build("Go now.").speech
    tagged = builder.build("Go now.<|sfx:laughter|>", delivery="<|prosody:speed_slow|>").speech
    assert (plain.tags, tagged) == (0, SpeechLength(plain.chars, 2))


def test_length_is_that_of_reading(embedded: Checkpoint) -> None:
    front_end = FRONT_ENDS["english-sounds"]
    built = embedded.prompt_builder(ROOM, front_end).build("It costs $1,234.")
    assert built.speech.chars == max_speech_chars(front_end("It costs $1,234.").text)


@pytest.mark.parametrize(
    ("text", "requested", "model", "rows"),
    [
        ("Yes.", None, 700, 100 + 2 * 10),
        ("Yes.", 120, 700, 120),
        ("Yes.", 119, 700, 119),
        ("Yes.", 2000, 700, 120),
        ("Yes.", None, 60, 60),
        ("yes, " * 40, None, 700, 700),
        ("yes, " * 40, 300, 700, 300),
    ],
)
def test_lowest_limit_of_text_client_and_model_applies(
    embedded: Checkpoint, text: str, requested: int | None, model: int, rows: int
) -> None:
    defaults = replace(embedded.defaults, max_frames=model)
    checkpoint = replace(embedded, text_frontend=None, defaults=defaults)
    builder = RequestBuilder(checkpoint, ROOM, None, {})
    request = SpeechRequest("r", text, max_frames=requested)
    assert builder.build(request, 1).message.max_frames == rows


@pytest.mark.parametrize(
    ("settings", "constant", "per_char"),
    [
        ({}, 200, 25 / 8),
        ({"ceiling_rows": 90}, 90, 25 / 8),
        ({"ceiling_rows_per_char": 1.5}, 200, 1.5),
        ({"ceiling_rows": 90, "ceiling_rows_per_char": 0}, 90, 0.0),
        ({"ceiling_rows": 0}, None, None),
        ({"ceiling_rows": "90"}, None, None),
        ({"ceiling_rows_per_char": -1}, None, None),
        ({"ceiling_rows_per_char": "2"}, None, None),
    ],
)
def test_checkpoint_may_have_a_ceiling_of_its_own(
    tmp_path: Path, settings: dict[str, object], constant: int | None, per_char: float | None
) -> None:
    folder = shutil.copytree(EMBEDDED, tmp_path / "checkpoint")
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text(json.dumps(settings))
    if constant is None or per_char is None:
        with pytest.raises(CheckpointError, match=next(iter(settings))):
            open_checkpoint(str(folder))
        return
    ceiling = open_checkpoint(str(folder)).row_ceiling
    assert ceiling == replace(HiggsV3.row_ceiling, constant=constant, per_char=per_char)
