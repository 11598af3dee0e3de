"""Codecs of their published sizes with random weights, which cost as much as real ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from codec.families.fish import config as fish
from codec.families.fish.decoder import FishDecoder
from codec.families.higgs.config import CodecConfig
from codec.families.higgs.decoder import HiggsDecoder
from codec.families.higgs.tensors import decoder_shapes
from codec.families.qwen3_tts import config as qwen3_tts
from codec.families.qwen3_tts.decoder import Qwen3TTSDecoder
from streaming.ports import CodecDecoder


def random_tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Draw random weights by name, scaled so that outputs keep their magnitude."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in shapes.items():
        fan_in = max(1, int(np.prod(shape[1:])))
        tensors[name] = torch.randn(shape, generator=generator) * 0.3 / fan_in**0.5
        if name.endswith(("alpha", "norm.weight", "cluster_usage")):
            tensors[name] = torch.ones(shape)
    return tensors


def random_decoder(device: str = "cpu", family: str = "higgs") -> CodecDecoder:
    """Make a decoder of a family's published sizes."""
    if family == "higgs":
        config = CodecConfig()
        return HiggsDecoder(config, random_tensors(decoder_shapes(config)), device=device)
    if family == "qwen3_tts":
        full = qwen3_tts.Qwen3TTSCodecConfig()
        tensors = random_tensors(qwen3_tts.decoder_shapes(full))
        return Qwen3TTSDecoder(full, tensors, device=device)
    sizes = fish.FishConfig()
    return FishDecoder(sizes, random_tensors(fish.decoder_shapes(sizes)), device=device)
