"""What a plain talker sees when it reads speech again: attention to the text, and likelihoods.

Letters: H all heads of a talker, those of the first layer first; n rows of an utterance; L ids of
its text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.reference_fish_s2 import FishS2Reference
from benchmarks.reference_higgs_v2 import HiggsV2Reference
from benchmarks.reference_talker import ReferenceTalker
from streaming.delay import RowLayout
from streaming.ports import Sampling, SpeechRequest
from streaming.spec import Codes
from streaming.word_timing import find_words
from talker.checkpoint import Checkpoint
from talker.engine import TalkerProcessEngine
from talker.families.family import Family
from talker.families.fish_s2 import FishS2
from talker.families.higgs_v2 import HiggsV2, HiggsV2Converted
from talker.families.higgs_v3 import HiggsV3
from talker.prompts import Prompt
from talker.settings import TalkerSettings
from text.registry import FRONT_ENDS

Weights = npt.NDArray[np.float32]
#: The most rows of a sentence.
_MAX_ROWS = 500


class PlainTalker(Protocol):
    """A talker that can read speech again."""

    on_attention: Callable[[int, Tensor, Tensor], None]

    def logits(
        self, ids: tuple[int, ...], rows: Codes, clips: Sequence[tuple[Codes, int]] = ()
    ) -> Tensor:
        """See ``benchmarks.reference_talker.ReferenceTalker``."""


_TALKERS: dict[type[Family], Callable[[Path], Any]] = {
    HiggsV3: ReferenceTalker,
    HiggsV2: HiggsV2Reference,
    HiggsV2Converted: HiggsV2Reference,
    FishS2: FishS2Reference,
}


def plain_talker(checkpoint: Checkpoint) -> PlainTalker:
    """Load a checkpoint's talker in float32. Raises ValueError if its family has no plain one."""
    family = checkpoint.family
    if type(family) not in _TALKERS:
        raise ValueError(f"{family.title} has no plain talker that reads speech again")
    talker: PlainTalker = _TALKERS[type(family)](checkpoint.folder)
    return talker


@dataclass(frozen=True)
class Utterance:
    """A spoken text: its prompt, its rows ``[n, K]``, and how many of them begin a frame."""

    text: str
    prompt: Prompt
    rows: Codes
    frames: int

    @property
    def words(self) -> list[tuple[int, int]]:
        """The words of the text, as (start, end)."""
        return find_words(self.text)

    @property
    def ids_of_words(self) -> list[range]:
        """The ids of each word, counted from the text's first."""
        starts = np.array(self.prompt.text_starts[:-1])
        found: list[range] = []
        for begin, end in self.words:
            inside = np.flatnonzero((starts >= begin) & (starts < end))
            found.append(range(int(inside[0]), int(inside[-1]) + 1) if len(inside) else range(0))
        return found


async def speak(
    checkpoint: Checkpoint, settings: TalkerSettings, texts: Sequence[str], seeds: Sequence[int]
) -> list[Utterance]:
    """Speak each text with each seed by the checkpoint's engine, which is stopped at the end."""
    front = checkpoint.text_frontend
    prompts = checkpoint.prompt_builder(2048, FRONT_ENDS[front] if front else None)
    engine = TalkerProcessEngine(str(checkpoint.folder), settings, front_ends=FRONT_ENDS)
    await engine.start()
    try:
        found: list[Utterance] = []
        for text in texts:
            for seed in seeds:
                request = SpeechRequest(
                    "calibration", text, sampling=Sampling(seed=seed), max_frames=_MAX_ROWS
                )
                pieces = [piece.rows async for piece in engine.generate(request)]
                rows = np.concatenate(pieces)
                frames = int((rows[:, 0] < checkpoint.shape.codebook_size).sum())
                found.append(Utterance(text, prompts.build(text), rows, frames))
        return found
    finally:
        await engine.stop()


@torch.inference_mode()
def attention(talker: PlainTalker, said: Utterance) -> Weights:
    """The weights of all heads from each row to the text's ids, ``[H, n, L]``, which sum to 1."""
    prompt, rows = said.prompt, said.rows
    at = torch.arange(len(prompt.ids) - 1, len(prompt.ids) - 1 + len(rows))
    text = slice(prompt.text_at, prompt.text_at + len(prompt.text_starts) - 1)
    looks: list[Weights] = []

    def see(layer: int, queries: Tensor, keys: Tensor) -> None:
        own = keys[text].repeat_interleave(queries.shape[1] // keys.shape[1], 1)
        scores = torch.einsum("nhd,khd->hnk", queries[at], own) / queries.shape[-1] ** 0.5
        looks.append(scores.softmax(-1).numpy())

    unseen = talker.on_attention
    talker.on_attention = see
    try:
        talker.logits(prompt.ids, rows, prompt.clips)
    finally:
        talker.on_attention = unseen
    return np.concatenate(looks)


@torch.inference_mode()
def likelihoods(
    talker: PlainTalker, said: Utterance, ids: tuple[int, ...], layout: RowLayout
) -> npt.NDArray[np.float64]:
    """Log-likelihood of each frame's codes after the prompt ``ids``: ``[frames]``."""
    scores = talker.logits(ids, said.rows, said.prompt.clips).log_softmax(-1)
    total = np.zeros(said.frames)
    for book in range(scores.shape[1]):
        late = book if layout is RowLayout.DELAYED else 0
        rows = np.arange(min(said.frames, len(said.rows) - late)) + late
        codes = said.rows[rows, book].astype(int)
        total[: len(rows)] += scores[rows, book, codes].numpy()
    return total
