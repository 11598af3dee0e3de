"""The rules for writing a client in docs/reference/protocol.md, against a live gateway."""

from __future__ import annotations

import itertools
import json
from typing import Any

from streaming.protocol.binary import AudioHeader
from tests.service.live import Client, client, gateway

TEXT = "A sentence to say. And a second one, which is longer than the first."


async def everything(talk: Client, last: str) -> list[str]:
    """Return the types of messages up to one of type ``last``, with runs of a type merged."""
    kinds: list[str] = []
    while not kinds or kinds[-1] != last:
        message = await talk.next()
        kinds.append("audio" if isinstance(message, AudioHeader) else message["type"])
    return [kind for kind, _ in itertools.groupby(kinds)]


async def in_one_go(talk: Client, context_id: str, **options: Any) -> None:
    await talk.send("context.create", context_id=context_id, **options)
    await talk.send("text.append", context_id=context_id, text=TEXT)
    await talk.send("context.end", context_id=context_id)


async def test_client_may_send_whole_context_at_once() -> None:
    async with gateway() as server, client(server.url) as talk:
        await in_one_go(talk, "a")
        came = await everything(talk, "context.done")
        assert came == ["context.created", "audio.started", "audio", "metrics", "context.done"]


async def test_messages_after_refused_create_get_unknown_context() -> None:
    async with gateway() as server, client(server.url) as talk:
        await in_one_go(talk, "a", voice="nobody")
        errors = [await talk.error() for _ in range(3)]
        codes = [(error["code"], error["context_id"]) for error in errors]
        assert codes == [("unknown_voice", "a"), ("unknown_context", "a"), ("unknown_context", "a")]
        await in_one_go(talk, "a")  # the id is free
        assert (await everything(talk, "context.done"))[0] == "context.created"


async def test_cancelled_context_ends_with_metrics() -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.create("a")
        await talk.send("text.append", context_id="a", text=TEXT * 20)
        await talk.until("audio.started")
        await talk.send("context.cancel", context_id="a")
        await talk.send("context.cancel", context_id="a")
        await talk.send("ping")
        came = await everything(talk, "pong")
        after = came[came.index("context.cancelled") :]
        assert sorted(after) == ["context.cancelled", "error", "metrics", "pong"]
        assert "audio" not in after
        await in_one_go(talk, "a")
        assert (await everything(talk, "context.done"))[-2:] == ["metrics", "context.done"]


async def test_refused_message_does_not_end_context() -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.create("a")
        await talk.send("context.create", context_id="a")
        error = await talk.error()
        assert (error["code"], error["context_id"]) == ("context_exists", "a")
        await talk.send("playback", context_id="a", played_samples=-1)
        error = await talk.error()
        assert (error["code"], error["context_id"]) == ("invalid_message", "a")
        await talk.send("text.append", context_id="a", text=TEXT)
        await talk.send("context.end", context_id="a")
        assert (await everything(talk, "context.done"))[0] == "audio.started"


async def test_sentence_is_spoken_once_space_follows() -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.create("a")
        await talk.send("text.append", context_id="a", text="A sentence to say.")
        await talk.send("ping")
        assert await everything(talk, "pong") == ["pong"]
        await talk.send("text.append", context_id="a", text=" ")
        await talk.until("audio.started")


async def test_metrics_not_measured_are_null() -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.create("a")
        await talk.send("context.end", context_id="a")
        assert (await talk.error())["code"] == "invalid_text"
        metrics = await talk.until("metrics")
        assert metrics["ttfa_ms"] is None
        assert metrics["audio_ms"] == 0
        assert json.dumps((await talk.until("context.done"))["reason"]) == '"error"'
