"""Texts that are too long for one message."""

from __future__ import annotations

from typing import Any

import pytest

from talkwire_client import protocol
from talkwire_client.client import Client
from talkwire_client.errors import ClientError
from talkwire_client.protocol import encode_message
from talkwire_client.speech import split_text
from tests.clients.fake_server import CREATED, Peer, drain, fake_server

LIMITS = protocol.Limits(8, 20_000, 2048, 120_000, 30.0, 300.0)


@pytest.mark.parametrize("text", ["a" * 20_000, "\x01" * 900, "\U0001f642" * 5000])
def test_split_text_parts_fit_into_messages_and_join_to_text(text: str) -> None:
    parts = split_text(text, LIMITS)
    assert "".join(parts) == text
    assert len(parts) > 1
    for part in parts:
        assert part
        message = encode_message(protocol.TextAppend("c" * 64, part))
        assert len(message.encode()) <= LIMITS.max_message_bytes


@pytest.mark.parametrize("text", ["", "Hello there.", "a" * 1000])
def test_split_text_keeps_short_text_whole(text: str) -> None:
    assert split_text(text, LIMITS) == [text]


@pytest.mark.parametrize("text", [b"Hello.", [], None, 5])
def test_split_text_takes_only_str(text: Any) -> None:
    with pytest.raises(TypeError, match=f"a text is a str, and not {type(text).__name__}"):
        split_text(text, LIMITS)


async def test_append_sends_long_text_completely_or_not_at_all() -> None:
    text = "Hello there. " * 1000

    async def script(peer: Peer) -> None:
        greeting = {name: getattr(CREATED, name) for name in CREATED.__struct_fields__}
        await peer.say(protocol.SessionCreated(**{**greeting, "limits": LIMITS}))
        create = await peer.open_context()
        came = ""
        while len(came) < len(text):
            came += (await peer.expect(protocol.TextAppend)).text
        assert came == text
        assert (await peer.expect(protocol.TextAppend)).text == "The end."
        await peer.finish(create.context_id)

    async with (
        fake_server(script, greet=False) as url,
        Client(url) as client,
        client.speak() as speech,
    ):
        await speech.append(text)
        with pytest.raises(ClientError, match="20000 characters"):
            await speech.append(text * 2)
        with pytest.raises(ValueError, match="UTF-8"):
            await speech.append("caf\udce9")
        await speech.append("The end.")
        assert await drain(speech) == []
