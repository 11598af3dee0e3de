"""Speeds of the real voice: same pitch, exact length, intelligible words."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from streaming.spec import Samples
from talkwire_client import Client
from tests.e2e.live import Service
from tests.e2e.sentences import SENTENCES
from tests.service.audio.audio_signal import RATE, pitch_hz
from training.evaluation.metrics import letter_error_rate
from training.evaluation.recogniser import Recogniser

SPEEDS = (1.0, 0.5, 0.75, 1.5, 2.0)
#: Limit of the letter error rate above that at speed 1; measured at twice the speed: 0.13.
MORE_WRONG = 0.2


async def spoken(client: Client, text: str, speed: float) -> Samples:
    async with client.speak(
        text, encoding="pcm_f32le", speed=speed, temperature=0, mode="whole"
    ) as speech:
        return np.frombuffer(await speech.read(), "<f4")


@pytest.mark.long
async def test_speed_keeps_pitch_and_words_and_scales_length(
    speaking: Service, ears: Recogniser
) -> None:
    heard: dict[float, list[str]] = {speed: [] for speed in SPEEDS}
    pitches: dict[float, list[float]] = {speed: [] for speed in SPEEDS}
    async with Client(speaking.url) as client:
        for text in SENTENCES:
            lengths = {}
            for speed in SPEEDS:
                samples = await spoken(client, text, speed)
                lengths[speed] = len(samples)
                pitches[speed].append(pitch_hz(samples))
                heard[speed] += ears.hear([samples], RATE)
            for speed in SPEEDS:
                # both are rounded up to whole samples, from speech at the voice's own speed
                assert abs(lengths[speed] - lengths[1.0] / speed) <= 1 / speed + 1
    errors = {
        speed: fmean(map(letter_error_rate, SENTENCES, words)) for speed, words in heard.items()
    }
    print(errors, {speed: np.round(found, 1) for speed, found in pitches.items()})
    for speed in SPEEDS:
        assert np.median(pitches[speed]) == pytest.approx(np.median(pitches[1.0]), rel=0.03)
        assert errors[speed] <= errors[1.0] + MORE_WRONG, heard[speed]
    assert errors[1.0] <= 0.1, heard[1.0]
