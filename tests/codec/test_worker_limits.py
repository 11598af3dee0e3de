"""The codec worker's limits, by device and settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from codec.families import open_codec
from codec.stream_decoder import StreamDecoder
from codec.worker import _limits, _options
from streaming.gpu_limits import CPU_CODEC, CodecLimits, codec_limits
from streaming.window import DecodeWindow
from tests.codec.fish_checkpoint import write_codec_safetensors
from tests.codec.qwen3_tts_checkpoint import write_codec

GB = 10**9


@pytest.mark.parametrize("write", [write_codec_safetensors, write_codec])
def test_limits_follow_the_device_unless_set(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    decoder = open_codec(str(tmp_path)).load_decoder()
    assert isinstance(decoder, StreamDecoder)
    frames = decoder.spec.left_frames + 10
    codes = np.zeros((decoder.spec.num_codebooks, frames), np.int16)
    decoder.decode_windows([DecodeWindow(codes, 0, frames, 0)])
    assert decoder.cache.total_size == decoder.state_bytes, "what a stream takes"

    def found(device: str, *given: str) -> CodecLimits:
        options = _options(["--socket", "0", "--model", "m", *given])
        return _limits(options, device, decoder)

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (28 * GB, 141 * GB))
    on_gpu = codec_limits(141 * GB, 28 * GB, decoder.state_bytes)
    assert found("cpu") == CPU_CODEC
    assert found("cuda:1") == on_gpu
    assert found("cuda", "--max-batch", "3") == CodecLimits(3, on_gpu.cache_bytes)
    assert found("cuda", "--state-bytes", "0") == CodecLimits(on_gpu.max_batch, 0)
