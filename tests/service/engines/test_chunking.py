from __future__ import annotations

from typing import Any

import pytest

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.audio.formats import AudioFormat
from service.build import assemble
from service.contexts.options import SpeechOptions, own_chunk_frames, session_settings
from service.engines.chunking import schedule_settings
from service.engines.contracts import Engines
from service.settings import Settings
from streaming.chunk_schedule import ChunkSchedule, PaceBounds
from streaming.delay import RowLayout
from streaming.errors import RequestError
from streaming.protocol.messages import ChunkingOptions
from streaming.spec import CodecSpec

SPEC = CodecSpec(24_000, 960, (1024,) * 8, 10, 10)


def test_schedule_defaults_come_from_settings_and_codec() -> None:
    made = schedule_settings(Settings(), SPEC)
    assert (made.left_context_frames, made.delay_rows, made.frame_s) == (10, 7, 0.04)
    assert (made.first_lookahead_frames, made.lookahead_frames) == (2, 4)
    assert made.first_chunk_frames is None
    assert schedule_settings(Settings(left_context_frames=3), SPEC).left_context_frames == 3


def test_first_lookahead_is_incomplete_unless_exactness_is_requested() -> None:
    def incomplete(wish: ChunkingOptions | None = None, **mine: Any) -> int:
        return schedule_settings(Settings(**mine), SPEC, wish).incomplete_frames

    assert incomplete() == 2
    assert incomplete(first_lookahead_frames=4, lookahead_frames=10) == 4
    assert incomplete(first_lookahead_frames=10, lookahead_frames=10) == 0
    assert incomplete(incomplete_lookahead=False) == 0
    for wish in ({"lookahead_frames": 4}, {"first_lookahead_frames": 2}):
        assert incomplete(ChunkingOptions(**wish)) == 0
    inert = CodecSpec(24_000, 960, (1024,) * 8, 10, 10, inert_codebooks=7)
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
def test_requested_lookahead_applies_from_first_chunk(
    wish: ChunkingOptions, first: int, later: int
) -> None:
    made = schedule_settings(Settings(), SPEC, wish)
    assert (made.first_lookahead_frames, made.lookahead_frames) == (first, later)


@pytest.mark.parametrize(
    ("chosen", "frames"),
    [
        ({}, None),
        ({"max_lead_ms": 10_000}, None),
        ({"max_lead_ms": 1}, 1),
        ({"max_lead_ms": 300}, 7),
        ({"chunking": ChunkingOptions(chunk_ms=1)}, 1),
        ({"chunking": ChunkingOptions(max_chunk_frames=1)}, 1),
        ({"chunking": ChunkingOptions(first_chunk_frames=1)}, 50),
        ({"chunking": ChunkingOptions(left_context_frames=0)}, 50),
        ({"chunking": ChunkingOptions(first_lookahead_frames=0)}, 50),
        ({"chunking": ChunkingOptions(lookahead_frames=0)}, 50),
        ({"chunking": ChunkingOptions(left_context_frames=4096)}, 50),
    ],
)
def test_chunks_or_short_lead_of_client_are_its_own(
    chosen: dict[str, Any], frames: int | None
) -> None:
    mine = (
        Settings(default_lead_ms=500) if not chosen else Settings()
    )  # the operator's is no choice
    runtime = assemble(mine, Engines(FakeTalker(), FakeCodecEngine(SPEC)))
    options = SpeechOptions(format=AudioFormat("pcm_s16le", frame_ms=20), **chosen)
    queue = session_settings(runtime, options).queue
    assert own_chunk_frames(queue, options) == frames
    assert queue.schedule.left_context_frames <= SPEC.left_frames


def test_chunking_options_of_client_override_settings() -> None:
    wish = ChunkingOptions(first_chunk_frames=9, max_chunk_frames=6, left_context_frames=0)
    made = schedule_settings(Settings(first_chunk_frames=2), SPEC, wish)
    assert (made.first_chunk_frames, made.max_chunk_frames, made.left_context_frames) == (6, 6, 0)
    assert schedule_settings(Settings(first_chunk_frames=2), SPEC).first_chunk_frames == 2


@pytest.mark.parametrize(
    ("chunk_ms", "speed", "frames"),
    [(640, 1.0, 16), (640, 2.0, 32), (79, 1.0, 1), (80, 1.0, 2), (1, 1.0, 1), (120, 0.25, 1)],
)
def test_chunk_ms_gives_all_chunks_same_length(chunk_ms: int, speed: float, frames: int) -> None:
    made = schedule_settings(Settings(), SPEC, ChunkingOptions(chunk_ms=chunk_ms), speed)
    schedule = ChunkSchedule(made, PaceBounds(0.001, 0.0, 0.0, 0.001, 0.0001))
    now, sizes = 0.0, []
    for _ in range(20 * frames + 60):
        schedule.on_frames(1)
        while (chosen := schedule.decide(now)).new_frames:
            schedule.on_emitted(chosen.new_frames, chosen.lookahead)
            schedule.on_sent(chosen.new_frames, now)
            sizes.append(chosen.new_frames)
        now += 0.001
    assert len(sizes) >= 20
    assert set(sizes) == {frames}


def test_first_chunk_frames_overrides_chunk_ms() -> None:
    wish = ChunkingOptions(chunk_ms=640, first_chunk_frames=3)
    made = schedule_settings(Settings(), SPEC, wish)
    assert (made.first_chunk_frames, made.max_chunk_frames) == (3, 16)


def test_chunk_ms_with_max_chunk_frames_is_refused() -> None:
    with pytest.raises(RequestError) as error:
        schedule_settings(Settings(), SPEC, ChunkingOptions(chunk_ms=640, max_chunk_frames=16))
    assert (error.value.code, error.value.param) == ("invalid_parameter", "chunking.chunk_ms")


def test_schedule_of_causal_codec_has_no_lookahead() -> None:
    """Options are ignored: no later frames are seen, and all of the left context is needed."""
    spec = CodecSpec(44_100, 2048, (4096, *(1024,) * 9), 10, 0, 1016)
    asked = ChunkingOptions(lookahead_frames=7, left_context_frames=2)
    for chunking in (None, asked):
        made = schedule_settings(Settings(), spec, chunking, layout=RowLayout.WHOLE)
        assert (made.first_lookahead_frames, made.lookahead_frames) == (0, 0)
        assert (made.delay_rows, made.incomplete_frames) == (0, 0)
        assert made.left_context_frames == 10


@pytest.mark.parametrize(("sees", "first", "later"), [(0, 0, 0), (1, 1, 1), (3, 2, 3), (10, 2, 4)])
def test_lookahead_is_limited_to_receptive_field(sees: int, first: int, later: int) -> None:
    made = schedule_settings(Settings(), CodecSpec(24_000, 960, (1024,) * 8, 10, sees))
    assert (made.first_lookahead_frames, made.lookahead_frames) == (first, later)
    assert made.incomplete_frames == first, "the first chunk is as early as with any other codec"
    exact = ChunkingOptions(lookahead_frames=10)
    made = schedule_settings(Settings(), CodecSpec(24_000, 960, (1024,) * 8, 10, sees), exact)
    assert (made.first_lookahead_frames, made.lookahead_frames) == (sees, sees)
    assert made.incomplete_frames == 0
