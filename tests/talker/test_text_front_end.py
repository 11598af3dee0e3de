"""Text front ends: prompts have the normalised text, offsets refer to the client's text."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import ErrorCode, RequestError
from streaming.ports import SpeechRequest
from talker.checkpoint import Checkpoint, open_checkpoint
from talker.families.higgs_v3.prompts import CONTROL_TAGS, TAGS
from talker.prompts import PromptBuilder, PromptSource, ReferenceVoice
from talker.request_builder import RequestBuilder
from talker.shape import CheckpointError
from text.english.normaliser import normalise
from text.front_end import FrontEnd, spoken_lengths

EMBEDDED = Path(__file__).parents[2] / "embedded" / "checkpoint"
TEXTS = st.lists(
    st.sampled_from(
        [
            *sorted(CONTROL_TAGS)[::9],
            "It's",
            "$3.50,",
            "Dr. Lee",
            "3:45 pm",
            "½",
            "🙂",
            "1,234",
            "—",
        ]
    )
    | st.text(max_size=4)
).map(" ".join)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(str(EMBEDDED))


@pytest.fixture(scope="module")
def plain(checkpoint: Checkpoint) -> PromptBuilder:
    return checkpoint.prompt_builder(2048)


@pytest.fixture(scope="module")
def reading(checkpoint: Checkpoint) -> PromptBuilder:
    return checkpoint.prompt_builder(2048, normalise)


def with_front_end(folder: Path, name: object) -> Path:
    """The embedded checkpoint with ``name`` as its text_frontend."""
    for file in EMBEDDED.iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file)
    settings = json.loads((EMBEDDED / "generation_config.json").read_text())
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text(json.dumps(settings | {"text_frontend": name}))
    return folder


def test_prompt_contains_normalised_words(reading: PromptBuilder, plain: PromptBuilder) -> None:
    asked = reading.build("Dr. Lee owes $3.50 — OK?")
    said = plain.build("doctor lee owes three dollars and fifty cents, okay?")
    assert asked.ids == said.ids


def test_voice_transcript_is_normalised(reading: PromptBuilder, plain: PromptBuilder) -> None:
    rows = np.zeros((9, 8), np.int16)
    asked = reading.build("Hello", ReferenceVoice(rows, "It is 5 km."))
    said = plain.build("hello", ReferenceVoice(rows, "it is five kilometers."))
    assert asked.ids == said.ids


def test_text_starts_refer_to_client_text(reading: PromptBuilder) -> None:
    text = "I owe $12, Ann."
    prompt = reading.build(text)
    count = len("i owe twelve dollars, ann.")
    assert len(prompt.text_starts) == count + 1
    starts = prompt.text_starts
    amount = range(len("i owe "), len("i owe twelve dollars"))
    assert {text[starts[at]] for at in amount} == set("$12")
    assert starts[len("i owe twelve dollars, ")] == text.index("Ann")
    assert starts[-1] == len(text)


@given(TEXTS)
def test_text_starts_are_monotonic_and_within_text(reading: PromptBuilder, text: str) -> None:
    try:
        starts = reading.build(text).text_starts
    except RequestError as error:
        if error.code is ErrorCode.INVALID_TEXT:
            return
        raise
    assert all(before <= after for before, after in pairwise(starts))
    assert starts[0] >= 0
    assert starts[-1] == len(text)


@given(TEXTS)
def test_spoken_lengths_are_monotonic(text: str) -> None:
    lengths = spoken_lengths(normalise, text, TAGS.split)
    assert len(lengths) == len(text) + 1
    known = [length for length in lengths if length >= 0]
    assert all(before <= after for before, after in pairwise(known))
    assert lengths[0] == 0
    assert lengths[-1] >= 0


def test_spoken_lengths_of_example_text() -> None:
    text = "a $5 <|prosody:pause|>tea"
    lengths = spoken_lengths(normalise, text, TAGS.split)
    dollars = len("a five dollars")
    assert lengths[:5] == [0, 1, 1, -1, dollars]
    assert lengths[len(text) - 3] == dollars
    assert lengths[-1] == dollars + len("tea")


def test_known_tag_is_kept_between_words(tmp_path: Path, checkpoint: Checkpoint) -> None:
    layout = json.loads(checkpoint.tokenizer_file.read_text())
    free = max(layout["model"]["vocab"].values(), default=0) + 1
    taken = {token["id"] for token in layout["added_tokens"]}
    number = next(n for n in range(free, checkpoint.shape.backbone.vocab_size) if n not in taken)
    tag = {**layout["added_tokens"][0], "content": "<|prosody:pause|>", "id": number}
    layout["added_tokens"].append(tag)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(layout))
    source = PromptSource(file, checkpoint.shape, 2048, normalise)
    with_tag = checkpoint.family.builder(source)
    plain_with_tag = checkpoint.family.builder(replace(source, front_end=None))
    asked = with_tag.build("At 5 km,<|prosody:pause|>1 km.").ids
    assert asked == plain_with_tag.build("at five kilometers,<|prosody:pause|>one kilometer.").ids
    assert number in asked


def test_unknown_tag_is_dropped(reading: PromptBuilder) -> None:
    asked = reading.build("5<|emotion:anger|>km").ids
    assert asked == reading.build("5 km").ids


@pytest.mark.parametrize("text", ["", "...", "🙂", "日本語", "<|emotion:anger|>", "\ud800 hello"])
def test_unspeakable_text_is_refused(reading: PromptBuilder, text: str) -> None:
    with pytest.raises(RequestError) as refused:
        reading.build(text)
    assert refused.value.code is ErrorCode.INVALID_TEXT


def test_text_too_long_after_normalisation_is_refused(reading: PromptBuilder) -> None:
    with pytest.raises(RequestError) as refused:
        reading.build("777 " * 80)
    assert refused.value.code is ErrorCode.TEXT_TOO_LONG


def test_checkpoint_selects_front_end(tmp_path: Path) -> None:
    opened = open_checkpoint(str(with_front_end(tmp_path, "english")))
    request = SpeechRequest("r", "5 km", "default")
    words = len("five kilometers") + len(["tts", "text", "audio"])
    intake = RequestBuilder(opened, 1024, None, {"english": FrontEnd(normalise)})
    assert len(intake.build(request, 1).message.ids) == words
    assert intake.spec.spoken_lengths is not None
    assert intake.spec.spoken_lengths("5 km")[-1] == len("five kilometers")


def test_text_is_unchanged_without_front_end(tmp_path: Path) -> None:
    opened = open_checkpoint(str(with_front_end(tmp_path, None)))
    intake = RequestBuilder(opened, 1024, None, {"english": FrontEnd(normalise)})
    assert intake.spec.spoken_lengths is None
    said = intake.build(SpeechRequest("r", "km, ok", "default"), 1).message
    assert len(said.ids) == len("km, ok") + 3


def test_front_end_unknown_name_is_refused(tmp_path: Path) -> None:
    opened = open_checkpoint(str(with_front_end(tmp_path, "klingon")))
    with pytest.raises(CheckpointError, match=r"klingon.*english"):
        RequestBuilder(opened, 1024, None, {"english": FrontEnd(normalise)})


def test_front_end_name_must_be_string(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="text_frontend"):
        open_checkpoint(str(with_front_end(tmp_path, 5)))
