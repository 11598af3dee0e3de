"""Parts of a session in any protocol: its record, its API key, and the limit on a stall."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from loadtest.plan import Plan
from loadtest.records import TurnRecord
from loadtest.workload import Turn
from talkwire_client import PlaybackClock
from talkwire_client.playback import LeadingSilence

Sink = Callable[[TurnRecord], None]
#: Not in the plan, which is written down with the figures; workers inherit the environment.
API_KEY = os.environ.get("TALKWIRE_API_KEY") or None
#: A turn that the run's end finds without a sound so long after its first sentence was due has
#: waited for a server that is stuck or far too slow.
_SILENT_S = 10.0


class StallTimeout:
    """A limit on the time without progress: ``async with`` raises TimeoutError after it."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._timeout = asyncio.timeout(limit_s)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)

    @property
    def until(self) -> float:
        """The time at which it raises, on the event loop's clock."""
        return self._timeout.when() or 0.0

    def progress(self, ahead_s: float = 0.0) -> None:
        """Note progress now, or in ``ahead_s``: the limit counts from there."""
        when = asyncio.get_running_loop().time() + max(0.0, ahead_s) + self._limit_s
        if not self._timeout.expired() and when > self.until:
            self._timeout.reschedule(when)


class TurnSpeech:
    """One turn that is spoken. Times are the run's, in seconds from ``zero_s``."""

    def __init__(self, plan: Plan, turn: Turn, record: TurnRecord, zero_s: float) -> None:
        self._plan, self._turn, self._record, self._zero_s = plan, turn, record, zero_s
        self._playback = PlaybackClock(record.sample_rate)
        self._silence = LeadingSilence()
        self._barge_at: float | None = None
        self._stall = StallTimeout(plan.turn_limit_s)

    def _now(self) -> float:
        return time.monotonic() - self._zero_s

    def silent_s(self) -> float:
        """When the listener has heard the last of it: played to the end, or cut off."""
        end_s = max(self._playback.dry_at, self._record.intended_s)
        if self._barge_at is not None and self._barge_at < end_s:
            return max(self._barge_at, self._record.intended_s)
        return end_s


def new_record(session: int, turn: int, script: Turn, due_s: float, zero_s: float) -> TurnRecord:
    """Make the record of a turn that is due; nothing has happened yet."""
    return TurnRecord(
        session=session,
        turn=turn,
        characters=script.characters,
        intended_s=due_s,
        sentence_s=due_s + script.sentence_s,
        started_s=time.monotonic() - zero_s,
    )


def judge_unfinished(record: TurnRecord) -> None:
    """Call a turn ``failed`` that was silent for too long when the run ended (``ended_s``)."""
    silent_s = record.ended_s - max(record.sentence_s, record.started_s)
    if record.outcome == "unfinished" and not record.arrivals and silent_s >= _SILENT_S:
        record.outcome, record.code = "failed", "no_audio"
