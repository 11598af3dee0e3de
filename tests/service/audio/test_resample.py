from __future__ import annotations

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from service.audio.filters import Resampler
from service.audio.formats import SAMPLE_RATES, AudioFormat
from streaming.spec import Samples
from tests.service.audio.audio_signal import RATE, joined, run, snr_db, spectrum_error_db, voice

OTHERS = [rate for rate in SAMPLE_RATES if rate != RATE]
NOISE = (0.1 * np.random.default_rng(2).standard_normal(60_000)).astype(np.float32)


def streamed(resampler: Resampler, samples: Samples, pieces: list[int]) -> Samples:
    split = np.split(samples, np.cumsum(pieces))
    return np.concatenate([*(resampler.push(piece) for piece in split), resampler.finish()])


@given(st.sampled_from(OTHERS), st.lists(st.integers(0, 5000), max_size=12), st.integers(0, 30_000))
def test_resampler_in_pieces_equals_one_shot(rate: int, pieces: list[int], length: int) -> None:
    pieces = [piece for at, piece in enumerate(pieces) if sum(pieces[: at + 1]) <= length]
    got = streamed(Resampler(RATE, rate), NOISE[:length], pieces)
    assert len(got) == -(-length * rate // RATE)
    assert np.array_equal(got, streamed(Resampler(RATE, rate), NOISE[:length], []))


@pytest.mark.parametrize("rate", OTHERS)
def test_resampler_delay_is_bounded(rate: int) -> None:
    resampler, came = Resampler(RATE, rate), 0
    for pushed in range(960, 40 * 960, 960):
        came += len(resampler.push(NOISE[:960]))
        held_ms = 1000 * (pushed / RATE - came / rate)
        assert held_ms < (26 if rate == 8_000 else 11)


@pytest.mark.parametrize("rate", OTHERS)
def test_resampler_keeps_clicks_at_both_ends(rate: int) -> None:
    clicks = np.zeros(9_600, np.float32)
    clicks[[0, -1]] = 1
    got = streamed(Resampler(RATE, rate), clicks, [5, 960])
    part = rate // 100
    whole = min(1, rate / RATE) * 0.25  # a click is spread out, and half of that lies outside
    assert abs(got[:part]).max() > whole
    assert abs(got[-part:]).max() > whole / 3
    assert abs(got[part:-part]).max() < 1e-2


@pytest.mark.parametrize("rate", OTHERS)
def test_resampler_can_be_reused_after_finish(rate: int) -> None:
    resampler = Resampler(RATE, rate)
    first = streamed(resampler, NOISE[:10_007], [480, 3])
    assert np.array_equal(streamed(resampler, NOISE[:10_007], [17]), first)


@pytest.mark.parametrize("hertz", [200, 1000, 3200])
@pytest.mark.parametrize("rate", OTHERS)
def test_resampler_keeps_amplitude_and_position_of_tone(rate: int, hertz: int) -> None:
    """The position is kept to within one sample of the new rate."""
    time_s = np.arange(rate) / rate
    tone = np.sin(2 * np.pi * hertz * np.arange(RATE) / RATE)
    got = streamed(Resampler(RATE, rate), tone.astype(np.float32), [960])
    assert len(got) == rate
    middle = slice(rate // 10, -rate // 10)
    basis = np.stack([np.sin(2 * np.pi * hertz * time_s), np.cos(2 * np.pi * hertz * time_s)])
    (sine, cosine), *_ = np.linalg.lstsq(basis[:, middle].T, got[middle], rcond=None)
    assert np.hypot(sine, cosine) == pytest.approx(1, abs=1e-3)
    early_samples = np.arctan2(cosine, sine) / (2 * np.pi * hertz) * rate
    assert abs(early_samples) < 1
    fitted = (sine, cosine) @ basis
    assert np.abs(fitted[middle] - got[middle]).max() < 1e-3


@pytest.mark.parametrize("rate", OTHERS)
def test_resampler_spectrum_matches_one_shot_soxr(rate: int) -> None:
    speech = voice(72_000)
    wanted = soxr.resample(speech, RATE, rate, quality="VHQ")
    got = streamed(Resampler(RATE, rate), speech, [960])
    assert spectrum_error_db(wanted, got, rate, 0.42 * min(rate, RATE)) < -45


@pytest.mark.parametrize("rate", [8_000, 16_000])
def test_resampler_removes_frequencies_above_nyquist(rate: int) -> None:
    above = np.sin(2 * np.pi * (rate / 2 + 600) * np.arange(RATE) / RATE)
    got = streamed(Resampler(RATE, rate), above.astype(np.float32), [960])
    assert np.abs(got[rate // 10 : -rate // 10]).max() < 1e-3


@pytest.mark.parametrize("rate", OTHERS)
@pytest.mark.parametrize("frame_ms", [0, 20])
def test_encoder_receives_resampled_audio(rate: int, frame_ms: int) -> None:
    encoder = AudioFormat("pcm_f32le", rate, frame_ms).encoder(RATE)
    assert encoder.sample_rate == rate
    speech = voice(33_333)
    for _ in range(2):  # two utterances
        packets = run(encoder, speech, [1, 5000])
        got = np.frombuffer(joined(packets), "<f4")
        assert np.array_equal(got, streamed(Resampler(RATE, rate), speech, []))
        assert snr_db(soxr.resample(speech, RATE, rate, quality="HQ"), got) > 17
        assert sum(packet.samples for packet in packets) == len(got)
        if frame_ms:
            assert {packet.samples for packet in packets[:-1]} == {rate * frame_ms // 1000}
