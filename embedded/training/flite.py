"""Speech by flite, with all that it knows of it: text, times, pitch, spectrum.

flite (Carnegie Mellon University, a BSD-like licence) is Debian's package ``flite``. Its
``cmu_us_*`` voices are statistical models of recordings: they predict pitch, mel-cepstra and
the share of voicing in five bands every 5 ms, and a vocoder makes the waveform of them. We
read those through ctypes, which is exact and spares an analysis. Structures and functions
are those of its public headers (cst_track.h, cst_wave.h, cst_cg.h), version 2.2.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_short, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

VOICES = ("slt", "rms", "awb")
SAMPLE_RATE = 16_000
FRAME_S = 0.005

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Spoken:
    """One utterance.

    ``f0`` ``[n]`` Hz, 0 where unvoiced; ``cepstra`` ``[n, 25]`` mel-cepstra (warping .42 at
    16 kHz); ``voicing`` ``[n, 5]`` share of the pulse in each band, 0-1; n frames of 5 ms.
    ``words``: (first character, its end in seconds) of each word of the text.
    ``samples``: flite's own waveform, 16 kHz, within [-1, 1].
    """

    text: str
    f0: Floats
    cepstra: Floats
    voicing: Floats
    words: tuple[tuple[int, float, float], ...]
    samples: Floats


class _Track(Structure):
    _fields_ = (
        ("type", c_char_p),
        ("num_frames", c_int),
        ("num_channels", c_int),
        ("times", POINTER(c_float)),
        ("frames", POINTER(POINTER(c_float))),
    )


class _Wave(Structure):
    _fields_ = (
        ("type", c_char_p),
        ("sample_rate", c_int),
        ("num_samples", c_int),
        ("num_channels", c_int),
        ("samples", POINTER(c_short)),
    )


class _Utterance(Structure):
    _fields_ = (
        ("features", c_void_p),
        ("ffunctions", c_void_p),
        ("relations", c_void_p),
        ("ctx", c_void_p),
    )


class Flite:
    """flite's voices. Raises OSError where the package is not installed."""

    def __init__(self) -> None:
        def load(name: str) -> ctypes.CDLL:
            return ctypes.CDLL(f"libflite{name}.so.1", mode=ctypes.RTLD_GLOBAL)

        self._lib = load("")
        load("_cmulex")
        load("_usenglish")
        self._lib.flite_init()
        self._voices = {}
        for name in VOICES:
            library = load(f"_cmu_us_{name}")
            register = getattr(library, f"register_cmu_us_{name}")
            register.restype, register.argtypes = c_void_p, (c_char_p,)
            self._voices[name] = register(None)
        handle, text = c_void_p, c_char_p
        self._synthesise = self._function("flite_synth_text", handle, text, handle)
        self._delete = self._function("delete_utterance", None, handle)
        self._delete_track = self._function("delete_track", None, handle)
        self._feature = self._function("feat_val", handle, handle, text)
        self._as_track = self._function("val_track", handle, handle)
        self._as_database = self._function("val_cg_db", handle, handle)
        self._wave = self._function("utt_wave", POINTER(_Wave), handle)
        self._smooth = self._function("mlpg", handle, handle, handle)
        self._relation = self._function("utt_relation", handle, handle, text)
        self._head = self._function("relation_head", handle, handle)
        self._next = self._function("item_next", handle, handle)
        self._daughter = self._function("item_daughter", handle, handle)
        self._last = self._function("item_last_daughter", handle, handle)
        self._as = self._function("item_as", handle, handle, text)
        self._previous = self._function("item_prev", handle, handle)
        self._float = self._function("item_feat_float", c_float, handle, text)
        self._string = self._function("item_feat_string", c_char_p, handle, text)

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._lib, name)
        function.restype, function.argtypes = result, arguments
        return function

    def speak(self, voice: str, text: str) -> Spoken:
        """Say ``text``. KeyError for an unknown voice."""
        utterance = self._synthesise(text.encode("ascii"), self._voices[voice])
        try:
            features = _Utterance.from_address(utterance).features
            raw = self._as_track(self._feature(features, b"param_track"))
            smooth = self._smooth(raw, self._as_database(self._feature(features, b"cg_db")))
            try:
                parameters = _matrix(smooth)
            finally:
                self._delete_track(smooth)
            voicing = _matrix(self._as_track(self._feature(features, b"str_track")))
            wave = self._wave(utterance).contents
            samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).astype(np.float32)
            n = min(len(parameters), len(voicing))
            f0 = parameters[:n, 0] * (parameters[:n, 0] > 1)
            words = tuple(self._words(utterance, text))
            return Spoken(
                text, f0, parameters[:n, 1:], voicing[:n], words, samples / np.float32(32768)
            )
        finally:
            self._delete(utterance)

    def _words(self, utterance: int, text: str) -> list[tuple[int, float, float]]:
        """(first character, start, end) of the tokens that are spoken."""
        found, at = [], 0
        token = self._head(self._relation(utterance, b"Token"))
        while token:
            name = self._string(token, b"name").decode("ascii")
            place = text.find(name, at)
            first, last = self._daughter(token), self._last(token)
            if place >= 0:
                at = place + len(name)
                start, end = self._start(first), self._end(last)
                if start is not None and end is not None:
                    found.append((place, start, end))
            token = self._next(token)
        return found

    def _segment(self, word: int | None, step: Any) -> int | None:
        item = self._as(word, b"SylStructure") if word else None
        for _ in range(2):
            item = step(item) if item else None
        return item

    def _start(self, word: int | None) -> float | None:
        item = self._segment(word, self._daughter)
        segment = self._as(item, b"Segment") if item else None
        if not segment:
            return None
        before = self._previous(segment)
        return float(self._float(before, b"end")) if before else 0.0

    def _end(self, word: int | None) -> float | None:
        item = self._segment(word, self._last)
        return float(self._float(item, b"end")) if item else None


def _matrix(track: int) -> Floats:
    content = ctypes.cast(track, POINTER(_Track)).contents
    rows = [
        np.ctypeslib.as_array(content.frames[i], (content.num_channels,))
        for i in range(content.num_frames)
    ]
    return np.array(rows, dtype=np.float32)
