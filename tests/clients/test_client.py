"""The asynchronous client: order of audio, cancellation, flushes and options."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import PosixPath
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from talkwire_client import SyncClient, protocol
from talkwire_client.client import Client
from talkwire_client.protocol import AudioFlags
from talkwire_client.speech import MAX_QUEUED_CHUNKS
from tests.clients.fake_server import Peer, cancelled, drain, fake_server, metrics, speak_between


async def test_speech_audio_arrives_in_order() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context(handle=7)
        assert (create.voice, create.sampling.seed) == ("narrator", 3)
        assert (await peer.expect(protocol.TextAppend)).text == "Hello there."
        await peer.expect(protocol.ContextEnd)
        await peer.audio(7, b"\1\0" * 10, AudioFlags.FIRST)
        await peer.say_raw({"type": "from.the.future", "context_id": create.context_id})
        await peer.audio(7, b"\2\0" * 5)
        await peer.audio(7, b"", AudioFlags.LAST)
        await peer.finish(create.context_id)

    async with fake_server(script) as url, Client(url) as client:
        assert client.server.voices == ["narrator"]
        async with client.speak("Hello there.", voice="narrator", seed=3) as speech:
            chunks = [chunk async for chunk in speech]
    assert [c.data for c in chunks] == [b"\1\0" * 10, b"\2\0" * 5, b""]
    assert [c.samples for c in chunks] == [10, 5, 0]
    assert [c.header.sample_offset for c in chunks] == [0, 10, 15]
    assert chunks[-1].header.flags == AudioFlags.LAST
    assert sorted(c.arrived_s for c in chunks) == [c.arrived_s for c in chunks]


async def test_speech_audio_arrives_while_text_is_written() -> None:
    heard = asyncio.Event()

    async def pieces() -> AsyncIterator[str]:
        yield "Hello "
        await heard.wait()  # never set if the client collected the text first
        yield "there."

    async with (
        fake_server(speak_between) as url,
        Client(url) as client,
        client.speak(pieces()) as speech,
    ):
        async for _ in speech:
            heard.set()
    assert heard.is_set()


async def test_speeches_on_one_connection_do_not_mix() -> None:
    async def script(peer: Peer) -> None:
        one, two = await peer.open_context(1), await peer.open_context(2)
        for number in range(5):
            await peer.audio(2, bytes([2, 0, number, 0]))
            await peer.audio(1, bytes([1, 0, number, 0]))
        await peer.finish(two.context_id)
        await peer.audio(1, b"\1\0\5\0")
        await peer.finish(one.context_id)

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak() as one,
        client.speak() as two,
    ):
        first, second = [c.data async for c in one], [c.data async for c in two]
        assert (one.metrics, one.done) == (
            metrics(one.context_id),
            protocol.ContextDone(one.context_id, "complete"),
        )
    assert first == [bytes([1, 0, n, 0]) for n in range(6)]
    assert second == [bytes([2, 0, n, 0]) for n in range(5)]


async def test_cancel_drops_unread_audio_and_frees_context_id() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context(4)
        await peer.audio(4, b"\1\0" * 480)
        assert (await peer.expect(protocol.ContextCancel)).played_ms == 20.0
        await peer.audio(4, b"\1\0" * 480)  # under way when the cancel arrived
        await peer.say(cancelled(create.context_id), metrics(create.context_id))
        again = await peer.open_context(5)
        assert again.context_id == create.context_id
        await peer.finish(again.context_id)

    async with fake_server(script) as url, Client(url) as client:
        async with client.speak(context_id="a") as speech:
            answer = await speech.cancel(20.0)
            assert answer is not None
            assert (answer.text_spoken, answer.text_remaining) == ("Hello", " there.")
            assert await drain(speech) == []
            assert await speech.cancel() == answer
        await client.ping()  # everything sent before the pong has been read
        async with client.speak(context_id="a") as speech:
            assert await drain(speech) == []
        assert speech.metrics is not None


async def test_cancellation_is_not_lost_while_context_id_becomes_free() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id))  # the metrics are still to come

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak(context_id="a") as earlier,
    ):
        await earlier.cancel()
        step, is_over = 0, False
        while not is_over:
            client._speeches["a"] = earlier
            earlier._forgotten.clear()
            registering = asyncio.create_task(client.register(client.speak(context_id="a")))
            while not earlier._is_awaited:
                await asyncio.sleep(0)
            client._forget(earlier)
            for _ in range(step):
                await asyncio.sleep(0)
            is_over = not registering.cancel()
            await asyncio.wait([registering])
            assert registering.cancelled() is not is_over
            client._forget(earlier)
            step += 1


async def test_speech_is_cancelled_on_early_exit() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        await peer.audio(0, b"\1\0")
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak("Hello") as speech,
    ):
        await anext(aiter(speech))


async def test_slow_reader_applies_backpressure_and_can_cancel() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        for _ in range(2 * MAX_QUEUED_CHUNKS):
            await peer.audio(0, b"\1\0")
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak() as speech,
    ):
        while speech.queued_chunks < MAX_QUEUED_CHUNKS:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # time to overfill the queue
        assert speech.queued_chunks == MAX_QUEUED_CHUNKS
        assert await speech.cancel() is not None
        assert await drain(speech) == []


async def test_objects_describe_themselves_in_notebooks() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        await peer.say(protocol.AudioStarted(create.context_id, "pcm_s16le", 24_000))
        await peer.audio(0, bytes(24_000))
        await peer.finish(create.context_id)

    async with fake_server(script) as url:
        client = Client(url.replace("ws://", "ws://user:secret@") + "?api_key=secret")
        where = url.removeprefix("ws://")
        assert repr(client) == f"<Client ws://{where}: not connected>"
        async with client:
            assert repr(client) == f"<Client ws://{where}: connected, model fake>"
            speech = client.speak("Hello there.")
            assert repr(speech) == "<Speech c1: not entered, no audio yet, 0 timed words>"
            async with speech:
                chunks = [chunk async for chunk in speech]
            said = "<Speech c1: complete, 0.50 s of pcm_s16le at 24000 Hz, 0 timed words>"
            assert repr(speech) == said
            assert repr(chunks) == "[<AudioChunk 0: 12000 samples, 24000 bytes>]"
        assert repr(client) == f"<Client ws://{where}: closed>"
    assert repr(SyncClient("127.0.0.1:8000")) == "<SyncClient 127.0.0.1:8000: not connected>"


async def test_text_that_ends_after_cancel_is_not_ended_at_server() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))
        again = await peer.open_context(handle=1)  # the next message
        await peer.expect(protocol.ContextEnd)
        await peer.finish(again.context_id)

    sent, ended = asyncio.Event(), asyncio.Event()

    async def text() -> AsyncIterator[str]:
        yield "Hello "
        sent.set()
        await ended.wait()

    async with fake_server(script) as url, Client(url) as client:
        async with client.speak(text()) as speech:
            await sent.wait()
            ended.set()
            await speech.cancel()
        async with client.speak() as other:
            await other.end()
            assert await other.read() == b""
        assert client.is_open
    assert not client.is_open


async def test_cancel_of_finished_speech_drops_unread_audio() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        for _ in range(9):
            await peer.audio(0, b"\1\0")
        await peer.finish(create.context_id)

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak() as speech,
    ):
        while not speech.is_over:
            await asyncio.sleep(0.01)
        heard = []
        async for chunk in speech:
            heard.append(chunk.data)
            assert await speech.cancel() is None
        assert heard == [b"\1\0"]


async def test_json_framing_gives_same_chunks() -> None:
    async def script(peer: Peer) -> None:
        assert (await peer.expect(protocol.SessionConfigure)).framing == "json"
        create = await peer.open_context(handle=3)
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        await peer.say(
            protocol.Audio(create.context_id, 3, 0, 0, AudioFlags.FIRST, b"\1\0" * 4),
            protocol.Audio(create.context_id, 3, 1, 4, AudioFlags.LAST, b"\2\0"),
        )
        await peer.finish(create.context_id)

    async with (
        fake_server(script) as url,
        Client(url, framing="json") as client,
        client.speak("Hello.") as speech,
    ):
        chunks = [chunk async for chunk in speech]
    assert [chunk.data for chunk in chunks] == [b"\1\0" * 4, b"\2\0"]
    assert [chunk.samples for chunk in chunks] == [4, 1]
    assert [chunk.header.flags for chunk in chunks] == [AudioFlags.FIRST, AudioFlags.LAST]


async def test_wait_flushed_returns_whether_flush_completed() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        first, second = [(await peer.expect(protocol.ContextFlush)).flush_id for _ in range(2)]
        assert (await peer.expect(protocol.ContextFlush)).flush_id == "mine"
        await peer.audio(0, b"\1\0")
        await peer.say(protocol.FlushDone(create.context_id, first))
        await peer.expect(protocol.ContextEnd)
        await peer.finish(create.context_id)
        assert first != second

    async with fake_server(script) as url, Client(url) as client, client.speak() as speech:
        first, second = await speech.flush(), await speech.flush()
        assert await speech.flush("mine") == "mine"
        tasks = asyncio.all_tasks()
        assert await speech.wait_flushed(first)
        await speech.end()
        assert not await speech.wait_flushed(second)
        assert not speech._is_awaited
        await asyncio.sleep(0)
        assert asyncio.all_tasks() <= tasks
        assert await speech.read() == b"\1\0"


async def test_speech_options_map_to_context_create() -> None:
    reference = protocol.ReferenceOptions(b"RIFF", "what is said")
    seen: list[protocol.ContextCreate] = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.open_context())
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(seen[0].context_id), metrics(seen[0].context_id))

    async with fake_server(script) as url, Client(url) as client:
        speech = client.speak(
            encoding="pcm_mulaw",
            speed=1.5,
            temperature=0.2,
            top_k=5,
            language="en",
            max_lead_ms=400,
            timestamps=True,
            reference=reference,
        )
        assert speech.sample_rate == 8000
        async with speech:
            pass
    assert seen == [
        protocol.ContextCreate(
            "c1",
            language="en",
            audio=protocol.AudioOptions(protocol.Encoding.PCM_MULAW, speed=1.5),
            sampling=protocol.SamplingOptions(temperature=0.2, top_k=5),
            max_lead_ms=400,
            timestamps=True,
            reference=reference,
        )
    ]


@pytest.mark.parametrize("context_id", ["", "x" * 129, 7, None, b"x"])
async def test_context_id_that_no_answer_could_name_is_refused(context_id: Any) -> None:
    """The server's error names no context then, so that no speech would learn of it."""
    with pytest.raises(ValueError, match="a context id is a string of 1 to 128 characters"):
        Client().speak("Hello.", context_id=context_id)
    assert Client().speak("Hello.", context_id="é" * 128).context_id == "é" * 128


