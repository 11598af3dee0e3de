"""Calibration of alignment heads: scores, and the embedded voice with and without its heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.alignment.__main__ import SENTENCES, calibrate
from benchmarks.alignment.reading import Utterance, attention, likelihoods, plain_talker
from benchmarks.alignment.scores import gains, margins, shifted
from benchmarks.reference_fish_s2 import FishS2Reference
from benchmarks.reference_higgs_v2 import HiggsV2Reference
from benchmarks.reference_talker import Chance, ReferenceTalker
from streaming.delay import RowLayout
from talker.checkpoint import Checkpoint, open_checkpoint
from tests.talker import tiny_fish, tiny_v2
from text.registry import FRONT_ENDS

EMBEDDED = Path(__file__).parents[2] / "embedded" / "checkpoint"
FRAME_MS = 40.0


def reading(rows: int, ids: int, ahead: int = 0, sharp: float = 4.0) -> np.ndarray:
    """A head that reads evenly, ``ahead`` ids before the speech: ``[n, L]``."""
    at = np.linspace(0, ids - 1, rows)[:, None] + ahead
    look = np.exp(-sharp * np.abs(np.arange(ids)[None] - at))
    return (look / look.sum(1, keepdims=True)).astype(np.float32)


def test_margin_tells_heads_that_read_from_those_that_do_not() -> None:
    random = np.random.default_rng(0)
    noise = random.dirichlet(np.full(20, 0.05), 50).astype(np.float32)  # sharp, without order
    looks = np.stack([reading(50, 20), reading(50, 20)[::-1], np.full((50, 20), 0.05), noise])
    reads, back, even, sharp = margins(looks.astype(np.float32))
    assert reads > 0.9
    assert back == pytest.approx(-reads, abs=1e-6)
    assert even == pytest.approx(0.0, abs=1e-6)
    assert abs(sharp) < 0.1
    assert margins(reading(50, 20, ahead=2)[None])[0] > 0.6, "the margin does not see this"


def test_gain_is_that_of_the_best_of_all_paths() -> None:
    random = np.random.default_rng(1)
    look = random.dirichlet(np.full(4, 0.5), 5).astype(np.float32)
    score = np.log(0.9 * look * 4 + 0.1)
    paths: list[tuple[int, ...]] = [()]
    for _ in range(5):
        paths = [(*p, i) for p in paths for i in range(4) if not p or i >= p[-1]]
    best = max(sum(score[row, i] for row, i in enumerate(path)) for path in paths)
    assert gains(look[None])[0] == pytest.approx(best / 5 / np.log(4), rel=1e-5)


@pytest.mark.parametrize("shift", [-2, -1, 0, 1, 3])
def test_shift_moves_attention_to_what_is_spoken(shift: int) -> None:
    look = np.eye(8, dtype=np.float32)
    moved = shifted(look, shift)
    assert moved.argmax(1).tolist() == [min(max(0, at - shift), 7) for at in range(8)]
    assert np.allclose(moved.sum(1), 1.0)


@pytest.mark.parametrize("name", ["higgs_v2", "fish_s2"])
def test_plain_talkers_read_what_they_have_spoken(name: str, tmp_path: Path) -> None:
    talker: HiggsV2Reference | FishS2Reference
    if name == "higgs_v2":
        talker, books = HiggsV2Reference(tiny_v2.write_checkpoint(tmp_path), ras=None), 8
    else:
        talker, books = FishS2Reference(tiny_fish.write_checkpoint(tmp_path)), 1
    checkpoint = open_checkpoint(str(tmp_path))
    assert type(plain_talker(checkpoint)) is type(talker)
    prompt = checkpoint.prompt_builder(1024).build("Hello there again.")
    rows = talker.speak(prompt.ids, 20).rows
    said = Utterance("Hello there again.", prompt, rows, len(rows))
    scores = talker.logits(prompt.ids, rows)
    assert scores.shape[:2] == (len(rows), books)
    at = np.arange(books, len(rows))  # after the first rows, which begin one after another
    codes = torch.from_numpy(rows[at, :books].astype(np.int64))
    assert scores[at].gather(2, codes[..., None]).shape[-1] == 1
    size = checkpoint.shape.codebook_size
    assert torch.equal(scores[at, :, :size].argmax(-1), codes)
    looks = attention(talker, said)
    assert looks.shape[1:] == (len(rows), len(prompt.text_starts) - 1)
    assert np.allclose(looks.sum(-1), 1.0, atol=1e-5)
    assert len(likelihoods(talker, said, prompt.ids, checkpoint.shape.layout)) == len(rows)


@pytest.fixture(scope="module")
def spoken() -> tuple[Checkpoint, list[Utterance]]:
    """Three sentences of the embedded voice."""
    torch.set_num_threads(1)
    checkpoint = open_checkpoint(str(EMBEDDED))
    prompts = checkpoint.prompt_builder(2048, FRONT_ENDS[checkpoint.text_frontend or ""])
    talker = ReferenceTalker(checkpoint.folder)
    found = []
    for seed, text in enumerate(SENTENCES[:3]):
        prompt = prompts.build(text)
        rows = talker.speak(prompt.ids, 330, Chance(seed, 0.3)).rows
        frames = int((rows[:, 0] < checkpoint.shape.codebook_size).sum())
        found.append(Utterance(text, prompt, rows, frames))
    return checkpoint, found


def test_calibration_finds_the_heads_that_were_trained_to_align(
    spoken: tuple[Checkpoint, list[Utterance]],
) -> None:
    checkpoint, said = spoken
    found = calibrate(checkpoint, said, FRAME_MS, plain_talker(checkpoint))
    assert checkpoint.shape.layout is RowLayout.DELAYED
    named = {tuple(head) for head in checkpoint.alignment.heads}
    assert named & set(found.heads)
    assert set(found.heads) <= named | {(3, 2, 1)}, "3.2 looks a letter ahead"
    assert found.refusal is None


@pytest.mark.parametrize("layers", [(1, 3), None])
def test_calibration_refuses_a_talker_that_does_not_read_along(
    spoken: tuple[Checkpoint, list[Utterance]], layers: tuple[int, ...] | None
) -> None:
    """The queries of the layers that align, or of all, are shuffled."""
    checkpoint, said = spoken
    talker: Any = plain_talker(checkpoint)
    random = torch.Generator().manual_seed(0)
    for name, weight in talker.weights.items():
        if not name.endswith("q_proj.weight"):
            continue
        if layers is None or int(name.split(".")[2]) in layers:
            order = torch.randperm(weight.numel(), generator=random)
            weight.copy_(weight.flatten()[order].view_as(weight))
    found = calibrate(checkpoint, said, FRAME_MS, talker)
    assert found.refusal is not None
