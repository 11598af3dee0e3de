"""The DualFFN layer on vLLM's Llama layer. Attention is shared; norms and MLP depend on whether a
position is audio (a generated row, a reference row, AUDIO_INIT) or text.

Both norms are one computation with different gains. On a CPU each MLP runs for its own positions
only, so a decoding step reads only the audio MLPs. On a GPU shapes must not depend on the
positions' kinds, since vLLM captures a step as a graph, and a prompt's one-token chunk runs through
the graph of a decode. There both MLPs run for all positions, and the result is selected, which is
exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaMLP


class Route(nn.Module):
    """The mask of a step's audio positions, shared by all layers. It stays at one address, since a
    CUDA graph reads it. With ``is_split`` the indices of audio and text positions are kept too.
    """

    is_audio: Tensor

    def __init__(self, max_tokens: int, *, is_split: bool) -> None:
        super().__init__()
        self.is_split = is_split
        mask = torch.zeros(max_tokens, dtype=torch.bool)
        self.register_buffer("is_audio", mask, persistent=False)
        self._text_at = torch.zeros(0, dtype=torch.long)
        self._audio_at = torch.zeros(0, dtype=torch.long)

    def set(self, is_audio: Tensor) -> None:
        """Set this step's mask ``[N]``."""
        self.is_audio[: len(is_audio)] = is_audio
        if self.is_split:
            self._audio_at = is_audio.nonzero()[:, 0]
            self._text_at = (~is_audio).nonzero()[:, 0]

    def feed(self, x: Tensor, text: nn.Module, audio: nn.Module) -> Tensor:
        """Run ``[N, D]`` through each position's own MLP."""
        count = x.shape[0]
        text_at = self._text_at
        audio_at = self._audio_at
        if not self.is_split or len(text_at) + len(audio_at) != count:  # or in a warm-up
            return torch.where(self.is_audio[:count, None], audio(x), text(x))
        if not len(text_at):
            only: Tensor = audio(x)
            return only
        if not len(audio_at):
            only = text(x)
            return only
        out = torch.empty_like(x)
        out[text_at], out[audio_at] = text(x[text_at]), audio(x[audio_at])
        return out


class DualFFNLayer(LlamaDecoderLayer):  # type: ignore[misc]  # untyped base
    """A Llama layer with DualFFN; ``route`` is set by the model."""

    route: Route

    def __init__(self, vllm_config: Any, prefix: str = "", config: Any = None) -> None:
        super().__init__(vllm_config, prefix, config)
        config = config or vllm_config.model_config.hf_config
        self.audio_mlp = LlamaMLP(
            self.hidden_size,
            config.intermediate_size,
            config.hidden_act,
            quant_config=self.get_quant_config(vllm_config),
            prefix=f"{prefix}.audio_mlp",
        )
        self.audio_input_layernorm = RMSNorm(self.hidden_size, eps=config.rms_norm_eps)
        self.audio_post_attention_layernorm = RMSNorm(self.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, positions: Tensor, hidden_states: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """See LlamaDecoderLayer."""
        is_audio = self.route.is_audio[: hidden_states.shape[0], None]
        residual = hidden_states if residual is None else hidden_states + residual
        x = _norm(residual, is_audio, self.input_layernorm, self.audio_input_layernorm)
        residual = residual + self.self_attn(positions=positions, hidden_states=x)
        x = _norm(
            residual,
            is_audio,
            self.post_attention_layernorm,
            self.audio_post_attention_layernorm,
        )
        return self.route.feed(x, self.mlp, self.audio_mlp), residual


def _norm(x: Tensor, is_audio: Tensor, text: RMSNorm, audio: RMSNorm) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + text.variance_epsilon)
    return scaled.to(x.dtype) * torch.where(is_audio, audio.weight, text.weight)
