"""Speech with the phases of its codes, against harmonics that are added up one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embedded.training.decoder_training import Example, Wanted, losses
from embedded.training.phases import HIGHEST_HZ, aligned, pulses, transform, voiced_columns
from embedded.training.pitch import HOP, LOWEST, PHASES, RATE, contour

FRAMES, EDGE = 20, 2 * HOP
#: Five and a half periods in a frame: 137.5 Hz.
PITCH = 1 + PHASES * (44 - LOWEST) + (np.arange(FRAMES) * 44) % PHASES
HZ = 5.5 / 0.04
HARMONICS = int(11_500 / HZ)


def harmonics(phases: np.ndarray) -> np.ndarray:
    """A voice whose harmonics are all alike, but for their phases, in periods."""
    theta = contour(PITCH)
    return sum(
        0.02 * np.cos(2 * np.pi * (k * theta + phase)) for k, phase in enumerate(phases, 1)
    ).astype(np.float32)


def level_db(error: np.ndarray, sound: np.ndarray) -> float:
    inside = slice(EDGE, -EDGE)
    return 10 * np.log10(np.mean(error[inside] ** 2) / np.mean(sound[inside] ** 2))


def middle(sound: np.ndarray) -> np.ndarray:
    """From 1 to 3.5 kHz: a spectrum that ends at the first harmonic has an envelope there."""
    spectrum, hz = np.fft.rfft(sound), np.fft.rfftfreq(len(sound), 1 / RATE)
    spectrum[(hz < 1000) | (hz > HIGHEST_HZ - 500)] = 0
    return np.fft.irfft(spectrum, len(sound))


def test_pulses_are_all_harmonics_at_the_codes_phase() -> None:
    made = pulses(PITCH)
    theta = contour(PITCH)
    count = int(11_500 / HZ)
    wanted = sum(np.cos(2 * np.pi * k * theta) for k in range(1, count + 1))
    assert np.abs(made - wanted)[EDGE:-EDGE].max() < 0.05 * np.abs(wanted).max()
    assert not pulses(np.zeros(FRAMES, np.int64)).any()


def test_harmonics_get_the_phases_that_the_codes_say() -> None:
    """Of a flat spectrum the envelope's filter has none of its own."""
    random = np.random.default_rng(0).random(HARMONICS)
    wanted = harmonics(np.zeros(HARMONICS))
    made = aligned(harmonics(random), PITCH)
    assert level_db(middle(made - wanted), middle(wanted)) < -15
    assert level_db(middle(harmonics(random) - wanted), middle(wanted)) > 0


def test_magnitudes_stay_and_so_does_what_has_no_pitch() -> None:
    voice = harmonics(np.random.default_rng(1).random(HARMONICS))
    before, after = (
        transform(torch.from_numpy(x))[:, 20:-20].abs() for x in (voice, aligned(voice, PITCH))
    )
    near = (before - after).norm() / before.norm()
    assert near < 0.15
    hiss = np.random.default_rng(2).standard_normal(FRAMES * HOP).astype(np.float32) * 0.1
    silent = np.zeros(FRAMES, np.int64)
    assert np.abs(aligned(hiss, silent) - hiss)[EDGE:-EDGE].max() < 1e-5


def test_columns_that_hear_an_unvoiced_frame_are_left_out() -> None:
    voiced = torch.tensor([[True] * 3 + [False] + [True] * 3])
    columns = voiced_columns(voiced, 7 * HOP // 128 + 1)[0]
    for column, counted in enumerate(columns.tolist()):
        first, last = column * 128 - 256, column * 128 + 255
        assert counted == (last < 3 * HOP or first >= 4 * HOP)


@pytest.mark.parametrize("voiced", [True, False])
def test_phases_are_compared_where_there_is_a_voice(voiced: bool) -> None:
    voice = torch.from_numpy(harmonics(np.zeros(HARMONICS)))
    other = torch.from_numpy(harmonics(np.full(HARMONICS, 0.5)))
    said = Example(
        torch.zeros(FRAMES, 1), voice.half(), voice.half(), torch.full((FRAMES,), voiced)
    )
    wanted = Wanted.of([said], torch.device("cpu"))
    right, wrong = (losses(x[None], wanted) for x in (voice, other))
    assert right["phase"] < 0.01
    assert wrong["phase"] > 0.5 if voiced else wrong["phase"] == 0
    assert wrong["spectral"] < 0.2, "magnitudes are the same"
