"""Faults of the server and the connection, and the client errors that report them."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable

import pytest
from websockets.exceptions import ConnectionClosed

import talkwire_client.client
import talkwire_client.speech
from talkwire_client import protocol
from talkwire_client.client import Client
from talkwire_client.errors import ClientError, ConnectionLostError, ProtocolError, ServerError
from talkwire_client.protocol import ErrorCode
from tests.clients.fake_server import Peer, cancelled, drain, fake_server, metrics


async def test_refused_speech_raises_and_others_continue() -> None:
    async def script(peer: Peer) -> None:
        good = await peer.open_context()
        bad = await peer.expect(protocol.ContextCreate)
        code = ErrorCode.UNKNOWN_VOICE
        await peer.say(
            protocol.Error(code, "No such voice.", "r1", param="voice", context_id=bad.context_id)
        )
        await peer.audio(0, b"\1\0")
        await peer.finish(good.context_id)

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak() as good,
    ):
        with pytest.raises(ServerError, match=r"unknown_voice \(voice\): No such voice") as caught:
            async with client.speak(voice="x"):
                pytest.fail("it was refused")
        assert caught.value.code == ErrorCode.UNKNOWN_VOICE
        assert await drain(good) == [b"\1\0"]


async def test_options_over_servers_limit_are_refused_and_others_continue() -> None:
    async def script(peer: Peer) -> None:
        good = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.audio(0, b"\1\0")
        await peer.finish(good.context_id)

    clip = protocol.ReferenceOptions(audio=bytes(60_000))  # in base64 over 64 KiB
    async with fake_server(script) as url, Client(url) as client, client.speak() as good:
        with pytest.raises(ClientError, match=r"8\d+ bytes, and may have 65536"):
            async with client.speak(reference=clip):
                pytest.fail("it was refused")
        await good.append("Hello.")
        assert await drain(good) == [b"\1\0"]


async def test_fatal_error_is_raised_after_earlier_audio() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.audio(0, b"\1\0")
        await peer.say(
            protocol.Error(
                ErrorCode.ENGINE_FAILED,
                "The talker failed.",
                "r",
                retryable=True,
                context_id=create.context_id,
                retry_after_ms=500,
            )
        )
        await peer.finish(create.context_id, "error")

    heard: list[bytes] = []
    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak() as speech,
    ):
        with pytest.raises(ServerError) as caught:
            await drain(speech, heard)
    assert heard == [b"\1\0"]
    assert (caught.value.retryable, caught.value.retry_after_ms) == (True, 500)


async def test_refused_text_raises_when_speech_ends() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        await peer.say(
            protocol.Error(ErrorCode.TEXT_TOO_LONG, "Too long.", "r", context_id=create.context_id)
        )
        await peer.audio(0, b"\1\0")
        await peer.finish(create.context_id)

    heard: list[bytes] = []
    async with fake_server(script) as url, Client(url) as client:
        with pytest.raises(ServerError, match="text_too_long"):
            async with client.speak("x") as speech:
                await drain(speech, heard)
    assert heard == [b"\1\0"]


async def test_text_iterator_error_cancels_and_is_raised() -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "Hello "
        raise ZeroDivisionError("the text's own")

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))
        await peer.open_context()  # the same id: the first context has been forgotten
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    async with fake_server(script) as url, Client(url) as client:
        with pytest.raises(ZeroDivisionError, match="the text's own"):
            async with client.speak(pieces(), context_id="a") as speech:
                await drain(speech)
        await client.ping()
        async with client.speak(context_id="a"):
            pass


@pytest.mark.parametrize("reads", [True, False])
async def test_text_that_is_cancelled_itself_ends_the_speech(reads: bool) -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "Hello "
        writing = asyncio.ensure_future(asyncio.Event().wait())
        writing.cancel()
        await writing

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    async def listen(client: Client) -> None:
        async with client.speak(pieces()) as speech, asyncio.timeout(10):
            assert speech._feeding is not None
            await (drain(speech) if reads else asyncio.wait([speech._feeding]))

    async with fake_server(script) as url, Client(url) as client:
        with pytest.raises(RuntimeError, match="the text ended with CancelledError") as ended:
            await listen(client)
        assert isinstance(ended.value.__cause__, asyncio.CancelledError)
        await client.ping()


async def test_error_in_speech_is_raised_instead_of_its_texts() -> None:
    async def pieces() -> AsyncIterator[str]:
        raise ZeroDivisionError("the text's own")
        yield "never"

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    async def listen(client: Client) -> None:
        async with client.speak(pieces()) as speech:
            assert speech._feeding is not None
            await asyncio.wait([speech._feeding])
            raise KeyError("the listener's")

    async with fake_server(script) as url, Client(url) as client:
        with pytest.raises(KeyError, match="the listener's"):
            await listen(client)


async def test_refused_long_text_is_raised_by_reading_only() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak("x" * 200_000) as speech,
    ):
        with pytest.raises(ClientError, match="4000 characters at most"):
            await drain(speech)


async def test_speech_that_is_left_before_its_answer_is_cancelled() -> None:
    is_asked = asyncio.Event()

    async def script(peer: Peer) -> None:
        create = await peer.expect(protocol.ContextCreate)
        is_asked.set()
        await peer.expect(protocol.ContextCancel)
        await peer.say(
            protocol.ContextCreated(create.context_id, 0),
            cancelled(create.context_id),
            metrics(create.context_id),
        )
        await peer.open_context(1)  # the same id
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    async with fake_server(script) as url, Client(url) as client:
        entering = asyncio.create_task(client.speak(context_id="a").__aenter__())
        await is_asked.wait()
        entering.cancel()
        await asyncio.wait([entering])
        assert entering.cancelled()
        async with client.speak(context_id="a"):
            pass


async def test_error_that_ends_nothing_is_kept_without_text_to_blame() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        code, text = ErrorCode.TEXT_TOO_LONG, "The text was not added."
        await peer.say(protocol.Error(code, text, "r", context_id=create.context_id))
        await peer.audio(0, b"\1\0")
        await peer.finish(create.context_id)

    async with fake_server(script) as url, Client(url) as client, client.speak() as speech:
        await speech.append("Hello.")
        assert await drain(speech) == [b"\1\0"]
        assert [error.code for error in speech.errors] == [ErrorCode.TEXT_TOO_LONG]


async def test_error_that_ended_speech_is_raised_and_not_an_earlier_one() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        for code in (ErrorCode.TEXT_TOO_LONG, ErrorCode.ENGINE_FAILED):
            await peer.say(protocol.Error(code, "No.", "r", context_id=create.context_id))
        await peer.finish(create.context_id, "error")

    async with fake_server(script) as url, Client(url) as client, client.speak() as speech:
        with pytest.raises(ServerError, match="engine_failed"):
            await drain(speech)


async def test_leaving_cancelled_speech_waits_for_no_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(talkwire_client.speech, "CANCEL_TIMEOUT_S", 3600.0)
    has_left = asyncio.Event()

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id))
        await has_left.wait()
        await peer.say(metrics(create.context_id))

    async with fake_server(script) as url, Client(url) as client:
        speech = client.speak()
        try:
            async with asyncio.timeout(10), speech:
                assert await speech.cancel() is not None
            assert speech.metrics is None
        finally:
            has_left.set()


async def test_timeout_leaves_speech_and_client_of_silent_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(talkwire_client.speech, "CANCEL_TIMEOUT_S", 3600.0)
    silent, has_left = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.open_context()
        peer.socket.transport.pause_reading()
        silent.set()
        await has_left.wait()
        peer.socket.transport.resume_reading()
        await peer.expect(protocol.ContextCancel)

    async def read(client: Client) -> None:
        async with asyncio.timeout(None) as limit, client.speak() as speech:
            await silent.wait()
            limit.reschedule(0)
            await speech.read()

    async with fake_server(script) as url:
        client = Client(url)
        await client.connect()
        with pytest.raises(TimeoutError):
            await read(client)
        async with asyncio.timeout(8):
            await client.close()
        has_left.set()


async def test_audio_continues_after_its_numbers_have_wrapped() -> None:
    last = 2**32 - 1

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        for at in (last, 0, 1):
            peer._position[0] = [at, at]
            await peer.audio(0, b"\1\0")
        await peer.finish(create.context_id)

    async with fake_server(script) as url, Client(url) as client:
        speech = client.speak()
        speech._sequence = speech._offset = last
        async with speech:
            assert len(await drain(speech)) == 3


@pytest.mark.parametrize("skip", [1, 2**31])
async def test_audio_gap_is_protocol_error(skip: int) -> None:
    codes = []

    async def script(peer: Peer) -> None:
        await peer.open_context()
        await peer.audio(0, b"\1\0")
        await peer.audio(0, b"\1\0", skip=skip)
        await peer.socket.wait_closed()
        codes.append(peer.socket.close_code)

    async with fake_server(script) as url, Client(url) as client:
        async with client.speak() as speech:
            with pytest.raises(ProtocolError, match=f"message {1 + skip} "):
                await drain(speech)
        with pytest.raises(ClientError):
            async with client.speak():
                pytest.fail("the socket is closed")
    assert codes == [1002]


@pytest.mark.parametrize("frame", [b"", b"\x11", b"\x21\0" + bytes(12), b"\x11\0\x63\0" + bytes(8)])
async def test_invalid_binary_frame_is_protocol_error(frame: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.open_context()
        await peer.socket.send(frame)

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak() as speech,
    ):
        with pytest.raises(ProtocolError):
            await drain(speech)


async def test_lost_connection_ends_every_speech() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_context(0)
        await peer.open_context(1)
        await peer.socket.close(1011, "worker died")

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak() as one,
        client.speak() as two,
    ):
        for speech in (one, two):
            with pytest.raises(ConnectionLostError, match="worker died") as caught:
                await drain(speech)
            assert caught.value.code == 1011


async def test_lost_connection_raises_last_server_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_context()
        await peer.say(protocol.Error(ErrorCode.SLOW_CONSUMER, "You read too slowly.", "r"))
        await peer.socket.close(1008)

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak() as speech,
    ):
        with pytest.raises(ServerError, match="slow_consumer"):
            await drain(speech)


async def test_every_error_of_lost_connection_has_only_its_own_traceback() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_context(0)
        await peer.open_context(1)
        await peer.say(protocol.Error(ErrorCode.SLOW_CONSUMER, "You read too slowly.", "r"))
        await peer.socket.close(1008)

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak() as one,
        client.speak() as two,
    ):
        reads: list[Awaitable[object]] = [drain(one), drain(two), drain(two)]
        writes: list[Awaitable[object]] = [two.append("Hi.") for _ in range(3)]
        errors = []
        for attempt in reads + writes:
            with pytest.raises(ServerError, match="slow_consumer") as caught:
                await attempt
            assert (caught.value.code, caught.value.request_id) == ("slow_consumer", "r")
            errors.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert errors == [errors[0]] * len(reads) + [errors[-1]] * len(writes)


async def test_context_id_in_use_is_refused() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.ContextEnd)
        await peer.finish(create.context_id)

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak(context_id="a") as speech,
    ):
        with pytest.raises(ValueError, match="in use"):
            async with client.speak(context_id="a"):
                pytest.fail("it is in use")
        await speech.end()
        assert await drain(speech) == []


async def test_json_audio_gap_is_protocol_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.expect(protocol.SessionConfigure)
        create = await peer.open_context()
        await peer.say(protocol.Audio(create.context_id, 0, 1, 0, 0, b"\1\0"))

    async with fake_server(script) as url:
        with pytest.raises(ProtocolError):
            async with (
                Client(url, framing="json") as client,
                client.speak() as speech,
            ):
                await drain(speech)


async def test_late_error_of_ended_context_does_not_refuse_next_of_that_id() -> None:
    """A cancel that crosses the context's end is refused when its id may be in use again."""

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.finish(create.context_id)
        await peer.expect(protocol.ContextCancel)
        await peer.expect(protocol.ContextCreate)
        late = ErrorCode.CONTEXT_CLOSED
        await peer.say(
            protocol.Error(late, "The context is closed.", "r", context_id="a"),
            protocol.ContextCreated("a", 1),
        )
        await peer.audio(1, b"\1\0")
        await peer.finish("a")

    async with fake_server(script) as url, Client(url) as client:
        async with client.speak(context_id="a") as first:
            await first._send_cancel(None)  # before its end is read
            assert await drain(first) == []
        async with client.speak(context_id="a") as second:
            assert await drain(second) == [b"\1\0"]
            assert second.errors == []


