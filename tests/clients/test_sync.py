from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from clients.errors import ConnectionLostError, NoServerError, ServerError
from clients.sync import SyncClient
from streaming import wire
from streaming.wire_format import AudioFlags
from tests.clients.fake_server import Peer, Script, cancelled, fake_server, metrics, speak_between


@contextlib.contextmanager
def served(script: Script) -> Iterator[str]:
    """A scripted server on a thread of its own."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(fake_server(script)) as url,
    ):
        yield url


async def speak_one(peer: Peer) -> None:
    create = await peer.open_context()
    await peer.expect(wire.TextAppend)
    await peer.expect(wire.ContextEnd)
    await peer.audio(0, b"\1\0" * 10, AudioFlags.FIRST)
    await peer.audio(0, b"\2\0" * 5, AudioFlags.LAST)
    await peer.finish(create.context_id)


def test_speaks_a_text_and_hands_over_its_audio_in_order() -> None:
    with served(speak_one) as url, SyncClient.connect(url) as client:
        assert client.created.voices == ["narrator"]
        assert client.going_away is None
        assert client.ping() > 0
        chunks = list(client.speak("Hello there."))
    assert [chunk.pcm for chunk in chunks] == [b"\1\0" * 10, b"\2\0" * 5]
    assert [chunk.header.sample_offset for chunk in chunks] == [0, 10]


def test_audio_comes_while_text_is_still_being_written() -> None:
    heard = threading.Event()

    def pieces() -> Iterator[str]:
        yield "Hello "
        assert heard.wait(60)  # for ever, if the text were gathered first
        yield "there."

    with served(speak_between) as url, SyncClient.connect(url) as client:
        for _ in client.speak(pieces()):
            heard.set()
    assert heard.is_set()


def test_a_context_by_hand() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        assert (create.voice, create.timestamps) == ("narrator", True)
        assert (await peer.expect(wire.TextAppend)).text == "Hello"
        assert (await peer.expect(wire.ContextFlush)).flush_id == "f"
        await peer.expect(wire.ContextEnd)
        await peer.say(wire.AudioStarted(create.context_id, create.audio.encoding, 24_000))
        await peer.audio(0, b"\1\0" * 4)
        await peer.say(
            wire.Timestamps(create.context_id, [wire.Word("Hello", 0, 5, 0.0, 1.0)]),
        )
        assert (await peer.expect(wire.Playback)).played_samples == 4
        await peer.finish(create.context_id, "length")

    told: list[str] = []
    with (
        served(script) as url,
        SyncClient.connect(url) as client,
        client.context(
            voice="narrator", on_words=lambda words: told.extend(word.text for word in words)
        ) as context,
    ):
        assert context.started is None
        context.append("Hello")
        context.flush("f")
        context.end()
        for chunk in context:
            context.report_played(chunk.samples)
        assert context.is_over
        assert context.started is not None
        assert context.started.sample_rate == 24_000
        assert context.done == wire.ContextDone(context.context_id, "length")
        assert context.metrics == metrics(context.context_id)
        assert [word.text for word in context.words] == told == ["Hello"]
        assert context.cancelled is None


def test_cancelling_tells_what_was_heard() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(wire.TextAppend)
        await peer.audio(0, b"\1\0")
        assert (await peer.expect(wire.ContextCancel)).played_ms == 20.0
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    with (
        served(script) as url,
        SyncClient.connect(url) as client,
        client.context(context_id="a") as context,
    ):
        context.append("Hello there.")
        heard = iter(context)
        next(heard)
        assert context.cancel(played_ms=20.0) == context.cancelled == cancelled("a")
        assert list(heard) == []


def stopped_early(stop: Any) -> None:
    """``stop`` leaves a generator whose server has more to say; the server must be told."""
    told = threading.Event()

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(wire.TextAppend)
        await peer.expect(wire.ContextEnd)
        await peer.audio(0, b"\1\0")
        await peer.expect(wire.ContextCancel)
        told.set()
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    with served(script) as url, SyncClient.connect(url) as client:
        stop(client.speak("Hello there."))
        assert told.is_set()


def test_leaving_a_loop_cancels() -> None:
    def leave(chunks: Any) -> None:
        with contextlib.closing(chunks):
            for _ in chunks:
                break

    stopped_early(leave)


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    """As in a terminal: a shell starts what runs in its background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_while_waiting_for_audio_cancels() -> None:
    def interrupt(chunks: Any) -> None:
        next(chunks)  # the second one never comes
        main = threading.main_thread().ident
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(chunks)

    stopped_early(interrupt)


def test_a_text_that_fails_ends_its_speech_with_its_own_error() -> None:
    def pieces() -> Iterator[str]:
        yield "Hello "
        raise LookupError("the model is gone")

    told = threading.Event()

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(wire.TextAppend)
        await peer.expect(wire.ContextCancel)
        told.set()
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    with served(script) as url, SyncClient.connect(url) as client:
        with pytest.raises(LookupError, match="the model is gone"):
            list(client.speak(pieces()))
        assert told.is_set()


def test_leaving_does_not_wait_for_a_text_that_blocks() -> None:
    written = threading.Event()

    def pieces() -> Iterator[str]:
        yield "Hello. "
        written.wait(60)

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(wire.TextAppend)
        await peer.audio(0, b"\1\0")
        await peer.expect(wire.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    with served(script) as url, SyncClient.connect(url) as client:
        chunks = client.speak(pieces())
        next(chunks)
        chunks.close()
        assert not written.is_set()
        written.set()


def test_one_thread_writes_and_another_hears() -> None:
    with served(speak_one) as url, SyncClient.connect(url) as client, client.context() as context:
        heard: list[bytes] = []
        listener = threading.Thread(target=lambda: heard.extend(c.pcm for c in context))
        listener.start()
        context.append("Hello there.")
        context.end()
        listener.join()
    assert len(heard) == 2


def test_errors_are_the_asynchronous_clients() -> None:
    with pytest.raises(NoServerError), SyncClient.connect("ws://127.0.0.1:9/"):
        pass

    async def refuses(peer: Peer) -> None:
        create: wire.ContextCreate = await peer.expect(wire.ContextCreate)
        await peer.say(
            wire.Error("unknown_voice", "No such voice.", "r", context_id=create.context_id)
        )

    with served(refuses) as url, SyncClient.connect(url) as client:
        with pytest.raises(ServerError) as refused:
            list(client.speak("Hello.", voice="nobody"))
        assert refused.value.code == "unknown_voice"

    async def leaves(peer: Peer) -> None:
        await peer.open_context()
        await peer.expect(wire.TextAppend)
        await peer.socket.close(1011)

    with (
        served(leaves) as url,
        SyncClient.connect(url) as client,
        pytest.raises(ConnectionLostError),
    ):
        list(client.speak("Hello."))
