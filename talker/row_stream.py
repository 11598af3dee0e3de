"""Rows of one request between the talker process and whoever consumes them."""

from __future__ import annotations

import asyncio

import numpy as np

from streaming.errors import BackendError
from streaming.ports import TalkerRows


class RowStream:
    """What has come and not been taken.

    When more than ``hold_rows`` wait, the request should be paused until the consumer comes
    back; the bound in the meantime is the request's own ``max_frames``.
    """

    def __init__(self, num_codebooks: int, hold_rows: int) -> None:
        self._num_codebooks, self._hold_rows = num_codebooks, hold_rows
        self._waiting = 0
        #: Whether the talker process has been asked to pause.
        self.is_paused = False
        self._rows: list[bytes] = []
        self._finish = ""
        self._error: BackendError | None = None
        self._news = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether the talker process has nothing more to say about it."""
        return bool(self._finish) or self._error is not None

    @property
    def is_full(self) -> bool:
        """Whether the consumer is so far behind that making more is no use."""
        return self._waiting > self._hold_rows and not self.is_over

    def put(self, rows: bytes, finish: str) -> None:
        """Rows have come, ``[n, K]`` int16; ``finish`` is "" unless they are the last."""
        if not self.is_over:
            self._rows.append(rows)
            self._waiting += len(rows) // (2 * self._num_codebooks)
            self._finish = finish
            self._news.set()

    def fail(self, error: BackendError) -> None:
        """There will be no more rows."""
        if not self.is_over:
            self._error = error
            self._news.set()

    async def next(self) -> TalkerRows:
        """All rows that are there, in one piece; waits for the first.

        Rows that came before a failure are given first; then it is raised.
        """
        while not (self._rows or self.is_over):
            self._news.clear()
            await self._news.wait()
        if self._error is not None and not self._rows:
            raise self._error
        codes = np.frombuffer(b"".join(self._rows), np.int16).reshape(-1, self._num_codebooks)
        self._rows.clear()
        self._waiting = 0
        if self._finish == "":
            return TalkerRows(codes)
        return TalkerRows(codes, "stop" if self._finish == "stop" else "length")
