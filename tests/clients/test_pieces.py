"""Texts that no message can hold."""

from __future__ import annotations

import pytest

from clients.errors import ClientError
from clients.native import NativeClient
from clients.pieces import pieces
from streaming import wire
from streaming.wire_format import encode_message
from tests.clients.fake_server import CREATED, Peer, drain, fake_server, metrics

LIMITS = wire.Limits(8, 20_000, 2048, 120_000, 30.0, 300.0)


@pytest.mark.parametrize("text", ["a" * 20_000, "\x01" * 900, "\U0001f642" * 5000])
def test_pieces_fit_into_a_message_and_join_up_to_the_text(text: str) -> None:
    parts = pieces(text, LIMITS)
    assert "".join(parts) == text
    assert len(parts) > 1
    for part in parts:
        assert part
        message = encode_message(wire.TextAppend("c" * 64, part))
        assert len(message.encode()) <= LIMITS.max_message_bytes


@pytest.mark.parametrize("text", ["", "Hello there.", "a" * 1000])
def test_what_fits_goes_as_it_is(text: str) -> None:
    assert pieces(text, LIMITS) == [text]


async def test_a_long_text_goes_whole_or_not_at_all() -> None:
    text = "Hello there. " * 1000

    async def script(peer: Peer) -> None:
        greeting = {name: getattr(CREATED, name) for name in CREATED.__struct_fields__}
        await peer.say(wire.SessionCreated(**{**greeting, "limits": LIMITS}))
        create = await peer.open_context()
        came = ""
        while len(came) < len(text):
            came += (await peer.expect(wire.TextAppend)).text
        assert came == text
        assert (await peer.expect(wire.TextAppend)).text == "The end."
        await peer.say(metrics(create.context_id), wire.ContextDone(create.context_id, "complete"))

    async with (
        fake_server(script, greet=False) as url,
        NativeClient.connect(url) as client,
        client.context() as context,
    ):
        await context.append(text)
        with pytest.raises(ClientError, match="20000 characters"):
            await context.append(text * 2)
        with pytest.raises(ValueError, match="UTF-8"):
            await context.append("caf\udce9")
        await context.append("The end.")
        assert await drain(context) == []
