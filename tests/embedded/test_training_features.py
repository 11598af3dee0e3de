"""Pitch codes, the phase they carry, and the waveform that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from embedded.training.features import (
    BANDS,
    ORDER,
    PHASES,
    PITCH_CODES,
    WIDTH,
    Ints,
    Speaker,
    analyse,
    pitch_codes,
    pitch_of,
    pitch_table,
)
from embedded.training.flite import Flite, Floats, Spoken
from embedded.training.synthesis import HOP, NOISES, RATE, contour, synthesise


def envelopes(frames: int, energy: float = 6.0, voicing: float = 1.0) -> Floats:
    rows = np.zeros((frames, WIDTH // (ORDER + BANDS), ORDER + BANDS), np.float32)
    rows[..., 0], rows[..., 1], rows[..., ORDER:] = energy, 1.0, voicing
    return rows.reshape(frames, WIDTH)


def measured_f0(samples: Floats) -> float:
    """By the first high peak of the autocorrelation between 50 and 400 Hz."""
    spectrum = np.abs(np.fft.rfft(samples, 2 * len(samples))) ** 2
    correlation = np.fft.irfft(spectrum)[: len(samples)]
    shortest, longest = RATE // 400, RATE // 50
    inside = correlation[shortest:longest]
    first = int((inside > 0.8 * inside.max()).argmax())
    return float(RATE / (shortest + first + int(inside[first : first + 30].argmax())))


def test_a_pitch_code_leads_to_the_next_ones_phase() -> None:
    f0 = np.array([0, 100, 103, 111, 0, 0, 200, 190.5, 180], np.float32)
    codes = pitch_codes(f0)
    assert list(codes == 0) == list(f0 == 0)
    periods, phase = pitch_of(codes)
    assert np.abs(periods / 0.04 - f0)[f0 > 0].max() <= 0.5 / 0.04 / PHASES
    assert phase[1] == phase[6] == 0, "a voiced stretch begins at a period's beginning"
    for t in (2, 3, 7, 8):
        assert phase[t] == (phase[t - 1] + periods[t - 1]) % 1


def test_every_code_means_something_else() -> None:
    periods, phase = pitch_of(np.arange(PITCH_CODES))
    assert len({*zip(periods, phase, strict=True)}) == PITCH_CODES <= 1024
    table = pitch_table()
    distance = np.abs(table[:, None, :2] - table[None, :, :2]).sum(-1)
    phases = np.abs(table[:, None, 4:] - table[None, :, 4:]).sum(-1)
    assert (distance + phases + np.eye(PITCH_CODES)).min() > 1e-3


@pytest.mark.parametrize("f0", [75.0, 100.0, 137.5, 212.5, 350.0])
def test_the_vocoder_speaks_at_the_codes_pitch(f0: float) -> None:
    codes = pitch_codes(np.full(20, f0, np.float32))
    samples = synthesise(envelopes(20), codes, np.zeros(20, np.int64))
    assert len(samples) == 20 * HOP
    assert measured_f0(samples[4 * HOP : 16 * HOP]) == pytest.approx(f0, rel=0.01)


def test_frames_join_without_a_seam() -> None:
    f0 = np.concatenate([np.linspace(90, 180, 12), np.linspace(180, 110, 12)]).astype(np.float32)
    theta = contour(*pitch_of(pitch_codes(f0)))
    speed = np.diff(theta % 1)
    speed = speed[np.abs(speed) < 0.5]  # all but the steps from a period to the next
    assert speed.min() > 85 / RATE
    assert speed.max() < 190 / RATE
    assert np.abs(np.diff(speed)).max() < 1e-4


def test_a_phase_that_does_not_fit_bends_the_pitch_a_little() -> None:
    codes = pitch_codes(np.full(10, 125.0, np.float32))
    codes[5] += 3  # three eighths of a period too far on
    theta = contour(*pitch_of(codes))
    inside = np.diff(theta.reshape(10, HOP), axis=1) * RATE
    assert inside.min() > 100
    assert inside.max() < 150
    ends = theta.reshape(10, HOP)[:-1, -1] % 1
    begins = theta.reshape(10, HOP)[1:, 0] % 1
    assert np.abs((begins - ends + 0.5) % 1 - 0.5).max() < 0.01


def test_unvoiced_frames_are_noise_and_silence_is_silent() -> None:
    codes: Ints = np.zeros(12, np.int64)
    hiss = synthesise(envelopes(12, voicing=0.0), codes, np.arange(12) % NOISES)
    quiet = synthesise(envelopes(12, energy=-1.0, voicing=0.0), codes, np.arange(12) % NOISES)
    assert hiss.std() > 1e-3
    assert quiet.std() < 1e-3 * hiss.std() * 5
    again = synthesise(envelopes(12, voicing=0.0), codes, np.arange(12) % NOISES)
    other = synthesise(envelopes(12, voicing=0.0), codes, (np.arange(12) + 1) % NOISES)
    assert np.array_equal(hiss, again)
    assert not np.allclose(hiss, other)


def spoken() -> Spoken:
    random = np.random.default_rng(0)
    cepstra = random.normal(0, 0.3, (83, ORDER)).astype(np.float32)
    f0 = np.where(np.arange(83) % 40 < 25, 120, 0).astype(np.float32)
    voicing = random.random((83, BANDS)).astype(np.float32)
    return Spoken("a", f0, cepstra, voicing, ((0, 0.0, 0.4),), np.zeros(1, np.float32))


def test_another_speaker_has_another_pitch_and_another_spectrum() -> None:
    plain, f0 = analyse(spoken(), Speaker("slt"))
    small, high = analyse(spoken(), Speaker("slt", pitch=1.2, tract=0.05))
    assert plain.shape == small.shape == (11, WIDTH)
    assert np.allclose(high, f0 * 1.2)
    assert (f0 > 0).any()
    assert (f0 == 0).any()
    assert np.abs(plain - small).max() > 0.05
    voicing = plain.reshape(-1, ORDER + BANDS)[:, ORDER:]
    assert voicing[f0.repeat(4) == 0].max() <= 1
    assert voicing.min() == 0


def test_flite_tells_words_and_pitch() -> None:
    try:
        flite = Flite()
    except OSError:
        pytest.skip("flite is not installed")
    said = flite.speak("rms", "hello there, john's dog.")
    assert [said.text[first:].split()[0] for first, _, _ in said.words] == [
        "hello", "there,", "john's", "dog.",
    ]  # fmt: skip
    ends = [end for _, _, end in said.words]
    assert ends == sorted(ends)
    assert ends[-1] <= len(said.f0) * 0.005
    assert 70 < said.f0[said.f0 > 0].mean() < 130
    assert abs(len(said.samples) / 16000 - len(said.f0) * 0.005) < 0.05
