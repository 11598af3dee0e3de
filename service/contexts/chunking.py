"""Chunk settings of a stream: the client's options, else the server's, within the codec's needs."""

from __future__ import annotations

from math import floor

from service.audio.filters import held_back_s
from service.settings import Settings
from streaming.chunk_schedule import ScheduleSettings
from streaming.delay import RowLayout
from streaming.protocol.field_errors import invalid_parameter
from streaming.protocol.messages import ChunkingOptions
from streaming.spec import CodecSpec

#: What is less than this of a frame is rounding.
_ROUNDING = 1e-6


def schedule_settings(
    mine: Settings,
    spec: CodecSpec,
    chunking: ChunkingOptions | None = None,
    speed: float = 1.0,
    layout: RowLayout = RowLayout.DELAYED,
) -> ScheduleSettings:
    """The schedule of a new utterance whose frames are heard ``speed`` times as fast. Raises
    RequestError where the client sets the size of chunks twice.

    The lookahead is no more than the codec's decoder sees, which of a causal one is none. A codec
    with state needs all that it reaches back to, so a left context is not to be chosen. What the
    stretcher holds back the client does not have yet: so much more must always be left there.
    """
    theirs = chunking or ChunkingOptions()

    def pick(wish: int | None, default: int) -> int:
        return default if wish is None else wish

    lookahead = pick(theirs.lookahead_frames, mine.lookahead_frames)
    # Who asks for a lookahead wants its exactness, and from the first chunk on.
    asked = theirs.lookahead_frames is not None
    first_lookahead = pick(
        theirs.first_lookahead_frames, lookahead if asked else mine.first_lookahead_frames
    )
    first_lookahead = min(first_lookahead, lookahead)
    # Likewise where all windows are to have the same.
    is_complete = (
        not mine.incomplete_lookahead
        or asked
        or theirs.first_lookahead_frames is not None
        or first_lookahead == lookahead
    )
    first_lookahead = min(first_lookahead, spec.right_frames)
    left = pick(theirs.left_context_frames, pick(mine.left_context_frames, spec.left_frames))
    delay_rows = layout.delay_rows(spec)
    frame_s = spec.frame_s / speed
    chunk = None
    if theirs.chunk_ms is not None:
        if theirs.max_chunk_frames is not None:
            message = "chunk_ms and max_chunk_frames both set the size of chunks; give one of them."
            raise invalid_parameter("chunking.chunk_ms", message)
        chunk = max(1, floor(theirs.chunk_ms / 1000 / frame_s + _ROUNDING))
    max_chunk = chunk or pick(theirs.max_chunk_frames, mine.max_chunk_frames)
    first_chunk = theirs.first_chunk_frames or chunk or mine.first_chunk_frames
    return ScheduleSettings(
        frame_s=frame_s,
        delay_rows=delay_rows,
        left_context_frames=spec.left_frames if spec.history_frames else left,
        first_lookahead_frames=first_lookahead,
        incomplete_frames=0 if is_complete else min(first_lookahead, delay_rows),
        lookahead_frames=min(lookahead, spec.right_frames),
        max_chunk_frames=max_chunk,
        first_chunk_frames=first_chunk and min(first_chunk, max_chunk),
        guard_s=mine.network_guard_ms / 1000 + held_back_s(speed, spec.sample_rate),
    )
