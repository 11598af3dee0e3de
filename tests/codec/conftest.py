"""Decoders and codes shared by the codec's tests. Only fixtures that need torch import it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from streaming.spec import Codes

if TYPE_CHECKING:
    import torch

    from codec.families.higgs.config import CodecConfig
    from codec.families.higgs.decoder import HiggsDecoder

CHECKPOINT = Path(__file__).parents[2] / "embedded" / "checkpoint"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Limit torch to a thread, if a collected module has imported it."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return CHECKPOINT


@pytest.fixture(scope="session")
def config(checkpoint: Path) -> CodecConfig:
    from codec.families.higgs.checkpoint import open_higgs

    return open_higgs(str(checkpoint)).config


@pytest.fixture(scope="session")
def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    from codec.families.higgs.checkpoint import open_higgs

    return open_higgs(str(checkpoint)).decoder_tensors()


@pytest.fixture(scope="session")
def decoder(checkpoint: Path) -> HiggsDecoder:
    from codec.families.higgs.checkpoint import open_higgs

    return open_higgs(str(checkpoint)).load_decoder()


def random_tensors(config: CodecConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights that keep the signal's size about the same from layer to layer."""
    import torch

    from codec.families.higgs.tensors import decoder_shapes

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in decoder_shapes(config).items():
        if name.endswith("alpha"):
            tensors[name] = torch.rand(shape, generator=generator) + 0.5
        else:
            fan_in = max(1, int(np.prod(shape[1:])))
            gain = 0.2 if "res_unit" in name else 0.8
            tensors[name] = torch.randn(shape, generator=generator) * gain / fan_in**0.5
    return tensors


@pytest.fixture(scope="session")
def make_tensors() -> Callable[[CodecConfig], dict[str, torch.Tensor]]:
    return random_tensors


@pytest.fixture(scope="session")
def looking_ahead(config: CodecConfig) -> HiggsDecoder:
    """A decoder of the embedded codec's size with random weights. Its convolutions look ahead, ten
    frames in all, as those of the published codec do.
    """
    from codec.families.higgs.decoder import HiggsDecoder

    return HiggsDecoder(config, random_tensors(config))


@pytest.fixture(scope="session")
def tiny() -> CodecConfig:
    """A codec small enough to save, rename and load many times in a test."""
    from codec.families.higgs.config import CodecConfig

    return CodecConfig(
        num_codebooks=3,
        codebook_size=16,
        codebook_dim=4,
        quantizer_dim=10,
        latent_dim=6,
        decoder_dim=16,
        ratios=(3, 2),
    )


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def random_codes(rng: np.random.Generator) -> Callable[..., Codes]:
    def make(frames: int, num_codebooks: int = 8, size: int = 1024) -> Codes:
        return rng.integers(0, size, (num_codebooks, frames)).astype(np.int16)

    return make


@pytest.fixture(scope="session")
def speech_codes() -> Codes:
    """Codes of speech ``[8, 40]``, for which the embedded decoder was trained.

    Random codes drive it so hard that float32 loses two digits.
    """
    with np.load(Path(__file__).parent / "data" / "speech_codes.npz", allow_pickle=False) as file:
        return file["utterance_0"][:, :40].astype(np.int16)


@pytest.fixture(scope="session")
def windows_of() -> Callable:
    """Cut codes ``[K, T]`` into windows with chunks of the given sizes, in turn."""
    from streaming.window import DecodeWindow

    def cut(codes: Codes, sizes: list[int], left: int, lookahead: int) -> list[DecodeWindow]:
        windows, first, total, turn = [], 0, codes.shape[1], 0
        while first < total:
            last = min(total, first + sizes[turn % len(sizes)])
            start, stop = max(0, first - left), min(total, last + lookahead)
            windows.append(
                DecodeWindow(
                    np.ascontiguousarray(codes[:, start:stop]),
                    first - start,
                    last - first,
                    stop - last,
                    first,
                    stop == last == total,
                )
            )
            first, turn = last, turn + 1
        return windows

    return cut
