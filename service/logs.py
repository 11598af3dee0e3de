"""Structured logs. Records carry ids, codes and figures; never text that a client sent."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from service.auth.caller import current_caller

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class ConsoleFormatter(logging.Formatter):
    """One short line for people."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        extra = " ".join(
            f"{key}={value:.3f}" if isinstance(value, float) else f"{key}={value}"
            for key, value in _extra(record).items()
        )
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower():7} {record.getMessage()} {extra}".rstrip()
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def name_caller(record: logging.LogRecord) -> bool:
    """Add the id of the key for whose holder the work is done; the key itself is known nowhere."""
    key_id = current_caller().key_id
    if key_id is not None and not hasattr(record, "key"):
        record.key = key_id
    return True


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """uvicorn takes a handshake refused with a status, or a body broken off on purpose, for the
    application's mistake.
    """
    return "returned without completing" not in record.msg


def set_up(level: str, style: str) -> None:
    """Send all logs to stderr, as JSON unless a person is watching."""
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(name_caller)
    handler.setFormatter(ConsoleFormatter() if console else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    quieten()


def quieten() -> None:
    """Keep other people's loggers at warnings: below that they print whole messages."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "websockets"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_worth_saying)