async def test_wait_flushed_waits_for_every_flush_of_its_id() -> None:
    answer = asyncio.Event()

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        done = protocol.FlushDone(create.context_id, "mine")
        for _ in range(2):
            await peer.expect(protocol.ContextFlush)
        await peer.say(done, protocol.FlushDone(create.context_id, "other"))
        await answer.wait()
        await peer.say(done)
        await peer.expect(protocol.ContextFlush)
        await peer.say(done)
        await peer.expect(protocol.ContextEnd)
        await peer.finish(create.context_id)

    async with fake_server(script) as url, Client(url) as client, client.speak() as speech:
        await speech.flush("mine")
        waiting = asyncio.create_task(speech.wait_flushed("mine"))
        await asyncio.sleep(0)
        await speech.flush("mine")
        assert await speech.wait_flushed("other")
        assert not waiting.done()
        answer.set()
        assert await waiting
        await speech.flush("mine")
        assert await speech.wait_flushed("mine")
        await speech.end()


@pytest.mark.parametrize("flush_id", ["x" * 129, 7, b"x"])
async def test_flush_id_that_no_answer_could_name_is_refused(flush_id: Any) -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.ContextEnd)
        await peer.finish(create.context_id)

    async with fake_server(script) as url, Client(url) as client, client.speak() as speech:
        with pytest.raises(ValueError, match="a flush id is a string of 1 to 128 characters"):
            await speech.flush(flush_id)
        await speech.end()
        assert await drain(speech) == []


