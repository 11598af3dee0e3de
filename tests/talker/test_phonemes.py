"""Words by their sounds in the prompts of the embedded voice, and which checkpoints take them."""

from __future__ import annotations

from pathlib import Path

import pytest

from talker.checkpoint import Checkpoint, open_checkpoint
from talker.prompts import PromptBuilder
from talker.request_builder import RequestBuilder
from text.pronunciation.in_band import sounded
from text.registry import FRONT_ENDS

EMBEDDED = Path(__file__).parents[2] / "embedded" / "checkpoint"
WORD = sounded(["wˈʊstər"], is_capital=True)


@pytest.fixture(scope="module")
def embedded() -> Checkpoint:
    return open_checkpoint(str(EMBEDDED))


@pytest.fixture(scope="module")
def prompts(embedded: Checkpoint) -> PromptBuilder:
    return embedded.prompt_builder(2048, FRONT_ENDS["english-sounds"])


def test_prompt_has_the_sounds(prompts: PromptBuilder) -> None:
    given, written = prompts.build(f"In {WORD}, 5."), prompts.build("In Worcester, 5.")
    assert given.ids == written.ids
    assert given.speech == written.speech


def test_ids_of_the_sounds_belong_to_the_word(prompts: PromptBuilder) -> None:
    text = f"In {WORD}, 5."
    starts = prompts.build(text).text_starts
    within = [at for at in starts if text.index(WORD) <= at < text.index(WORD) + len(WORD)]
    assert len(within) == len("wˈʊstər")
    assert within == sorted(within)
    assert starts[-1] == len(text)


def test_transcript_of_a_client_has_no_sounds(prompts: PromptBuilder) -> None:
    assert prompts.encode_transcript(f"In {WORD}.") != prompts.encode_transcript("In Worcester.")
    plain = WORD[1:-1]
    assert prompts.encode_transcript(f"In {WORD}.") == prompts.encode_transcript(f"In {plain}.")


@pytest.mark.parametrize(("name", "speaks"), [("english-sounds", True), ("english", False)])
def test_front_end_decides_whether_phonemes_are_spoken(
    embedded: Checkpoint, name: str, *, speaks: bool
) -> None:
    front_ends = {embedded.text_frontend or "": FRONT_ENDS[name]}
    spec = RequestBuilder(embedded, 1024, None, front_ends).spec
    assert (spec.rendering.signs_of is not None) is speaks
