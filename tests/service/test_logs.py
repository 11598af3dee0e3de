from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import traceback
from typing import TextIO

import pytest

from service.logs import (
    ConsoleFormatter,
    FloodFilter,
    JsonFormatter,
    LogHandler,
    LogWriter,
    quieten,
    set_up,
)
from tests.service.live import client, gateway
from tests.service.transport.raw_connection import raw, rest


def record(**extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "service.x", "levelname": "INFO", "msg": "hello %s"})
    made.args = ("you",)
    vars(made).update(extra)
    return made


def test_json_formatter_includes_extra_fields() -> None:
    entry = json.loads(JsonFormatter().format(record(code="overloaded", seconds=1.5)))
    assert entry["message"] == "hello you"
    assert (entry["level"], entry["code"], entry["seconds"]) == ("info", "overloaded", 1.5)


def test_console_formatter_writes_one_line() -> None:
    line = ConsoleFormatter().format(record(seconds=1.23456))
    assert line.endswith("info    hello you seconds=1.235")


def test_console_formatter_escapes_control_characters() -> None:
    forged = "1.2.3.4\x1b[2J\r\n12:00:00 info    ready \x9b\u202e\u2028"
    made = record(address=forged, voices=["é\n"])
    made.args = (forged,)
    line = ConsoleFormatter().format(made)
    assert line.isprintable()
    assert line.count("1.2.3.4\\x1b[2J\\r\\n12:00:00 info    ready \\x9b\\u202e\\u2028") == 2
    assert "é" in line


def test_console_formatter_escapes_control_characters_of_exceptions() -> None:
    made = record()
    try:
        raise ValueError("one\x1b[2J\r\ntwo")
    except ValueError:
        made.exc_info = sys.exc_info()
    lines = ConsoleFormatter().format(made).split("\n")
    assert lines[-2:] == ["ValueError: one\\x1b[2J\\r", "two"]
    assert all(map(str.isprintable, lines))


def test_flood_of_client_errors_is_thinned_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    flood, kind = FloodFilter(), {"name": "service.errors", "levelno": logging.INFO}
    for _ in range(1000):
        assert flood.filter(record(**kind))
    for _ in range(50):
        assert not flood.filter(record(**kind))
    assert flood.filter(record(**kind | {"levelno": logging.ERROR})), "bugs are always logged"
    assert flood.filter(record()), "so is all else"
    now = 0.1
    kept = [made for made in (record(**kind) for _ in range(10)) if flood.filter(made)]
    assert [vars(made)["unlogged"] for made in kept] == [50]


