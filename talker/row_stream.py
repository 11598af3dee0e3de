"""Rows of one request between the talker process and whoever consumes them."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import numpy as np

from streaming.errors import BackendError
from streaming.ports import Arrival, TalkerRows
from talker.conversation import Gone


class RowStream:
    """Rows that have come and not been taken.

    Rows of one piece were made one after another. When more than ``hold_rows`` wait, the request
    should be paused until the consumer comes back; the bound in the meantime is the request's own
    ``max_frames``.
    """

    def __init__(self, num_codebooks: int, hold_rows: int) -> None:
        self._num_codebooks, self._hold_rows = num_codebooks, hold_rows
        self._waiting = 0
        #: How many rows at once the talker process was last asked for.
        self.at_once = 1
        #: Whether the talker process has been asked to pause.
        self.is_paused = False
        self._rows: list[bytes] = []
        self._spoken: list[bytes] = []
        self._came: list[Arrival] = []
        self._finish = ""
        self._error: BackendError | Gone | None = None
        self._news = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether the talker process has nothing more to say about it."""
        return bool(self._finish) or self._error is not None

    @property
    def is_full(self) -> bool:
        """Whether the consumer is so far behind that making more is no use."""
        return self._waiting > self._hold_rows and not self.is_over

    def put(self, rows: bytes, finish: str, spoken: bytes = b"") -> None:
        """Rows have come, ``[n, K]`` int16; ``finish`` is "" unless they are the last. See
        NewRows for ``spoken``.
        """
        if not self.is_over:
            self._rows.append(rows)
            self._spoken.append(spoken)
            count = len(rows) // (2 * self._num_codebooks)
            self._waiting += count
            self._came.append(Arrival(count, time.monotonic(), count > 1))
            self._finish = finish
            self._news.set()

    def fail(self, error: BackendError | Gone) -> None:
        """There will be no more rows."""
        if not self.is_over:
            self._error = error
            self._news.set()

    def resume(self) -> None:
        """The talker process is asked to go on."""
        self.is_paused = False
        self._came.append(Arrival(0, time.monotonic()))

    async def next(self, delay_s: float = 0.0) -> TalkerRows:
        """All rows that are there after ``delay_s``, in one piece; waits for the first.

        Rows that came before a failure are given first; then it is raised.
        """
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        while not (self._rows or self.is_over):
            self._news.clear()
            await self._news.wait()
        if self._error is not None and not self._rows:
            raise self._error
        codes = np.frombuffer(b"".join(self._rows), np.int16).reshape(-1, self._num_codebooks)
        spoken = np.frombuffer(b"".join(self._spoken), np.float32)
        self._rows.clear()
        self._spoken.clear()
        came, self._came = tuple(self._came), []
        self._waiting = 0
        finish: Literal["stop", "length"] | None = None
        if self._finish:
            finish = "stop" if self._finish == "stop" else "length"
        places = spoken if len(spoken) else None
        return TalkerRows(codes, finish, places, came)