async def halting(
    has_begun: asyncio.Event, goes_on: asyncio.Event, is_closed: asyncio.Event
) -> AsyncIterator[str]:
    """A text whose second part waits for an event."""
    try:
        yield "Hello "
        has_begun.set()
        await goes_on.wait()
        yield "there."
    finally:
        is_closed.set()


@pytest.mark.parametrize("ending", ["done", "cancelled"])
async def test_no_text_is_sent_to_ended_speech(ending: str) -> None:
    """The server closes a socket that keeps sending messages which it has to refuse."""

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        if ending == "done":
            await peer.finish(create.context_id)
        else:
            await peer.expect(protocol.ContextCancel)
            await peer.say(cancelled(create.context_id), metrics(create.context_id))
        with pytest.raises(ConnectionClosed):
            await peer.receive()

    has_begun, is_over, is_closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak(halting(has_begun, is_over, is_closed)) as speech,
    ):
        await has_begun.wait()
        if ending == "cancelled":
            assert await speech.cancel() is not None
        assert await drain(speech) == []
        is_over.set()
        assert speech._feeding is not None
        await speech._feeding
        assert is_closed.is_set()


async def test_nothing_is_sent_or_heard_between_cancel_and_its_answer() -> None:
    has_begun, is_cancelled, is_closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextCancel)
        words = [protocol.Word("Hello", 0, 5, 0.0, 1.0)]
        await peer.audio(0, b"\1\0")
        await peer.say(protocol.Timestamps(create.context_id, words))
        await (await peer.socket.ping())
        is_cancelled.set()
        await is_closed.wait()
        await peer.say(cancelled(create.context_id), metrics(create.context_id))
        with pytest.raises(ConnectionClosed):
            await peer.receive()

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak(halting(has_begun, is_cancelled, is_closed)) as speech,
    ):
        reading = asyncio.create_task(drain(speech))
        await has_begun.wait()
        cancelling = asyncio.create_task(speech.cancel())
        await is_cancelled.wait()
        await speech.report_playback(0)
        assert await cancelling is not None
        assert await reading == []
        assert speech.words == []


