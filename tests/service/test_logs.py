from __future__ import annotations

import json
import logging

import pytest

from service.logs import ConsoleFormatter, JsonFormatter, quieten
from tests.service.live import client, gateway


def record(**extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "service.x", "levelname": "INFO", "msg": "hello %s"})
    made.args = ("you",)
    vars(made).update(extra)
    return made


def test_json_has_the_extra_fields() -> None:
    entry = json.loads(JsonFormatter().format(record(code="overloaded", seconds=1.5)))
    assert entry["message"] == "hello you"
    assert (entry["level"], entry["code"], entry["seconds"]) == ("info", "overloaded", 1.5)


def test_console_is_one_line() -> None:
    line = ConsoleFormatter().format(record(seconds=1.23456))
    assert line.endswith("info    hello you seconds=1.235")


async def test_no_text_of_a_client_is_ever_logged(caplog: pytest.LogCaptureFixture) -> None:
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
