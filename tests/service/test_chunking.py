from __future__ import annotations

import pytest

from service.chunking import schedule_settings
from service.settings import Settings
from streaming.spec import CodecSpec
from streaming.wire import ChunkingOptions

SPEC = CodecSpec(24_000, 960, 8, 1024, 10)


def test_the_defaults_come_from_the_settings_and_the_codec() -> None:
    made = schedule_settings(Settings(), SPEC)
    assert (made.left_context_frames, made.delay_rows, made.frame_s) == (10, 7, 0.04)
    assert (made.first_lookahead_frames, made.lookahead_frames) == (2, 4)
    assert made.first_chunk_frames is None
    assert schedule_settings(Settings(left_context_frames=3), SPEC).left_context_frames == 3


def test_the_first_lookahead_may_be_incomplete_unless_somebody_wants_to_be_exact() -> None:
    def incomplete(wish: ChunkingOptions | None = None, **mine: object) -> int:
        return schedule_settings(Settings(**mine), SPEC, wish).incomplete_frames

    assert incomplete() == 2
    assert incomplete(first_lookahead_frames=4, lookahead_frames=10) == 4
    assert incomplete(first_lookahead_frames=10, lookahead_frames=10) == 0
    assert incomplete(incomplete_lookahead=False) == 0
    for wish in ({"lookahead_frames": 4}, {"first_lookahead_frames": 2}):
        assert incomplete(ChunkingOptions(**wish)) == 0
    inert = CodecSpec(24_000, 960, 8, 1024, 10, inert_codebooks=7)
    assert schedule_settings(Settings(), inert).incomplete_frames == 0, "all are complete at once"


@pytest.mark.parametrize(
    ("wish", "first", "later"),
    [
        (ChunkingOptions(lookahead_frames=10), 10, 10),
        (ChunkingOptions(lookahead_frames=10, first_lookahead_frames=1), 1, 10),
        (ChunkingOptions(lookahead_frames=0), 0, 0),
        (ChunkingOptions(first_lookahead_frames=9), 4, 4),
    ],
)
def test_a_wish_for_lookahead_counts_from_the_first_chunk(
    wish: ChunkingOptions, first: int, later: int
) -> None:
    made = schedule_settings(Settings(), SPEC, wish)
    assert (made.first_lookahead_frames, made.lookahead_frames) == (first, later)


def test_a_clients_wishes_win() -> None:
    wish = ChunkingOptions(first_chunk_frames=9, max_chunk_frames=6, left_context_frames=0)
    made = schedule_settings(Settings(first_chunk_frames=2), SPEC, wish)
    assert (made.first_chunk_frames, made.max_chunk_frames, made.left_context_frames) == (6, 6, 0)
    assert schedule_settings(Settings(first_chunk_frames=2), SPEC).first_chunk_frames == 2
