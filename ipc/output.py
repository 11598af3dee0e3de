"""The output of a child process, read from a pipe and logged line by line.

A child that printed to the service's own stderr would block, or end with an exception, as soon as
the reader of that stderr stopped or ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from typing import BinaryIO

log = logging.getLogger(__name__)
#: Longer lines are logged in parts.
_LINE_BYTES = 8192
_BREAK = re.compile(rb"[\r\n]+")


class OutputLogger(asyncio.Protocol):
    """Logs what is written to a pipe as warnings with the child's ``name``.

    Children print only warnings and errors, so no level is parsed from their lines.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = b""
        self._transport: asyncio.BaseTransport | None = None
        self._ended = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether the pipe was read to its end or abandoned, and is closed."""
        return self._ended.is_set()

    async def open(self) -> BinaryIO:
        """Start reading; return the end to write to. Raises OSError."""
        reading, writing = os.pipe()
        pipe, written = os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb", 0)
        try:
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.connect_read_pipe(lambda: self, pipe)
        except BaseException:
            written.close()
            # uvloop has closed the descriptor, whose number may soon be another file's
            with contextlib.suppress(OSError):
                pipe.close()
            raise
        return written

    async def close(self, timeout_s: float) -> None:
        """Close the pipe when it has been read to its end, or after ``timeout_s``."""
        if self._transport is None:
            return
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:
            self._transport.close()
            await self._ended.wait()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        *lines, self._rest = _BREAK.split(self._rest + data)
        if len(self._rest) > _LINE_BYTES:
            lines = [*lines, self._rest]
            self._rest = b""
        for line in lines:
            self._log(line)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._log(self._rest)
        self._rest = b""
        self._ended.set()

    def _log(self, line: bytes) -> None:
        for at in range(0, len(line), _LINE_BYTES):
            text = line[at : at + _LINE_BYTES].decode("utf-8", "backslashreplace")
            log.warning("%s", text, extra={"child": self._name})