async def test_cancel_before_playback_began_says_that_nothing_was_heard() -> None:
    """A player's clock is negative until then. The server would refuse the cancel."""

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        assert (await peer.expect(protocol.ContextCancel)).played_ms == 0.0
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    async with fake_server(script) as url, Client(url) as client, client.speak() as speech:
        assert await speech.cancel(-5) is not None


async def test_speak_refuses_unknown_option_or_encoding() -> None:
    client = Client()
    with pytest.raises(TypeError, match="no such option of a speech: sampel_rate, voise"):
        client.speak("Hello.", voise="default", sampel_rate=8000)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="mp3"):
        client.speak("Hello.", encoding="mp3")


async def test_speak_refuses_value_that_json_cannot_hold() -> None:
    """When the speech was entered, it waited for an answer to what it could not send."""
    client = Client()
    with pytest.raises(TypeError, match="PosixPath"):
        client.speak("Hello.", voice=PosixPath("emma"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="surrogates"):
        client.speak("Hello.", scene="\ud800")
    for name in ("temperature", "top_p", "speed"):
        for value in ("nan", "inf"):
            with pytest.raises(TypeError, match=f"{name} is {value}"):
                client.speak("Hello.", **{name: float(value)})  # type: ignore[arg-type]


async def test_speech_that_is_not_open_refuses_calls() -> None:
    """The server would ignore them, and a caller that waits for an answer would wait for ever."""

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.ContextEnd)
        await peer.finish(create.context_id)

    async with fake_server(script) as url, Client(url) as client, asyncio.timeout(10):
        unopened = client.speak()
        for call in (
            unopened.cancel(),
            unopened.append("Hi."),
            unopened.flush(),
            unopened.wait_flushed("f1"),
            unopened.end(),
            unopened.report_playback(1),
        ):
            with pytest.raises(RuntimeError, match="open the speech first"):
                await call
        async with unopened as speech:
            await speech.end()
            assert await drain(speech) == []