async def test_no_playback_is_reported_of_ended_speech() -> None:
    """The listener still plays for a while after the server has sent everything."""

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.audio(0, b"\1\0")
        await peer.finish(create.context_id)
        with pytest.raises(ConnectionClosed):
            await peer.receive()

    async with fake_server(script) as url, Client(url) as client, client.speak() as speech:
        assert len(await drain(speech)) == 1
        await speech.report_playback(1)


async def test_text_ends_when_speech_takes_no_more() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        code, text = ErrorCode.TEXT_TOO_LONG, "The text was not added."
        await peer.say(protocol.Error(code, text, "r", context_id=create.context_id))
        await peer.expect(protocol.ContextEnd)
        await peer.finish(create.context_id)

    async def text() -> AsyncIterator[str]:
        yield "Hello "
        while not speech.errors:
            await asyncio.sleep(0)
        yield "there."

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak(text()) as speech,
    ):
        with pytest.raises(ServerError, match="text_too_long"):
            await drain(speech)


async def test_reason_for_which_client_closes_connection_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(peer: Peer) -> None:
        await peer.open_context()
        await peer.audio(0, bytes(2000))

    monkeypatch.setattr(talkwire_client.client, "_MAX_MESSAGE_BYTES", 1000)
    async with fake_server(script) as url, Client(url) as client, client.speak() as speech:
        with pytest.raises(ConnectionLostError, match="exceeds limit of 1000 bytes") as caught:
            await drain(speech)
        assert caught.value.code is None
