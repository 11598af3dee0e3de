"""How many rows at a time a talker sends to a stream that is ahead."""

from __future__ import annotations

#: As many as go twice into the time for which rows are left alone; then the last of them are
#: there for half of it. What goes into it once is kept: the talker must be told of each change.
_AT_A_TIME = (8, 4)


def rows_together(present: int, nap_s: float, row_s: float) -> int:
    """``present`` rows come at a time now, one each ``row_s``; for ``nap_s`` none is looked at."""
    for rows in _AT_A_TIME:
        naps = 1 if rows <= present else 2
        if 0 < naps * rows * row_s <= nap_s:
            return rows
    return 1
