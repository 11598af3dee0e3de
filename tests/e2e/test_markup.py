"""Markup in the embedded voice's text: exact pauses, spelled codes and word timings of both."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from benchmarks.word_timings import Utterance, speak
from talkwire_client import Client, PronunciationRule, Word
from tests.e2e.live import Service

pytestmark = pytest.mark.slow
TEXT = 'Please hold the line. <break time="1.5s"/> [excited] Your code is <spell>B7</spell>, then.'
WORDS = ["Please", "hold", "the", "line.", "Your", "code", "is", "B7", "then."]


async def test_pause_is_silent_between_the_words_around_it(speaking: Service) -> None:
    async with Client(speaking.url) as client:
        spoken = await speak(client, TEXT, 1)
    assert [word.text for word in spoken.words] == WORDS
    assert all(TEXT[word.start : word.end] == word.text for word in spoken.words)
    assert all(a.end_ms <= b.start_ms for a, b in pairwise(spoken.words))

    sounding = np.flatnonzero(spoken.samples)
    gaps = np.diff(sounding)
    longest = int(gaps.argmax())
    pause = round(1.5 * spoken.rate)
    assert pause <= gaps[longest] - 1 < pause + spoken.rate // 4
    before, after = 1000 * sounding[longest : longest + 2] / spoken.rate
    line, your = spoken.words[3], spoken.words[4]
    assert line.end_ms <= before + 1
    assert your.start_ms >= after - 1


async def test_word_by_its_sounds_is_spoken_like_one_that_the_voice_knows(
    speaking: Service,
) -> None:
    known, unknown = "We met in Worcester today.", "We met in Xq today."
    rules = [PronunciationRule("Xq", phonemes="W UH1 S T ER0", alphabet="cmu-arpabet")]
    async with Client(speaking.url) as client:
        expected = await speak(client, known, 1)
        for text, given in (
            (unknown, rules),
            ('We met in <phoneme ph="ˈwʊstər">Xq</phoneme> today.', None),
            ("We met in [Xq](/ˈwʊs.tɚ/) today.", None),
        ):
            spoken = await speak(client, text, 1, given)
            assert np.array_equal(spoken.samples, expected.samples)
            assert [text[word.start : word.end] for word in spoken.words] == [
                word.text for word in spoken.words
            ]
            assert [word.text[:2] for word in spoken.words] == ["We", "me", "in", "Xq", "to"]


async def test_speed_and_volume_change_the_voice_and_its_words(speaking: Service) -> None:
    first, second = "Please hold the line.", "Your order is on its way."
    plain = f'{first} <prosody rate="slow" volume="1.1">{second}</prosody>'
    shaped = f'{first} <prosody rate="70%" volume="50%">{second}</prosody>'
    async with Client(speaking.url) as client:
        normal, changed = [await speak(client, text, 1) for text in (plain, shaped)]
    words = first.split() + second.split()
    assert [word.text for word in changed.words] == words
    assert [shaped[word.start : word.end] for word in changed.words] == words
    count = len(first.split())
    for before, after in zip(normal.words[:count], changed.words[:count], strict=True):
        assert (before.start_ms, before.end_ms) == (after.start_ms, after.end_ms)

    def lengths(words: list[Word]) -> np.ndarray:
        return np.array([word.end_ms - word.start_ms for word in words[count:]])

    ratio = lengths(changed.words) / lengths(normal.words)
    np.testing.assert_allclose(ratio, 0.85 / 0.7, atol=0.05)

    def level(spoken: Utterance) -> float:
        begin, end = (round(spoken.rate * at / 1000) for at in span(spoken.words[count:]))
        return float(np.sqrt(np.mean(spoken.samples[begin:end] ** 2)))

    def span(words: list[Word]) -> tuple[float, float]:
        return words[0].start_ms, words[-1].end_ms

    assert level(changed) / level(normal) == pytest.approx(0.5 / 1.1, rel=0.05)
