"""The codec as in ``transformers``, scaled down: HiggsAudioV2TokenizerModel.

The class requires torchaudio, but only uses ``functional.resample``. The published builds of
torchaudio cannot be loaded with a CPU build of torch, so this module replaces that function.
"""

from __future__ import annotations

import importlib.machinery
import math
import sys
import types
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.causal import make_causal
from training.quantise import COMPONENTS, LATENT, Quantiser

#: Sizes of the acoustic and the semantic half of a latent.
_ACOUSTIC, _SEMANTIC = 64, LATENT - 64
_RATIOS = [8, 5, 4, 2, 3]
_ZEROS, _ROLLOFF = 6, 0.99


def resample(samples: Tensor, old: int, new: int) -> Tensor:
    """Resample ``[..., n]`` from ``old`` to ``new`` Hz, by a Hann-windowed sinc.

    The formula and its constants (six zero crossings, rolloff .99) are those of torchaudio's
    default, documented with ``torchaudio.functional.resample``.
    """
    common = math.gcd(old, new)
    old, new = old // common, new // common
    base = min(old, new) * _ROLLOFF
    width = math.ceil(_ZEROS * old / base)
    place = torch.arange(-width, width + old, dtype=torch.float64) / old
    t = (-torch.arange(new, dtype=torch.float64) / new)[:, None] + place
    t = (t * base).clamp(-_ZEROS, _ZEROS)
    kernel = torch.sinc(t) * torch.cos(t * math.pi / _ZEROS / 2) ** 2 * base / old
    flat = samples.reshape(-1, 1, samples.shape[-1])
    padded = F.pad(flat, (width, width + old))
    out = F.conv1d(padded, kernel[:, None].to(samples.dtype), stride=old)
    length = math.ceil(new * samples.shape[-1] / old)
    return (
        out.transpose(1, 2).reshape(len(flat), -1)[:, :length].reshape(*samples.shape[:-1], length)
    )


def _stand_in() -> None:
    if "torchaudio" in sys.modules:
        return
    stub = types.ModuleType("torchaudio")
    stub.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    stub.__version__ = "0"  # type: ignore[attr-defined]
    stub.functional = types.SimpleNamespace(resample=resample)  # type: ignore[attr-defined]
    sys.modules["torchaudio"] = stub
    import transformers.utils.import_utils as checks

    checks.is_torchaudio_available = lambda: True
    checks.BACKENDS_MAPPING["torchaudio"] = (checks.is_torchaudio_available, "")


def new_model(decoder_hidden: int, encoder_hidden: int) -> Any:
    """Make a HiggsAudioV2TokenizerModel with fresh weights."""
    _stand_in()
    # from its own module: the top-level package checks what is installed only at its first import
    from transformers import HiggsAudioV2TokenizerConfig
    from transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer import (
        HiggsAudioV2TokenizerModel,
    )

    acoustic = {
        "model_type": "dac",
        "encoder_hidden_size": encoder_hidden,
        "decoder_hidden_size": decoder_hidden,
        "hidden_size": _ACOUSTIC,
        "downsampling_ratios": _RATIOS,
        "upsampling_ratios": _RATIOS,
        "n_codebooks": 9,
        "codebook_size": 1024,
        "codebook_dim": 8,
        "sampling_rate": 16000,
        "hop_length": math.prod(_RATIOS),
    }
    semantic = {
        "model_type": "hubert",
        "hidden_size": _SEMANTIC,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "conv_dim": [16] * 7,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        "mask_time_prob": 0.0,
        "vocab_size": 32,
    }
    model = HiggsAudioV2TokenizerModel(
        HiggsAudioV2TokenizerConfig(
            target_bandwidths=[0.5, 1, 1.5, 2],
            sample_rate=24000,
            codebook_size=1024,
            codebook_dim=LATENT,
            acoustic_model_config=acoustic,
            semantic_model_config=semantic,
        )
    )
    _draw_weights(model)
    return model


def _draw_weights(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Conv1d | torch.nn.ConvTranspose1d | torch.nn.Linear):
            module.reset_parameters()
    for name, parameter in model.named_parameters():
        if name.endswith("alpha"):
            torch.nn.init.ones_(parameter)
    with torch.no_grad():
        model.acoustic_decoder.conv2.weight.mul_(0.1)  # speech starts out quiet
    make_causal(model.acoustic_decoder)


def set_books(model: Any, quantiser: Quantiser) -> None:
    """Set the codebooks, and the projections to the space in which distances are measured, and
    back.
    """
    inwards = torch.eye(LATENT)
    inwards[:COMPONENTS, :COMPONENTS] = quantiser.metric
    with torch.no_grad():
        for layer, book in zip(model.quantizer.quantizers, quantiser.books, strict=True):
            heard = book @ inwards
            layer.codebook.embed.copy_(heard)
            layer.codebook.embed_avg.copy_(heard)
            layer.codebook.cluster_size.fill_(1)
            layer.codebook.inited.fill_(1)
            layer.project_in.weight.copy_(inwards.T)
            layer.project_out.weight.copy_(torch.linalg.inv(inwards).T)
            for projection in (layer.project_in, layer.project_out):
                projection.bias.zero_()
