"""Makes the codec's decoder causal: no sample depends on a later frame.

The format's convolutions look as far ahead as they look back. A decoder that was taught with all
of that says something else in a stream, where the next frames are not known yet, than it would
have said with the whole utterance in hand. So the taps that look ahead are left out here and are
zeros in the checkpoint. The format knows nothing of that; ``codec.families.higgs.decoder`` finds
the zeros and leaves their work out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Convolution(nn.Conv1d):
    """With the middle tap and those that look back alone."""

    def forward(self, x: Tensor) -> Tensor:
        kept, dilation = self.kernel_size[0] // 2 + 1, self.dilation[0]
        x = F.pad(x, (dilation * (kept - 1), 0))
        return F.conv1d(x, self.weight[..., :kept], self.bias, dilation=dilation)


class _Upsampling(nn.ConvTranspose1d):
    """Without the taps by which an input is heard before its own place."""

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        stride, first = self.stride[0], int(self.padding[0])
        made = F.conv_transpose1d(x, self.weight[..., first:], self.bias, stride=stride)
        return made[..., : x.shape[-1] * stride]


def make_causal(decoder: nn.Module) -> None:
    """Let ``decoder`` (``acoustic_decoder``) look back alone, whatever weights it is given."""
    for layer in decoder.modules():
        if isinstance(layer, nn.Conv1d) and layer.kernel_size[0] > 1:
            layer.__class__ = _Convolution
        elif isinstance(layer, nn.ConvTranspose1d):
            layer.__class__ = _Upsampling
    decoder.register_load_state_dict_post_hook(lambda module, _: _silence(module))
    _silence(decoder)


@torch.no_grad()
def _silence(decoder: nn.Module) -> None:
    """Make the taps that are left out zero. No gradient reaches them: they stay so."""
    for layer in decoder.modules():
        if isinstance(layer, _Convolution):
            layer.weight[..., layer.kernel_size[0] // 2 + 1 :] = 0
        elif isinstance(layer, _Upsampling):
            layer.weight[..., : int(layer.padding[0])] = 0
