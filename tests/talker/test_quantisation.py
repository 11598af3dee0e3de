"""8-bit quantisation: vLLM's settings, rounding of weights, and a real quantised engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.quantisation import (
    SCHEMES,
    FakeQuantTalker,
    Scheme,
    Spoken,
    fake_fp8,
    fake_int8,
    measure,
    odds,
)
from benchmarks.reference_talker import ReferenceTalker
from ipc.supervisor import ChildFailed
from talker.checkpoint import open_checkpoint
from talker.settings import TalkerSettings, check_preset, quantization_method
from tests.talker.harness import GREEDY, hear, running, text

KNOWN = frozenset({"fp8_per_channel"})


def test_presets_map_to_vllm_methods() -> None:
    assert quantization_method(TalkerSettings().quantization) is None
    assert quantization_method("fp8") == "fp8_per_channel"
    for preset in ("none", "int8"):
        check_preset(preset, None, frozenset())
    check_preset("fp8", 89, KNOWN)


@pytest.mark.parametrize(
    ("capability", "methods", "words"),
    [(None, KNOWN, "needs a GPU"), (86, KNOWN, r"has 8\.6"), (90, frozenset(), "newer vLLM")],
)
def test_fp8_is_refused_on_unsupported_device_or_vllm(
    capability: int | None, methods: frozenset[str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        check_preset("fp8", capability, methods)


def test_fake_quantisation_matches_rounding_by_hand() -> None:
    row = torch.tensor([[0.0, 1.0, -2.54, 0.011]])  # a step is 0.02
    assert torch.allclose(fake_int8(row), torch.tensor([[0.0, 1.0, -2.54, 0.02]]))
    assert torch.equal(fake_int8(torch.zeros(2, 3)), torch.zeros(2, 3))
    # the scale is 1; e4m3 has 3 mantissa bits, so 17.1 lies between 16 and 18
    assert fake_fp8(torch.tensor([[448.0, 17.1, -5.0]])).tolist() == [[448.0, 18.0, -5.0]]


def test_reference_logits_match_drawn_rows(tiny_checkpoint: Path) -> None:
    """In one teacher-forced pass, the best codes are those that were drawn step by step."""
    ids = (1, 5, 9, 2, 40)
    talker = ReferenceTalker(tiny_checkpoint)
    rows = talker.speak(ids, 30).rows
    logits = talker.logits(ids, rows)[..., :1024]
    real = rows < 1024
    assert real.sum() > 100
    assert np.array_equal(logits.argmax(-1).numpy()[real], rows[real])
    got = odds(talker, Spoken(ids, rows))
    assert got.shape == (real.sum(), 1024)
    assert torch.allclose(got.exp().sum(-1), torch.ones(len(got)))


def test_coarser_rounding_diverges_more(tiny_checkpoint: Path) -> None:
    spoken = [Spoken((1, 5, 9), ReferenceTalker(tiny_checkpoint).speak((1, 5, 9), 30).rows)]
    nothing = Scheme("nothing", lambda x: x, None)
    halves = Scheme("two steps", lambda x: fake_int8(x / 64).sign() * x.abs().mean(), None)
    talkers = {s.name: FakeQuantTalker(tiny_checkpoint, s) for s in (nothing, SCHEMES[0], halves)}
    same, int8, coarse = measure(tiny_checkpoint, spoken, talkers)
    assert (same.changed, same.kl_mean) == (0, 0)
    assert 0 < int8.kl_mean < 0.1 * coarse.kl_mean
    assert int8.changed < coarse.changed


def test_int8_weights_match_simulation() -> None:
    quantise = pytest.importorskip("talker.quantisation").quantise
    weight = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    weight[2] = 0
    codes, scale = quantise(weight)
    assert (codes.dtype, scale.shape) == (torch.int8, (6, 1))
    assert torch.equal(codes * scale, fake_int8(weight))


@pytest.mark.long
@pytest.mark.slow
async def test_int8_engine_mostly_matches_simulation(tiny_checkpoint: Path) -> None:
    """oneDNN's INT8 through vLLM, against rounding by hand in a plain loop.

    An input about halfway between two steps may be rounded either way, so a few streams may differ.
    """
    if not torch.cpu._is_avx512_supported():
        pytest.skip("without VNNI oneDNN adds products in 16 bits, which saturate")
    checkpoint = open_checkpoint(str(tiny_checkpoint))
    prompts = checkpoint.prompt_builder(1024)
    simulated, exact = (
        FakeQuantTalker(tiny_checkpoint, SCHEMES[0]),
        ReferenceTalker(tiny_checkpoint),
    )
    as_simulated = as_exact = 0
    async with running(tiny_checkpoint, quantization="int8") as engine:
        for number in range(12):
            ids = prompts.build(text(number)).ids
            heard = await hear(engine, text(number), GREEDY, rows=24)
            as_simulated += heard.same(simulated.speak(ids, 24))
            as_exact += heard.same(exact.speak(ids, 24))
    assert as_simulated >= 9
    assert as_exact < as_simulated


@pytest.mark.slow
async def test_fp8_start_on_cpu_fails_with_reason(tiny_checkpoint: Path) -> None:
    with pytest.raises(ChildFailed, match="'fp8' needs a GPU"):
        async with running(tiny_checkpoint, quantization="fp8"):
            pass
