"""Rows of a stream that is ahead: taken, and sent by the talker, several at a time.

Each time that rows are taken costs as much as many rows, and so does each time that they are sent.
"""

from __future__ import annotations

import asyncio
import time

from service.heartbeat import together_s
from streaming.ports import TalkerRows
from streaming.session import Session

#: So many rows are worth waiting for, and so many are enough; and never for longer than this.
_FEWEST_ROWS, _MOST_ROWS, _LONGEST_NAP_S = 1.5, 32, 0.4
#: The talker sends as many as go twice into the time for which rows are left alone; then the last
#: of them are there for half of it. What goes into it once is kept: it must be told of changes.
_AT_A_TIME = (8, 4)


async def let_rows_pile_up(session: Session, batch: TalkerRows, row_s: float) -> None:
    """``batch`` has been taken, and rows come every ``row_s``: wait as long as nobody will notice.
    The talker must not either (``hold_rows``), and keeps its own times (``came``).
    """
    now = time.monotonic()
    patience_s = session.row_patience_s(now, row_s)
    nap_s = together_s(min(patience_s, _MOST_ROWS * row_s, _LONGEST_NAP_S), now)
    if batch.gather is not None:
        is_heard = session.is_heard(now)
        batch.gather(rows_together(batch.gathered, nap_s, row_s) if is_heard else 1)
    if nap_s > _FEWEST_ROWS * row_s:
        await asyncio.sleep(nap_s)


def rows_together(present: int, nap_s: float, row_s: float) -> int:
    """``present`` rows come at a time now, one each ``row_s``; for ``nap_s`` none is looked at."""
    for rows in _AT_A_TIME:
        naps = 1 if rows <= present else 2
        if 0 < naps * rows * row_s <= nap_s:
            return rows
    return 1
