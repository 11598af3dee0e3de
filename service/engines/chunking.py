"""Sizes of text and of chunks: the client's or the server's, as far as the engines allow."""

from __future__ import annotations

from math import floor

from service.audio.filters import held_back_s
from service.engines.contracts import RunningTalker
from service.settings import Settings
from streaming.chunk_schedule import ScheduleSettings
from streaming.delay import RowLayout
from streaming.protocol.field_errors import invalid_parameter
from streaming.protocol.messages import ChunkingOptions
from streaming.spec import CodecSpec

_SEGMENT_CHARS = 300
#: Fractions of a frame below this are rounding errors.
_ROUNDING = 1e-6


def max_segment_chars(settings: Settings, talker: RunningTalker) -> int:
    """Return the maximum length of a piece of incomplete text: the operator's, or the talker's."""
    return settings.max_segment_chars or talker.spec.segment_chars or _SEGMENT_CHARS


def schedule_settings(
    mine: Settings,
    spec: CodecSpec,
    chunking: ChunkingOptions | None = None,
    speed: float = 1.0,
    layout: RowLayout = RowLayout.DELAYED,
) -> ScheduleSettings:
    """Return the schedule settings of an utterance whose frames are played at ``speed``. Raises
    RequestError if the client sets the size of chunks twice.

    Left context and lookahead are limited to the decoder's receptive field, where the lookahead of
    a causal one is 0. A codec with state needs
    its full left context, so clients cannot choose it. ``guard_s`` includes the audio that the
    stretcher holds back, since the client does not have it yet.
    """
    theirs = chunking or ChunkingOptions()

    def pick(wish: int | None, default: int) -> int:
        return default if wish is None else wish

    lookahead = pick(theirs.lookahead_frames, mine.lookahead_frames)
    # A client that sets the lookahead wants it to be exact from the first chunk on.
    asked = theirs.lookahead_frames is not None
    first_lookahead = pick(
        theirs.first_lookahead_frames, lookahead if asked else mine.first_lookahead_frames
    )
    first_lookahead = min(first_lookahead, lookahead)
    # Likewise if all windows must have the same lookahead.
    is_complete = (
        not mine.incomplete_lookahead
        or asked
        or theirs.first_lookahead_frames is not None
        or first_lookahead == lookahead
    )
    first_lookahead = min(first_lookahead, spec.right_frames)
    left = pick(theirs.left_context_frames, pick(mine.left_context_frames, spec.left_frames))
    left = min(left, spec.left_frames)  # more would change nothing
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
