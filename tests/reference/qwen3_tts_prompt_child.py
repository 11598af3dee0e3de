"""A child process: Qwen3-TTS' prompts by its makers' code, with the transformers it asks for.

``python qwen3_tts_prompt_child.py INSTALLED CHECKPOINT REQUESTS OUTPUTS``, with INSTALLED first in
PYTHONPATH. REQUESTS is a JSON list of the makers' arguments; OUTPUTS, an npz file, gets for each,
by its index, what their talker is given to begin with, ``[N, D]``. To clone, CHECKPOINT has a
``clip.npz`` with ``samples`` and, from the codec's encoder, ``codes`` ``[T, K]``.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from qwen3_tts_child import add_packages
from safetensors.torch import load_file
from transformers import Qwen2Tokenizer  # before the stubs: it looks for librosa's spec
from transformers.audio_utils import mel_filter_bank


class _Begun(Exception):
    """The talker has been given its prompt."""


def mel_filters(*, sr: int, n_fft: int, n_mels: int, fmin: float, fmax: float) -> Any:
    """What librosa's function of these arguments makes."""
    bins = n_fft // 2 + 1
    return mel_filter_bank(bins, n_mels, fmin, fmax, sr, norm="slaney", mel_scale="slaney").T


def import_core(installed: Path) -> dict[str, Any]:
    """Import the makers' model and return its names, without codec and without what it reads audio
    with.
    """
    codec = "qwen_tts.inference.qwen3_tts_tokenizer"
    for name in ("librosa", "librosa.filters", "soundfile", codec):
        sys.modules[name] = ModuleType(name)
    vars(sys.modules["librosa.filters"])["mel"] = mel_filters
    vars(sys.modules[codec])["Qwen3TTSTokenizer"] = None
    add_packages(installed, ["qwen_tts", "inference"])
    add_packages(installed, ["qwen_tts", "core", "models"])
    core = vars(import_module("qwen_tts.core.models"))
    for part in ("configuration", "modeling", "processing"):
        core |= vars(import_module(f"qwen_tts.core.models.{part}_qwen3_tts"))
    return core


def open_wrapper(installed: Path, checkpoint: Path) -> Any:
    """Open the makers' wrapper. Raises RuntimeError unless the file has all of the model's tensors,
    and no others.
    """
    core = import_core(installed)
    wrapper = import_module("qwen_tts.inference.qwen3_tts_model").Qwen3TTSModel
    settings = json.loads((checkpoint / "config.json").read_text())
    config = core["Qwen3TTSConfig"](**settings)
    config._attn_implementation = "eager"
    model = core["Qwen3TTSForConditionalGeneration"](config)
    model.load_state_dict(load_file(checkpoint / "model.safetensors"))
    tokenizer = Qwen2Tokenizer.from_pretrained(str(checkpoint))
    return wrapper(model.eval(), tokenizer, {})


def clone_item(wrapper: Any, checkpoint: Path, request: dict[str, Any]) -> Any:
    """What the makers' ``create_voice_clone_prompt`` makes of the clip, with codes as given."""
    clip = np.load(checkpoint / "clip.npz")
    is_bare = request.pop("x_vector_only_mode")
    item = sys.modules["qwen_tts.inference.qwen3_tts_model"].VoiceClonePromptItem
    return item(
        ref_code=None if is_bare else torch.from_numpy(clip["codes"].astype(np.int64)),
        ref_spk_embedding=wrapper.model.extract_speaker_embedding(clip["samples"], 24_000),
        x_vector_only_mode=is_bare,
        icl_mode=not is_bare,
        ref_text=request.pop("ref_text"),
    )


@torch.inference_mode()
def main() -> None:
    installed, checkpoint, requests, outputs = map(Path, sys.argv[1:])
    wrapper = open_wrapper(installed, checkpoint)
    given: list[np.ndarray] = []

    def begin(*, inputs_embeds: torch.Tensor, **_: Any) -> None:
        given.append(inputs_embeds[0].numpy())
        raise _Begun

    wrapper.model.talker.generate = begin
    for request in json.loads(requests.read_text()):
        if wrapper.model.tts_model_type == "base":
            request["voice_clone_prompt"] = [clone_item(wrapper, checkpoint, request)]
            speak = wrapper.generate_voice_clone
        else:
            speak = getattr(wrapper, f"generate_{wrapper.model.tts_model_type}")
        try:
            speak(**request, non_streaming_mode=True)
        except _Begun:
            continue
        raise AssertionError("the talker was not called")
    prompts: dict[str, Any] = {str(at): prompt for at, prompt in enumerate(given)}
    np.savez(outputs, **prompts)


if __name__ == "__main__":
    main()
