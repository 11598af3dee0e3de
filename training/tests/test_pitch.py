"""Pitch codes and their phases, and the teacher's F0, spectra and durations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from training.kokoro import UNIT
from training.pitch import (
    F0_STEP,
    HOP,
    PHASES,
    PITCH_CODES,
    RATE,
    codes_of,
    contour,
    periods_of,
    pitch_table,
    quantised_f0,
)
from training.spectra import BANDS, CEPSTRA, SUBFRAMES, WIDTH, mel_bands, spectra
from training.speech import places
from training.tests.fake_teacher import FakeTeacher, fake_reading

_VALUES = HOP / F0_STEP  # F0 values in a frame


def f0_of(frames: list[float]) -> np.ndarray:
    """Return an F0 contour that is constant within each frame."""
    at = (np.arange(round(len(frames) * _VALUES)) + 0.5) / _VALUES
    return np.array(frames, np.float32)[at.astype(int)]


def test_pitch_code_determines_next_phase() -> None:
    meant = np.array([0, 0, 100, 103, 111, 0, 0, 200, 190.5, 180])
    codes = codes_of(f0_of(list(meant)), len(meant))
    assert list(codes == 0) == list(meant == 0)
    periods, phase = periods_of(codes)
    # An F0 value lasts 12.5 ms, so a frame includes a little of its neighbours.
    assert np.abs(periods / 0.04 - meant)[[3, 8]].max() < 2.5
    assert phase[2] == phase[7] == 0, "a voiced stretch begins at a period's beginning"
    for t in (3, 4, 8, 9):
        assert phase[t] == (phase[t - 1] + periods[t - 1]) % 1


def test_pitch_codes_all_differ() -> None:
    periods, phase = periods_of(np.arange(PITCH_CODES))
    assert len({*zip(periods, phase, strict=True)}) == PITCH_CODES <= 1024
    table = pitch_table()
    distance = np.abs(table[:, None, :2] - table[None, :, :2]).sum(-1)
    phases = np.abs(table[:, None, 4:] - table[None, :, 4:]).sum(-1)
    assert (distance + phases + np.eye(PITCH_CODES)).min() > 1e-3


def test_contour_joins_frames_without_seam() -> None:
    rise = [*np.linspace(90, 180, 12), *np.linspace(180, 110, 12)]
    theta = contour(codes_of(f0_of(rise), 24))
    speed = np.diff(theta % 1)
    speed = speed[np.abs(speed) < 0.5]  # without the steps between two periods
    assert speed.min() > 85 / RATE
    assert speed.max() < 190 / RATE
    assert np.abs(np.diff(speed)).max() < 1e-4


def test_contour_bends_for_inconsistent_phase() -> None:
    codes = codes_of(f0_of([125.0] * 10), 10)
    codes[5] += 3  # three eighths of a period ahead
    theta = contour(codes)
    inside = np.diff(theta.reshape(10, HOP), axis=1) * RATE
    assert inside.min() > 100
    assert inside.max() < 150
    ends = theta.reshape(10, HOP)[:-1, -1] % 1
    begins = theta.reshape(10, HOP)[1:, 0] % 1
    assert np.abs((begins - ends + 0.5) % 1 - 0.5).max() < 0.01


@pytest.mark.parametrize("begin", [0, 1200])
def test_quantised_f0_sums_to_phase_of_codes(begin: int) -> None:
    """The sum of the F0 values follows the codes' contour, whatever came before."""
    sung = [0, 0, 0, *np.linspace(120, 160, 20), 0, 0, *np.linspace(210, 150, 20), 0, 0]
    meant = np.concatenate([np.zeros(begin // F0_STEP, np.float32), f0_of(sung)])
    codes = codes_of(meant[begin // F0_STEP :], len(sung))
    said = quantised_f0(codes, meant, begin).astype(np.float64)
    theta = contour(codes)
    phase = np.cumsum(said) * F0_STEP / RATE
    at = np.round(np.arange(len(said)) * F0_STEP + (F0_STEP - 1) / 2 - begin).astype(int)
    voiced = [m for m, n in enumerate(at) if 0 <= n < len(theta) and codes[n // HOP]]
    off = (phase[voiced] - theta[at[voiced]] + 0.5) % 1 - 0.5
    assert len(voiced) > 110
    assert np.abs(off - np.median(off)).max() < 1e-3
    # F0 is changed only by rounding to an eighth of a period.
    near = np.abs(said - meant)[voiced[8:60]] / meant[voiced[8:60]]
    assert near.max() < 1 / (120 * 0.04 * PHASES)


def test_spectra_show_tone_in_its_band() -> None:
    time = np.arange(10 * HOP) / RATE
    tone = torch.from_numpy((0.3 * np.sin(2 * np.pi * 1000 * time)).astype(np.float32))
    found = spectra(tone)
    assert found.shape == (10, WIDTH)
    rows = found.reshape(-1, CEPSTRA)[8:-8]
    orders, at = torch.arange(CEPSTRA)[:, None], torch.arange(BANDS) + 0.5
    basis = torch.cos(torch.pi * orders * at / BANDS) * (2 / BANDS) ** 0.5
    basis[0] *= 0.5**0.5
    heights = (rows @ basis).mean(0)
    centres = mel_bands(BANDS, 1024).argmax(1) * RATE / 1024
    assert float(centres[heights.argmax()]) == pytest.approx(1000, rel=0.06)
    louder = spectra(2 * tone).reshape(-1, CEPSTRA)[8:-8]
    assert float((louder - rows)[:, 0].mean()) > 0
    assert SUBFRAMES * len(found) == len(spectra(tone).reshape(-1, CEPSTRA))


def test_places_follow_durations() -> None:
    text = "tea or me"
    reading, teacher = fake_reading(text, british=False), FakeTeacher()
    features = teacher.features(reading.phonemes, "af_heart")
    samples, codes = teacher.speak(features)
    assert len(samples) == len(codes) * HOP
    found = places(reading, features, len(text), len(codes))
    assert (np.diff(found) >= 0).all()
    # each symbol lasts 50 ms; 20 ms of silence are kept before the first
    for character in (0, 4, 7):
        second = 0.02 + 0.05 * character
        frame = int(second / 0.04)
        assert found[frame] == pytest.approx(character, abs=1.5)
    assert found[-1] == pytest.approx(len(text), abs=1)


def test_symbols_start_75_ms_before_their_durations() -> None:
    features = FakeTeacher().features("tea", "af_heart")
    begin, _ = features.span()
    first = int(features.durations[0]) * UNIT
    assert first - begin == pytest.approx(0.095 * RATE, abs=F0_STEP)
    assert features.starts_s()[1] == pytest.approx((first - begin) / RATE - 0.075)


def test_symbols_do_not_start_before_first_sample() -> None:
    features = FakeTeacher().features("tea", "af_heart")
    features.durations[0] = 1
    assert features.span()[0] == 0
    assert (features.starts_s() >= 0).all()
