"""How a stream is cut: a client's wishes over the server's settings over what the codec needs."""

from __future__ import annotations

from service.audio.stretch import held_back_s
from service.settings import Settings
from streaming.schedule import ScheduleSettings
from streaming.spec import CodecSpec
from streaming.wire import ChunkingOptions


def schedule_settings(
    mine: Settings,
    spec: CodecSpec,
    chunking: ChunkingOptions | None = None,
    speed: float = 1.0,
) -> ScheduleSettings:
    """The schedule of a new utterance whose frames are heard ``speed`` times as fast. What the
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
    left = pick(mine.left_context_frames, spec.receptive_field_frames)
    max_chunk = pick(theirs.max_chunk_frames, mine.max_chunk_frames)
    first_chunk = theirs.first_chunk_frames or mine.first_chunk_frames
    return ScheduleSettings(
        frame_s=spec.frame_s / speed,
        delay_rows=spec.delay_rows,
        left_context_frames=pick(theirs.left_context_frames, left),
        first_lookahead_frames=first_lookahead,
        incomplete_frames=0 if is_complete else min(first_lookahead, spec.delay_rows),
        lookahead_frames=lookahead,
        max_chunk_frames=max_chunk,
        first_chunk_frames=first_chunk and min(first_chunk, max_chunk),
        guard_s=mine.network_guard_ms / 1000 + held_back_s(speed, spec.sample_rate),
    )
