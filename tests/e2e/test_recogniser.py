from __future__ import annotations

import io
import wave
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.recogniser import (
    SENTENCES,
    VOCABULARY,
    Recogniser,
    edits,
    word_error_rate,
    words,
)

ROOT = Path(__file__).resolve().parents[2]
#: Codes [8, T] that the embedded talker once made of these sentences.
SPOKEN = {
    "bird": "yesterday my brother saw a yellow bird.",
    "king": "the young king was happy in his garden.",
}


@pytest.mark.parametrize(
    ("reference", "heard", "rate"),
    [
        ("one two three four", "one two three four", 0),
        ("One, two; three... FOUR?", "one two three four", 0),
        ("one two three four", "one three four", 1 / 4),
        ("one two three four", "one two too three four", 1 / 4),
        ("one two three four", "one to three four", 1 / 4),
        ("one two three four", "", 1),
        ("one two", "three four five six", 2),
        ("don't stop", "dont stop", 1 / 2),
    ],
)
def test_word_error_rate(reference: str, heard: str, rate: float) -> None:
    assert word_error_rate([(reference, heard)]) == rate


def test_word_error_rate_weighs_by_words_and_not_by_sentences() -> None:
    assert word_error_rate([("one two three", "one two three"), ("one", "two")]) == 1 / 4
    with pytest.raises(ValueError, match="no word"):
        word_error_rate([("...", "one")])


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_edits_are_the_fewest_that_turn_one_into_the_other(a: list[str], b: list[str]) -> None:
    """The oracle is the definition, by recursion."""

    @lru_cache
    def fewest(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        return min(
            fewest(i - 1, j) + 1,
            fewest(i, j - 1) + 1,
            fewest(i - 1, j - 1) + (a[i - 1] != b[j - 1]),
        )

    assert edits(a, b) == fewest(len(a), len(b))


def test_the_sentences_need_no_other_words() -> None:
    extra = {word for text in SENTENCES for word in words(text)} - set(VOCABULARY)
    assert len(set(VOCABULARY)) == len(VOCABULARY) > 250
    assert len(extra) <= 20  # "the", "a" and their like
    with pytest.raises(ValueError, match="dictionary: qwzx"):
        Recogniser(["qwzx"], [])


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser()


@pytest.fixture(scope="module")
def spoken() -> dict[str, np.ndarray]:
    decoder = pytest.importorskip("codec.decoder").HiggsDecoder
    voice = decoder.load(str(ROOT / "embedded" / "checkpoint"))
    with np.load(Path(__file__).with_name("data") / "spoken_codes.npz") as codes:
        return dict(zip(SPOKEN, voice.decode([codes[name] for name in SPOKEN]), strict=True))


def _wav(samples: np.ndarray, rate: int) -> bytes:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return target.getvalue()


def test_understands_the_embedded_voice(
    recogniser: Recogniser, spoken: dict[str, np.ndarray]
) -> None:
    heard = {name: recogniser.hear(_wav(spoken[name], 24_000)) for name in SPOKEN}
    assert word_error_rate((SPOKEN[name], heard[name]) for name in SPOKEN) <= 0.35, heard
    crossed = [(SPOKEN["bird"], heard["king"]), (SPOKEN["king"], heard["bird"])]
    assert word_error_rate(crossed) >= 0.9


def test_does_not_hear_words_where_there_are_none(
    recogniser: Recogniser, spoken: dict[str, np.ndarray]
) -> None:
    backwards = recogniser.hear_samples(spoken["bird"][::-1].copy(), 24_000)
    assert word_error_rate([(SPOKEN["bird"], backwards)]) >= 0.7
    assert recogniser.hear(_wav(np.zeros(24_000), 24_000)) == ""
    with pytest.raises(ValueError, match="mono 16-bit"):
        recogniser.hear(_wav_stereo())


def test_hears_the_same_whatever_it_heard_before(spoken: dict[str, np.ndarray]) -> None:
    fresh, used = Recogniser(), Recogniser()
    noise = np.random.default_rng(1).standard_normal(24_000).astype(np.float32)
    used.hear_samples(noise * 0.1, 24_000)
    used.hear_samples(spoken["king"], 24_000)
    bird = spoken["bird"]
    assert used.hear_samples(bird, 24_000) == fresh.hear_samples(bird, 24_000) != ""


def _wav_stereo() -> bytes:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(bytes(400))
    return target.getvalue()
