"""Whisper with transformers, from a local folder: no downloads, and no code from the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import soxr

from streaming.spec import Samples

RATE = 16_000


class ModelError(Exception):
    """The folder holds no Whisper model. The text is for operators."""


def check_folder(folder: Path) -> None:
    """Raise ModelError unless ``folder`` looks like a Whisper model in safetensors. Cheap."""
    try:
        kind = json.loads((folder / "config.json").read_text()).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{folder} has no config.json that can be read") from error
    if kind != "whisper":
        raise ModelError(f"{folder} holds a model of type {kind!r}, not whisper")
    if not list(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} has no weights in safetensors")


class Whisper:
    """Transcribes one clip of at most 30 s at a time. Raises ModelError for a model that cannot be
    loaded and for a device that does not exist. See ``asr.engine`` for ``device`` and ``dtype``.
    """

    def __init__(self, folder: Path, device: str = "auto", dtype: str = "auto") -> None:
        check_folder(folder)
        import torch
        from transformers import (
            AutoTokenizer,
            WhisperFeatureExtractor,
            WhisperForConditionalGeneration,
        )

        self._torch = torch
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if dtype == "auto":
            dtype = "float32" if device == "cpu" else "float16"
        self._to: dict[str, Any] = {"device": device, "dtype": getattr(torch, dtype)}
        options: dict[str, Any] = {"local_files_only": True}
        try:
            self._extract = WhisperFeatureExtractor.from_pretrained(folder, **options)
            self._tokenizer = AutoTokenizer.from_pretrained(folder, **options)
            self._model = WhisperForConditionalGeneration.from_pretrained(
                folder, use_safetensors=True, dtype=self._to["dtype"], **options
            ).eval()
            self._model.to(device)
        except (OSError, ValueError, KeyError, AssertionError, RuntimeError) as error:
            raise ModelError(f"{folder} cannot be loaded: {error}") from error

    def hear(self, samples: Samples, sample_rate: int) -> str:
        """Return the words of ``[n]`` samples. The model detects the language."""
        audio = soxr.resample(samples, sample_rate, RATE, quality="HQ")
        features = self._extract(audio, sampling_rate=RATE, return_tensors="pt").input_features
        with self._torch.inference_mode():
            ids = self._model.generate(features.to(**self._to))
        text: str = self._tokenizer.decode(ids[0], skip_special_tokens=True)
        return text.strip()
