"""The Fish codec against its original implementation, as shipped in vLLM-Omni.

Both load one ``codec.pth`` of random weights in the published format. The reference rounds its
rotary embedding to bfloat16, as in training; the rest is float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from vllm_omni.model_executor.models.fish_speech.dac_modules import (  # type: ignore[import-not-found]
    DAC,
    DownsampleResidualVectorQuantize,
    ModelArgs,
    WindowLimitedTransformer,
)

from codec.checkpoint import find_sources, merged, weight_norm_names
from codec.families.fish.config import FishConfig, decoder_shapes, encoder_shapes
from codec.families.fish.decoder import FishDecoder
from codec.families.fish.encoder import FishEncoder
from codec.window_transformer import TransformerSizes
from streaming.window import SlidingWindowChunker
from tests.codec.fish_checkpoint import published_state

#: The reference uses the deprecated form of weight norm.
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
#: Difference of samples within [-1, 1] due to the order of float32 sums.
ROUNDING = 1e-5
#: Heads of 64 and the encoder's window of 512 are fixed in the reference; all other sizes are
#: small.
SIZES = FishConfig(
    semantic_size=64, residual_size=16, residual_books=9, dim=128, layers=2, head_dim=64,
    feed_forward=96, window=8, decoder_dim=48, decoder_rates=(4, 2, 2), encoder_dim=16,
    encoder_rates=(2, 2, 4), encoder_layers=2, encoder_head_dim=64, encoder_window=512,
)  # fmt: skip
#: Positions allocated by the reference: no sequence here is longer.
POSITIONS = 4096
FRAMES = 90


def transformer(sizes: TransformerSizes, **more: Any) -> Any:
    arguments = {
        "n_layer": sizes.layers, "n_head": sizes.heads, "dim": sizes.dim,
        "intermediate_size": sizes.feed_forward,
    }  # fmt: skip
    return ModelArgs(block_size=POSITIONS, head_dim=64, rope_base=10_000, **(arguments | more))


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return published_state(SIZES)


@pytest.fixture(scope="module")
def reference(state: dict[str, torch.Tensor]) -> Any:
    def around() -> Any:
        return WindowLimitedTransformer(
            causal=True, window_size=SIZES.window, input_dim=SIZES.dim,
            config=transformer(SIZES.transformer),
        )  # fmt: skip

    quantizer = DownsampleResidualVectorQuantize(
        input_dim=SIZES.dim, n_codebooks=SIZES.residual_books, codebook_size=SIZES.residual_size,
        codebook_dim=SIZES.codebook_dim, quantizer_dropout=0.0, downsample_factor=[2, 2],
        pre_module=around(), post_module=around(), semantic_codebook_size=SIZES.semantic_size,
    )  # fmt: skip
    model = DAC(
        encoder_dim=SIZES.encoder_dim, encoder_rates=list(SIZES.encoder_rates),
        decoder_dim=SIZES.decoder_dim, decoder_rates=list(SIZES.decoder_rates),
        quantizer=quantizer, sample_rate=SIZES.sample_rate, causal=True,
        encoder_transformer_layers=[0, 0, SIZES.encoder_layers],
        decoder_transformer_layers=[SIZES.encoder_layers, 0, 0],
        transformer_general_config=lambda **own: transformer(SIZES.encoder_transformer, **own),
    )  # fmt: skip
    weights = {k: v for k, v in state.items() if not k.endswith(("freqs_cis", "causal_mask"))}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all(name.endswith(("freqs_cis", "causal_mask")) for name in missing)
    return model.eval()


@pytest.fixture(scope="module")
def tensors(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    shapes = decoder_shapes(SIZES) | encoder_shapes(SIZES)
    sources = find_sources(shapes, weight_norm_names, state.__contains__)
    return {key: merged([state[name] for name in parts]) for key, parts in sources.items()}


def drawn_codes(frames: int = FRAMES) -> np.ndarray:
    random = np.random.default_rng(7)
    sizes = SIZES.spec().codebook_sizes
    return np.stack([random.integers(0, size, frames) for size in sizes]).astype(np.int16)


@torch.inference_mode()
def decoded(reference: Any, codes: np.ndarray) -> np.ndarray:
    wanted = torch.from_numpy(codes.astype(np.int64))[None]
    latents = reference.quantizer.decode(wanted)
    return np.asarray(reference.decoder(latents)[0, 0].numpy())


def test_fish_decoder_equals_reference(reference: Any, tensors: dict[str, torch.Tensor]) -> None:
    codes = drawn_codes()
    right = decoded(reference, codes)
    made = FishDecoder(SIZES, tensors).decode([codes])[0]
    assert right.std() > 0.05
    assert made.shape == right.shape
    assert np.abs(made - right).max() < ROUNDING


def test_fish_decoder_in_chunks_equals_reference(
    reference: Any, tensors: dict[str, torch.Tensor]
) -> None:
    codes, decoder, spec = drawn_codes(), FishDecoder(SIZES, tensors), SIZES.spec()
    chunker = SlidingWindowChunker(spec.left_frames, spec.history_frames)
    chunker.push(np.ascontiguousarray(codes.T))
    chunker.finish()
    parts = []
    while chunker.pending:
        window = chunker.take(min(7, chunker.pending), 0)
        parts.append(decoder.decode_windows([window])[0])
    assert np.abs(np.concatenate(parts) - decoded(reference, codes)).max() < ROUNDING


def test_fish_encoder_equals_reference(reference: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Both run in float64: rounding would decide between code vectors at nearly equal distance."""
    samples = np.random.default_rng(3).normal(0, 0.1, SIZES.hop_length * 60).astype(np.float32)
    double = reference.double()
    with torch.inference_mode():
        right = double.encode(torch.from_numpy(samples).double()[None, None])[0][0].numpy()
    reference.float()
    made = FishEncoder(SIZES, tensors, dtype=torch.float64).encode(samples)
    assert made.shape == right.shape
    assert len(np.unique(right)) > 8
    assert np.array_equal(made, right)
