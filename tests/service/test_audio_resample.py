from __future__ import annotations

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from service.audio.factory import SAMPLE_RATES, make_stream_encoder
from service.audio.resample import Resampler
from streaming.spec import Samples
from tests.service.audio_signal import RATE, joined, lag, run, voice

OTHERS = [rate for rate in SAMPLE_RATES if rate != RATE]
NOISE = (0.1 * np.random.default_rng(2).standard_normal(60_000)).astype(np.float32)


def streamed(resampler: Resampler, samples: Samples, pieces: list[int]) -> Samples:
    split = np.split(samples, np.cumsum(pieces))
    return np.concatenate([*(resampler.push(piece) for piece in split), resampler.finish()])


@given(st.sampled_from(OTHERS), st.lists(st.integers(0, 5000), max_size=12), st.integers(0, 30_000))
def test_streamed_equals_one_shot(rate: int, pieces: list[int], length: int) -> None:
    pieces = [piece for at, piece in enumerate(pieces) if sum(pieces[: at + 1]) <= length]
    got = streamed(Resampler(RATE, rate), NOISE[:length], pieces)
    assert abs(len(got) - length * rate / RATE) < 1
    if length:
        assert np.array_equal(got, soxr.resample(NOISE[:length], RATE, rate, quality="HQ"))


@pytest.mark.parametrize("rate", OTHERS)
def test_after_the_end_it_begins_anew(rate: int) -> None:
    resampler = Resampler(RATE, rate)
    first = streamed(resampler, NOISE[:10_007], [480, 3])
    assert np.array_equal(streamed(resampler, NOISE[:10_007], [17]), first)


@pytest.mark.parametrize("rate", OTHERS)
def test_the_signal_stays_where_it_was(rate: int) -> None:
    """Against the same signal made at the new rate: no shift, and no loss at either end."""
    time_s = np.arange(rate) / rate
    wanted = np.sin(2 * np.pi * 700 * time_s)
    got = streamed(Resampler(RATE, rate), np.sin(2 * np.pi * 700 * np.arange(RATE) / RATE), [960])
    assert len(got) == rate
    assert lag(wanted, got) == 0
    middle = slice(rate // 10, -rate // 10)
    assert np.abs(wanted[middle] - got[middle]).max() < 1e-4
    assert np.abs(wanted - got).max() < 0.1


@pytest.mark.parametrize("rate", [8_000, 16_000])
def test_what_the_new_rate_cannot_hold_is_gone(rate: int) -> None:
    above = np.sin(2 * np.pi * (rate / 2 + 600) * np.arange(RATE) / RATE)
    got = streamed(Resampler(RATE, rate), above.astype(np.float32), [960])
    assert np.abs(got[rate // 10 : -rate // 10]).max() < 1e-3


@pytest.mark.parametrize("rate", OTHERS)
@pytest.mark.parametrize("frame_ms", [0, 20])
def test_any_encoder_gets_the_resampled_audio(rate: int, frame_ms: int) -> None:
    encoder = make_stream_encoder("pcm_f32le", RATE, rate, frame_ms)
    assert encoder.sample_rate == rate
    speech = voice(33_333)
    for _ in range(2):  # two utterances
        packets = run(encoder, speech, [1, 5000])
        got = np.frombuffer(joined(packets), "<f4")
        assert np.array_equal(got, soxr.resample(speech, RATE, rate, quality="HQ"))
        assert sum(packet.samples for packet in packets) == len(got)
        if frame_ms:
            assert {packet.samples for packet in packets[:-1]} == {rate * frame_ms // 1000}
