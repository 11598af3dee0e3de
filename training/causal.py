"""Makes the codec's decoder causal: no sample depends on a later frame.

The format's convolutions look as far ahead as back. A decoder trained that way gives other samples
in a stream, where the next frames are not known yet, than with the whole utterance. So the taps
that look ahead are left out here and are zeros in the checkpoint. The format does not record this;
``codec.families.higgs.decoder`` finds the zeros and skips them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Convolution(nn.Conv1d):
    """A convolution with only the middle tap and those that look back."""

    def forward(self, x: Tensor) -> Tensor:
        kept, dilation = self.kernel_size[0] // 2 + 1, self.dilation[0]
        x = F.pad(x, (dilation * (kept - 1), 0))
        return F.conv1d(x, self.weight[..., :kept], self.bias, dilation=dilation)


class _Upsampling(nn.ConvTranspose1d):
    """A transposed convolution without the taps by which an input affects earlier outputs."""

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        stride, first = self.stride[0], int(self.padding[0])
        made = F.conv_transpose1d(x, self.weight[..., first:], self.bias, stride=stride)
        return made[..., : x.shape[-1] * stride]


def make_causal(decoder: nn.Module) -> None:
    """Make ``decoder`` (``acoustic_decoder``) look back only, whatever weights it has."""
    for layer in decoder.modules():
        if isinstance(layer, nn.Conv1d) and layer.kernel_size[0] > 1:
            layer.__class__ = _Convolution
        elif isinstance(layer, nn.ConvTranspose1d):
            layer.__class__ = _Upsampling
    decoder.register_load_state_dict_post_hook(lambda module, _: _silence(module))
    _silence(decoder)


@torch.no_grad()
def _silence(decoder: nn.Module) -> None:
    """Set the unused taps to zero. They stay zero, since no gradient reaches them."""
    for layer in decoder.modules():
        if isinstance(layer, _Convolution):
            layer.weight[..., layer.kernel_size[0] // 2 + 1 :] = 0
        elif isinstance(layer, _Upsampling):
            layer.weight[..., : int(layer.padding[0])] = 0
