"""Parts of a session that all protocols share: its record, its API key, and the limit on stalls."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from loadtest.plan import Plan
from loadtest.records import TurnRecord
from loadtest.workload import Turn
from talkwire_client import PlaybackClock
from talkwire_client.playback import LeadingSilence

Sink = Callable[[TurnRecord], None]
#: Kept out of the plan, which is stored with the results; workers inherit the environment.
API_KEY = os.environ.get("TALKWIRE_API_KEY") or None
#: If the run ends this long after a turn's first sentence was due, and there was no sound, the
#: server is stuck or far too slow.
_SILENT_S = 10.0


class TurnSpeech:
    """The speech of one turn. Times are in seconds from ``zero_s``.

    ``_stall`` is a timeout of ``turn_limit_s`` around the turn, which ``_progress`` extends.
    """

    _stall: asyncio.Timeout

    def __init__(self, plan: Plan, turn: Turn, record: TurnRecord, zero_s: float) -> None:
        self._plan = plan
        self._turn = turn
        self._record = record
        self._zero_s = zero_s
        self._playback = PlaybackClock(record.sample_rate)
        self._silence = LeadingSilence()
        self._barge_at: float | None = None

    def _now(self) -> float:
        return time.monotonic() - self._zero_s

    def _progress(self, ahead_s: float = 0.0) -> None:
        """Record progress now, or in ``ahead_s``: the time limit counts from there."""
        when = asyncio.get_running_loop().time() + max(0.0, ahead_s) + self._plan.turn_limit_s
        if not self._stall.expired() and when > (self._stall.when() or 0.0):
            self._stall.reschedule(when)

    def silent_s(self) -> float:
        """Return the time at which the listener's audio ended: played to the end, or cut off."""
        end_s = max(self._playback.dry_at, self._record.intended_s)
        if self._barge_at is not None and self._barge_at < end_s:
            return max(self._barge_at, self._record.intended_s)
        return end_s


def new_record(session: int, turn: int, script: Turn, due_s: float, zero_s: float) -> TurnRecord:
    """Make the record of a turn that is due, with no results yet."""
    return TurnRecord(
        session=session,
        turn=turn,
        characters=script.characters,
        intended_s=due_s,
        sentence_s=due_s + script.sentence_s,
        started_s=time.monotonic() - zero_s,
    )


def judge_unfinished(record: TurnRecord) -> None:
    """Mark a turn as ``failed`` if it had been silent for too long when the run ended
    (``ended_s``).
    """
    silent_s = record.ended_s - max(record.sentence_s, record.started_s)
    if record.outcome == "unfinished" and not record.arrivals and silent_s >= _SILENT_S:
        record.outcome, record.code = "failed", "no_audio"