@pytest.mark.parametrize("said", [b"GET /nothing HTTP/1.0\r\n\r\n", b"no HTTP\r\n\r\n"])
async def test_line_of_refused_request_passes_flood_filter_a_thousand_times(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with gateway() as server, raw(server) as (reader, writer):
            caplog.clear()
            writer.write(said)
            assert b"HTTP/1.1 4" in await rest(reader)
    flood, told = FloodFilter(), caplog.records[0]
    assert [flood.filter(told) for _ in range(1001)] == 1000 * [True] + [False]


def pipe() -> tuple[int, TextIO]:
    reading, writing = os.pipe()
    return reading, os.fdopen(writing, "w")


def test_log_writer_drops_lines_over_max_bytes_if_reader_stalls() -> None:
    reading, stream = pipe()
    dropped: list[None] = []
    with stream:
        writer = LogWriter(stream, max_bytes=10_000)
        writer.on_dropped = lambda: dropped.append(None)
        for number in range(200):
            writer.write(f"{number} ".ljust(999, "x"))
        assert not writer.flush(0.0)
        read = b""
        while b"dropped" not in read:
            read += os.read(reading, 1 << 16)
        assert writer.flush(60.0)
        stream.close()
        while data := os.read(reading, 1 << 16):
            read += data
    numbers = [int(line.split()[0]) for line in read.split(b"\n") if line.endswith(b"xxx")]
    assert numbers == list(range(len(numbers)))
    assert 0 < len(numbers) == 200 - int(read.partition(b"(")[2].split()[0])
    assert len(dropped) >= 200 - len(numbers)
    os.close(reading)


def test_log_writer_survives_closed_reader() -> None:
    reading, stream = pipe()
    os.close(reading)
    dropped: list[None] = []
    writer = LogWriter(stream)
    writer.on_dropped = lambda: dropped.append(None)
    for _ in range(3):
        writer.write("nobody reads this")
    writer.close(60.0)
    assert len(dropped) == 3
    writer.write("nor this")
    assert len(dropped) == 4
    stream.close()


def test_log_writer_starts_new_line_after_partial_write(monkeypatch: pytest.MonkeyPatch) -> None:
    write, room = os.write, [5]

    def full(fd: int, data: memoryview) -> int:
        room[0] -= (count := min(len(data), room[0]))
        if not count:
            raise OSError("no space left")
        return write(fd, data[:count])

    reading, stream = pipe()
    monkeypatch.setattr(os, "write", full)
    writer = LogWriter(stream)
    writer.write("one line")
    assert writer.flush(60.0)
    room[0] = 1000
    writer.write("another")
    writer.close(60.0)
    stream.close()
    assert os.read(reading, 1000) == b"one l\n(1 log lines were dropped)\nanother\n"
    os.close(reading)


def test_json_log_has_no_other_lines() -> None:
    reading, stream = pipe()
    writer = LogWriter(stream, max_bytes=400, as_json=True)
    writer.say('  say "Hello there."')
    assert writer.flush(60.0)
    writer.write("x" * 400)
    handler = LogHandler(writer)
    handler.setFormatter(JsonFormatter())
    handler.handle(logging.makeLogRecord({"name": "service.x", "msg": "%d", "args": ("one",)}))
    writer.close(60.0)
    stream.close()
    told = [json.loads(line) for line in os.read(reading, 10_000).splitlines()]
    assert [(one["level"], one["message"]) for one in told] == [
        ("info", 'say "Hello there."'),
        ("warning", "(1 log lines were dropped)"),
        ("error", "a record of service.x cannot be formatted: TypeError"),
    ]
    assert all(one["time"].endswith("Z") for one in told)
    os.close(reading)


def test_log_handler_reports_record_that_cannot_be_formatted() -> None:
    reading, stream = pipe()
    writer = LogWriter(stream)
    handler = LogHandler(writer)
    handler.handle(logging.makeLogRecord({"name": "service.x", "msg": "%d", "args": ("one",)}))
    writer.close(60.0)
    stream.close()
    assert os.read(reading, 1000) == b"a record of service.x cannot be formatted: TypeError\n"
    os.close(reading)


def test_log_level_error_drops_warnings_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, before = root.handlers[:], root.level
    try:
        writer = set_up("error", "json")
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("service.x").error("broken")
        writer.close(60.0)
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "broken"


async def test_requests_that_are_cut_at_the_end_leave_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quieten()
    logger = logging.getLogger("uvicorn.error")
    for cause in (asyncio.CancelledError(), OSError()):
        try:
            raise cause
        except BaseException:
            logger.exception("Exception in ASGI application\n")  # of a request
            logger.error(traceback.format_exc())  # of the lifespan
    assert ["OSError" in caplog.text, "CancelledError" in caplog.text] == [True, False]
    assert len(caplog.records) == 2


async def test_logs_contain_no_client_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    quieten()
    canary = "xylophone canary"
    async with gateway() as server, client(server.url) as talk:
        await talk.say(f"The {canary} sings.")
        await talk.send("text.append", context_id=canary, text=canary)
        assert (await talk.error())["code"] == "unknown_context"
        await talk.socket.send(f'{{"type":"{canary}"')
        await talk.error()
        server.codec.fail_with = RuntimeError("broken")
        await talk.create("d")
        await talk.send("text.append", context_id="d", text=f"The {canary} fails. ")
        await talk.error()
    formatter = JsonFormatter()
    lines = [formatter.format(record) for record in caplog.records]
    assert sum("client error" in line for line in lines) == 3
    assert not any("canary" in line for line in lines)


def test_closed_stderr_takes_log_and_no_other_file_takes_its_descriptor() -> None:
    program = (
        "import os, socket\n"
        "from service.logs import set_up\n"
        "log = set_up('info', 'auto')\n"
        "log.say('ready')\n"
        "log.close(60.0)\n"
        "print(log.flush(0.0), os.readlink('/proc/self/fd/2'), socket.socket().fileno() > 2)\n"
    )
    shell = 'exec "$0" -c "$1" 2>&- <&-'
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable, program], stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True /dev/null True\n")
