"""A fake teacher, which hums the letters of a sentence on a given pitch."""

from __future__ import annotations

import numpy as np

from training.kokoro import SYMBOLS, UNIT, Features, Teacher
from training.phonemes import Reading
from training.pitch import F0_STEP, RATE, Floats

_UNITS = 2  # per symbol: 50 ms
_SILENCE = 8
_VOWELS = "aeiou"


def fake_reading(text: str, british: bool) -> Reading:
    """Return a reading in which every letter is a phoneme."""
    phonemes = "".join(symbol for symbol in text if symbol in SYMBOLS)
    words, at = [], 0
    for word in phonemes.split(" "):
        words.append((at, at + len(word), at, at + len(word)))
        at += len(word) + 1
    return Reading(phonemes, tuple(words))


class FakeTeacher(Teacher):
    """Hums vowels, each with its own spectrum, and hisses other letters. Voices differ in pitch."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._letters = random.standard_normal((200, 512)).astype(np.float32)

    def features(self, phonemes: str, voice: str, speed: float = 1.0) -> Features:
        """Return features with equal durations and a falling pitch."""
        units = np.full(len(phonemes) + 2, _UNITS)
        units[0] = units[-1] = _SILENCE
        numbers = [0, *(SYMBOLS[symbol] for symbol in phonemes), 0]
        text = np.repeat(self._letters[numbers], units, 0).T
        count = 2 * int(units.sum())
        sung = np.repeat([symbol in _VOWELS for symbol in f" {phonemes} "], 2 * units)
        low = 180.0 + 10 * (len(voice) % 5) if voice[1] == "f" else 100.0
        f0 = np.where(sung, np.linspace(1.1 * low, 0.9 * low, count), 0).astype(np.float32)
        energy = np.where(sung, 8.0, 2.0).astype(np.float32)
        style = np.full(256, len(voice) / 10, np.float32)
        return Features(np.ascontiguousarray(text), f0, energy, units.astype(np.int64), style)

    def waveform(self, features: Features, f0: Floats) -> Floats:
        """Return twelve harmonics, whose phase is the sum of F0, and some noise."""
        count = len(f0) * F0_STEP
        at = (np.arange(count) + 0.5) / F0_STEP - 0.5
        hz = np.interp(at, np.arange(len(f0)), f0)
        phase = 2 * np.pi * np.cumsum(hz) / RATE
        weight = np.abs(np.repeat(features.text[:12], UNIT, 1)) + 0.1
        hum = sum(w * np.cos(k * phase) / k for k, w in enumerate(weight, 1)) * (hz > 30)
        hiss = np.random.default_rng(1).standard_normal(count)
        return np.asarray((hum + 0.2 * hiss) * 0.05, np.float32)