async def test_client_and_speech_refuse_misuse() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.ContextEnd)
        await peer.finish(create.context_id)

    unopened = Client()
    with pytest.raises(RuntimeError, match="not connected"):
        assert unopened.server
    async with fake_server(script) as url, Client(url) as client:
        with pytest.raises(RuntimeError, match="connects once"):
            await client.connect()
        with pytest.raises(RuntimeError, match="open the speech first"):
            await client.speak("Hello.").read()
        async with client.speak() as speech:
            await speech.end()
            assert await speech.read() == b""
        with pytest.raises(RuntimeError, match="entered once"):
            await speech.__aenter__()
        await client.close()
        await client.close()


async def test_client_url_without_path_gets_default_path() -> None:
    paths: list[str] = []

    async def script(peer: Peer) -> None:
        assert peer.socket.request is not None
        paths.append(peer.socket.request.path)

    async with fake_server(script) as url:
        server = url.removesuffix(protocol.PATH)
        for address in (server, f"{server}/", f"{server}?a=b", f"{server}/other"):
            async with Client(address):
                pass
    assert paths == [protocol.PATH, protocol.PATH, f"{protocol.PATH}?a=b", "/other"]


async def test_speech_has_server_warning() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.expect(protocol.ContextCreate)
        await peer.say(protocol.ContextCreated(create.context_id, 0, "It could be better."))
        await peer.finish(create.context_id)

    async with fake_server(script) as url, Client(url) as client, client.speak() as speech:
        assert speech.warning == "It could be better."


async def test_speech_has_warnings_about_its_markup() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.expect(protocol.ContextCreate)
        await peer.say(protocol.ContextCreated(create.context_id, 0))
        for kind in ("emotion", "tag"):
            await peer.say(protocol.ContextWarning(create.context_id, kind, "It is left out."))
        await peer.finish(create.context_id)

    async with fake_server(script) as url, Client(url) as client, client.speak() as speech:
        async for _ in speech:
            pass
        assert [warning.kind for warning in speech.markup_warnings] == ["emotion", "tag"]


@pytest.mark.parametrize("interrupted", [False, True])
async def test_cancel_is_sent_once_over_slow_connection(
    interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second cancel is another task's, or that of leaving after the first was interrupted."""
    written, room = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        assert (await peer.expect(protocol.ContextCancel)).played_ms == 20.0
        await room.wait()
        await peer.say(cancelled(create.context_id), metrics(create.context_id))
        with pytest.raises(ConnectionClosed):
            await peer.receive()

    async with fake_server(script) as url, Client(url) as client:
        send = client.send

        async def send_slowly(message: protocol.ClientMessage) -> None:
            await send(message)
            written.set()
            await room.wait()

        speech = client.speak()
        await speech.__aenter__()
        monkeypatch.setattr(client, "send", send_slowly)
        with pytest.raises(TypeError):
            await speech.cancel([])  # type: ignore[arg-type]
        first = asyncio.create_task(speech.cancel(20.0))
        await written.wait()
        if interrupted:
            first.cancel()
            await asyncio.wait([first])
        second = asyncio.create_task(speech.cancel())
        await asyncio.sleep(0)
        room.set()
        assert await second == cancelled(speech.context_id)
        await speech.__aexit__(None, None, None)
        assert first.cancelled() is interrupted


async def test_speech_that_is_done_before_it_is_open_ends() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.expect(protocol.ContextCreate)
        await peer.finish(create.context_id)

    async with fake_server(script) as url, Client(url) as client, client.speak() as speech:
        assert await drain(speech) == []
        assert speech.done is not None
