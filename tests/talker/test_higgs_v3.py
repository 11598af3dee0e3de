"""Higgs Audio v3 with the sampler rules of the published model, not of the embedded voice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from safetensors.torch import save_file

from streaming.delay import DelayReverter
from talker.checkpoint import open_checkpoint
from tests.talker import tiny
from tests.talker.harness import MAX_ROWS, Oracle, hear, running, text, warm


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint without generation config, in which higher codebooks often draw EOC."""
    folder = tiny.write_checkpoint(tmp_path_factory.mktemp("tiny-v3"))
    made = tiny.weights()
    table = made["tied.embedding.modality_embeddings.0.embedding.weight"]
    for book in (2, 5):
        table[book * tiny.CODES + tiny.EOC] *= 3.0
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "generation_config.json").unlink()
    return folder


def test_open_checkpoint_applies_family_sampler_rules(published: Path) -> None:
    opened = open_checkpoint(str(published))
    assert opened.sampler_rules == {"end_codebooks": tiny.BOOKS}
    assert opened.has_continuity
    assert not opened.warnings


def test_embedded_voice_ends_by_first_codebook_only() -> None:
    opened = open_checkpoint(str(Path(__file__).parents[2] / "embedded" / "checkpoint"))
    assert opened.sampler_rules == {"end_codebooks": 1}


@pytest.mark.slow
async def test_any_codebook_ends_stream_without_incomplete_frame(published: Path) -> None:
    oracle = Oracle(published)
    draws = [warm(i, temperature=0.8) for i in range(8)]
    wanted = [oracle.speak(text(i), draw) for i, draw in enumerate(draws)]
    ended = [rows.rows for rows in wanted if rows.finish == "stop"]
    firsts = [(rows == tiny.EOC).argmax(axis=0) for rows in ended]
    by_higher = [first for first in firsts if first[0] == first[2]]
    assert by_higher, "no higher codebook ended a stream: this tests nothing"
    async with running(published, engine="inprocess") as engine:
        heard = await asyncio.gather(
            *(hear(engine, text(i), draw, rows=MAX_ROWS) for i, draw in enumerate(draws))
        )
    assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * 8
    for rows in ended:
        # the ramp may begin in the middle of frames, none of which is played
        frames = DelayReverter(tiny.BOOKS, 1024).push_rows(rows)
        first = int((rows >= tiny.EOC).any(axis=1).argmax())
        assert first - tiny.BOOKS < len(frames) <= first
        assert (frames < 1024).all()
