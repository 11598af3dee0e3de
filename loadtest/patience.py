"""How long a turn may stand still: a limit on the time without progress, not on its length."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from loadtest.records import TurnRecord

#: A turn that the run's end finds without a sound so long after its first sentence was due has
#: waited for a server that is stuck or far too slow.
_SILENT_S = 10.0


class Patience:
    """``async with``: raises TimeoutError when nothing has gone on for ``limit_s``."""

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
        """When it gives up, on the event loop's clock."""
        return self._timeout.when() or 0.0

    def progress(self, ahead_s: float = 0.0) -> None:
        """Something went on, or will in ``ahead_s``: the limit counts from there."""
        when = asyncio.get_running_loop().time() + max(0.0, ahead_s) + self._limit_s
        if not self._timeout.expired() and when > self.until:
            self._timeout.reschedule(when)


def judge_unfinished(record: TurnRecord) -> None:
    """Call a turn ``failed`` that the run's end found (``ended_s``) in silence for too long."""
    silent_s = record.ended_s - max(record.sentence_s, record.started_s)
    if record.outcome == "unfinished" and not record.arrivals and silent_s >= _SILENT_S:
        record.outcome, record.code = "failed", "no_audio"
