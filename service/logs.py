"""Structured logs, and the thread that writes them.

Records carry ids, codes and figures, never a client's text. A logging call neither blocks when the
log's reader has stopped nor raises when the reader has gone or the disk is full.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
import time
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from service.auth.caller import current_caller
from service.auth.limits import LeakyBucket

_STDERR = 2
#: Loggers of clients' mistakes; the burst size and rate of their lines.
_OF_CLIENTS = ("service.errors", "uvicorn.error")
_MOST_LINES, _LINES_PER_MINUTE = 1000, 600
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """Format records as JSON objects, one per line."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _printable(text: str) -> str:
    """Escape all that would break the line or be a command to a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class ConsoleFormatter(logging.Formatter):
    """Format records as short lines for people, without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        extra = " ".join(
            f"{key}={value:.3f}" if isinstance(value, float) else f"{key}={_printable(str(value))}"
            for key, value in _extra(record).items()
        )
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        message = _printable(record.getMessage())
        line = f"{clock} {record.levelname.lower():7} {message} {extra}".rstrip()
        if record.exc_info:
            traceback = self.formatException(record.exc_info).split("\n")
            line = "\n".join((line, *map(_printable, traceback)))
        return line


def name_caller(record: logging.LogRecord) -> bool:
    """Add the id of the caller's key; the key itself is never logged."""
    key_id = current_caller().key_id
    if key_id is not None and not hasattr(record, "key"):
        record.key = key_id
    return True


class FloodFilter(logging.Filter):
    """Drops lines about clients' mistakes when there are too many, lest requests fill the disk. The
    next line has the number of those that were dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines, self._unlogged = LeakyBucket(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging.Filter."""
        if record.name not in _OF_CLIENTS or record.levelno >= logging.ERROR:
            return True
        if self._lines.leak(_LINES_PER_MINUTE, time.monotonic()) + 1 > _MOST_LINES:
            self._unlogged += 1
            return False
        self._lines.add(1)
        if self._unlogged:
            record.unlogged, self._unlogged = self._unlogged, 0
        return True


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Drop uvicorn's errors for refused handshakes and broken bodies, which are not ours, and for
    requests and tasks that a second signal cut.
    """
    cause = record.exc_info[1] if record.exc_info else None
    is_cut = isinstance(cause, CancelledError) or record.msg.endswith("CancelledError\n")
    return not is_cut and "returned without completing" not in record.msg


class LogWriter:
    """Write lines to a stream from a thread of its own.

    ``write`` neither blocks nor raises. At most ``max_bytes`` wait for the stream; lines beyond
    that, and lines that the stream does not take, are dropped and counted. ``as_json``: ``say`` and
    the count of dropped lines write JSON objects too.
    """

    def __init__(self, stream: IO[str], max_bytes: int = 4 << 20, *, as_json: bool = False) -> None:
        self._stream, self._max_bytes, self._as_json = stream, max_bytes, as_json
        try:
            self._fd: int | None = stream.fileno()
        except (OSError, ValueError, AttributeError):
            self._fd = None
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._is_busy = self._is_closed = self._is_torn = False
        self._unreported = 0
        #: Called for each line that is not written, from any thread. It must not raise.
        self.on_dropped: Callable[[], object] = lambda: None
        threading.Thread(target=self._run, name="log-writer", daemon=True).start()

    def write(self, line: str) -> None:
        """Queue ``line``, which has no line break."""
        data = (line + "\n").encode("utf-8", "backslashreplace")
        with self._changed:
            if self._is_closed or self._bytes + len(data) > self._max_bytes:
                self._drop()
                return
            self._lines.append(data)
            self._bytes += len(data)
            self._changed.notify_all()

    def say(self, text: str, level: str = "INFO") -> None:
        """Queue a line for people, at any level of the log. On a console it is the bare text."""
        self.write(self._line(text, level))

    def _line(self, text: str, level: str) -> str:
        if not self._as_json:
            return text
        entry = {"name": "service", "levelname": level, "msg": text.strip()}
        return JsonFormatter().format(logging.makeLogRecord(entry))

    def flush(self, timeout_s: float) -> bool:
        """Wait until all lines have been written or dropped; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._lines or self._is_busy), timeout_s)

    def close(self, timeout_s: float = 1.0) -> None:
        """Accept no more lines, and wait for the queued ones, ``timeout_s`` at most."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.flush(timeout_s)

    def _drop(self) -> None:
        self._unreported += 1
        self.on_dropped()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._is_closed)
                if not self._lines:
                    return
                data = self._lines.popleft()
                self._bytes -= len(data)
                self._is_busy = True
                if self._unreported:
                    dropped = f"({self._unreported} log lines were dropped)"
                    data = self._line(dropped, "WARNING").encode() + b"\n" + data
                unreported, self._unreported = self._unreported, 0
            try:
                self._put(data)
            except (OSError, ValueError):
                with self._changed:
                    self._unreported += unreported
                    self._drop()

    def _put(self, data: bytes) -> None:
        """Write all of ``data``. Raises OSError or ValueError, possibly in the middle of a line."""
        if self._fd is None:
            self._stream.write(data.decode())
            self._stream.flush()
            return
        left = memoryview(b"\n" + data if self._is_torn else data)
        while left:
            try:
                written = os.write(self._fd, left)
            except BlockingIOError:
                select.select([], [self._fd], [])
                continue
            left = left[written:]
            self._is_torn = bool(left)


class LogHandler(logging.Handler):
    """Format records and pass them to a LogWriter."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler. For a record that cannot be formatted, only its name is logged."""
        try:
            line = self.format(record)
        except Exception as error:
            fault = f"a record of {record.name} cannot be formatted: {type(error).__name__}"
            self._writer.say(fault, "ERROR")
        else:
            self._writer.write(line)


def _stderr() -> IO[str]:
    """Return stderr. If it was closed before the start, return the null device, which then also has
    the standard descriptors that are free: a client's socket with one would get what libraries
    print.
    """
    if sys.stderr is not None:
        return sys.stderr
    while (null := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    return os.fdopen(null, "w")


def set_up(level: str, style: str) -> LogWriter:
    """Send all logs to stderr, and return their writer. ``auto`` is JSON except on a terminal."""
    stream = _stderr()
    console = style == "console" or (style == "auto" and stream.isatty())
    writer = LogWriter(stream, as_json=not console)
    handler = LogHandler(writer)
    handler.setLevel(level.upper())  # libraries' loggers have levels of their own
    handler.addFilter(FloodFilter())
    handler.addFilter(name_caller)
    handler.setFormatter(ConsoleFormatter() if console else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    quieten()
    return writer


def quieten() -> None:
    """Set libraries' loggers to warnings; below that level they log whole messages."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "websockets"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_worth_saying)
