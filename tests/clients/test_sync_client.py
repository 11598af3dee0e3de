from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
import signal
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from talkwire_client import protocol
from talkwire_client.errors import ClientError, ConnectionLostError, NoServerError, ServerError
from talkwire_client.protocol import AudioFlags
from talkwire_client.sync_client import SyncClient, SyncSpeech, _iterate_in_thread, _LoopThread
from tests.clients.fake_server import Peer, Script, cancelled, fake_server, metrics, speak_between
from tests.waiting import until


@contextlib.contextmanager
def served(script: Script) -> Iterator[str]:
    """Run a scripted server in a separate thread."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(fake_server(script)) as url,
    ):
        yield url


async def speak_one(peer: Peer) -> None:
    create = await peer.open_context()
    await peer.expect(protocol.TextAppend)
    await peer.expect(protocol.ContextEnd)
    await peer.audio(0, b"\1\0" * 10, AudioFlags.FIRST)
    await peer.audio(0, b"\2\0" * 5, AudioFlags.LAST)
    await peer.finish(create.context_id)


def test_sync_speech_audio_arrives_in_order() -> None:
    with served(speak_one) as url, SyncClient(url) as client:
        assert client.server.voices == ["narrator"]
        assert client.going_away is None
        assert client.ping() > 0
        with client.speak("Hello there.") as speech:
            chunks = list(speech)
    assert [chunk.data for chunk in chunks] == [b"\1\0" * 10, b"\2\0" * 5]
    assert [chunk.header.sample_offset for chunk in chunks] == [0, 10]


def test_sync_speech_audio_arrives_while_text_is_written() -> None:
    heard = threading.Event()

    def pieces() -> Iterator[str]:
        yield "Hello "
        assert heard.wait(60)  # never set if the client collected the text first
        yield "there."

    with (
        served(speak_between) as url,
        SyncClient(url) as client,
        client.speak(pieces()) as speech,
    ):
        for _ in speech:
            heard.set()
    assert heard.is_set()


def test_sync_speech_with_manual_append_flush_and_end() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        assert (create.voice, create.timestamps) == ("narrator", True)
        assert (await peer.expect(protocol.TextAppend)).text == "Hello"
        assert (await peer.expect(protocol.ContextFlush)).flush_id == "f"
        await peer.expect(protocol.ContextEnd)
        await peer.say(protocol.AudioStarted(create.context_id, create.audio.encoding, 24_000))
        await peer.audio(0, b"\1\0" * 4)
        await peer.say(
            protocol.Timestamps(create.context_id, [protocol.Word("Hello", 0, 5, 0.0, 1.0)]),
        )
        assert (await peer.expect(protocol.Playback)).played_samples == 4
        await peer.finish(create.context_id, "length")

    told: list[str] = []
    with (
        served(script) as url,
        SyncClient(url) as client,
        client.speak(
            voice="narrator", on_words=lambda words: told.extend(word.text for word in words)
        ) as speech,
    ):
        assert speech.started is None
        speech.append("Hello")
        speech.flush("f")
        speech.end()
        for chunk in speech:
            speech.report_playback(chunk.samples)
        assert speech.is_over
        assert speech.started is not None
        assert speech.started.sample_rate == 24_000
        assert speech.done == protocol.ContextDone(speech.context_id, "length")
        assert speech.metrics == metrics(speech.context_id)
        assert [word.text for word in speech.words] == told == ["Hello"]
        assert speech.cancelled is None


def test_sync_cancel_returns_cancelled_message_and_ends_audio() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.audio(0, b"\1\0")
        assert (await peer.expect(protocol.ContextCancel)).played_ms == 20.0
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    with (
        served(script) as url,
        SyncClient(url) as client,
        client.speak(context_id="a") as speech,
    ):
        speech.append("Hello there.")
        heard = iter(speech)
        next(heard)
        assert speech.cancel(played_ms=20.0) == speech.cancelled == cancelled("a")
        assert list(heard) == []


def stopped_early(stop: Callable[[SyncSpeech], None]) -> None:
    """Check that the server receives a cancel when ``stop`` leaves an unfinished speech."""
    told = threading.Event()

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        await peer.audio(0, b"\1\0")
        await peer.expect(protocol.ContextCancel)
        told.set()
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    with served(script) as url, SyncClient(url) as client:
        with client.speak("Hello there.") as speech:
            stop(speech)
        assert told.is_set()


def test_sync_speech_is_cancelled_on_early_exit() -> None:
    def leave(speech: SyncSpeech) -> None:
        for _ in speech:
            break

    stopped_early(leave)


@pytest.mark.usefixtures("ctrl_c")
def test_sync_speech_is_cancelled_on_interrupt() -> None:
    def interrupt(speech: SyncSpeech) -> None:
        chunks = iter(speech)
        next(chunks)  # no second chunk is sent
        main = threading.main_thread().ident
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(chunks)

    stopped_early(interrupt)


def test_sync_text_iterator_error_cancels_and_is_raised() -> None:
    def pieces() -> Iterator[str]:
        yield "Hello "
        raise LookupError("the model is gone")

    told = threading.Event()

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextCancel)
        told.set()
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    with served(script) as url, SyncClient(url) as client:
        with (
            pytest.raises(LookupError, match="the model is gone"),
            client.speak(pieces()) as speech,
        ):
            list(speech)
        assert told.is_set()


def test_sync_text_iterator_that_exits_is_an_error() -> None:
    def pieces() -> Iterator[str]:
        yield "Hello "
        sys.exit("the model is gone")

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    with (
        served(script) as url,
        SyncClient(url) as client,
        pytest.raises(RuntimeError, match="the text ended with SystemExit") as ended,
        client.speak(pieces()) as speech,
    ):
        list(speech)
    assert isinstance(ended.value.__cause__, SystemExit)


def test_sync_text_iterator_of_none_is_refused() -> None:
    """An LLM's stream has parts without text, which must not end the speech in silence."""

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        if isinstance(await peer.receive(), protocol.ContextEnd):
            return await peer.finish(create.context_id)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    pieces: list[Any] = ["Hello ", None, "there."]
    with (
        served(script) as url,
        SyncClient(url) as client,
        pytest.raises(TypeError),
        client.speak(pieces) as speech,
    ):
        list(speech)


def test_sync_speech_exit_does_not_wait_for_text_iterator() -> None:
    written = threading.Event()

    def pieces() -> Iterator[str]:
        yield "Hello. "
        written.wait(60)

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.audio(0, b"\1\0")
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    with served(script) as url, SyncClient(url) as client:
        with client.speak(pieces()) as speech:
            next(iter(speech))
        assert not written.is_set()
        written.set()


async def test_sync_text_thread_ends_if_text_is_left_before_its_last_part() -> None:
    at_last = threading.Event()
    threads = []

    def text() -> Iterator[str]:
        threads.append(threading.current_thread())
        yield "one"
        yield "two"
        at_last.set()
        yield "three"

    parts = _iterate_in_thread(text())
    assert await anext(parts) == "one"
    while not at_last.is_set() or len(asyncio.all_tasks()) == 1:  # until it waits for room
        await asyncio.sleep(0)
    assert isinstance(parts, AsyncGenerator)
    await parts.aclose()
    await until(lambda: not threads[0].is_alive())


async def test_sync_text_thread_takes_no_more_of_text_that_is_left() -> None:
    threads, is_enough = [], False

    def text() -> Iterator[str]:
        threads.append(threading.current_thread())
        while not is_enough:
            yield "more"

    parts = _iterate_in_thread(text())
    assert await anext(parts) == "more"
    assert isinstance(parts, AsyncGenerator)
    await parts.aclose()
    try:
        await until(lambda: not threads[0].is_alive(), timeout_s=10)
    finally:
        is_enough = True


def test_sync_client_that_could_not_connect_leaves_no_thread() -> None:
    client = SyncClient("ws://127.0.0.1:1")
    for _ in range(2):
        with pytest.raises(NoServerError):
            client.connect()
        assert "talkwire-client" not in [thread.name for thread in threading.enumerate()]


def test_sync_speech_is_usable_from_two_threads() -> None:
    with served(speak_one) as url, SyncClient(url) as client, client.speak() as speech:
        heard: list[bytes] = []
        listener = threading.Thread(target=lambda: heard.extend(c.data for c in speech))
        listener.start()
        speech.append("Hello there.")
        speech.end()
        listener.join()
    assert len(heard) == 2


def test_sync_errors_match_asynchronous_client() -> None:
    with pytest.raises(NoServerError), SyncClient("ws://127.0.0.1:9/"):
        pass

    async def refuses(peer: Peer) -> None:
        create: protocol.ContextCreate = await peer.expect(protocol.ContextCreate)
        await peer.say(
            protocol.Error("unknown_voice", "No such voice.", "r", context_id=create.context_id)
        )

    with served(refuses) as url, SyncClient(url) as client:
        with pytest.raises(ServerError) as refused, client.speak("Hello.", voice="nobody"):
            pytest.fail("it was refused")
        assert refused.value.code == "unknown_voice"

    async def leaves(peer: Peer) -> None:
        await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.socket.close(1011)

    with (
        served(leaves) as url,
        SyncClient(url) as client,
        pytest.raises(ConnectionLostError),
        client.speak("Hello.") as speech,
    ):
        list(speech)


def test_sync_client_refuses_misuse() -> None:
    unopened = SyncClient()
    with pytest.raises(RuntimeError, match="not connected"):
        unopened.ping()
    with pytest.raises(RuntimeError, match="not connected"):
        unopened.speak("Hello.").__enter__()
    unopened.close()
    with served(speak_one) as url, SyncClient(url) as client:
        with pytest.raises(RuntimeError, match="connects once"):
            client.connect()
        with client.speak("Hello there.") as speech:
            assert speech.read() == b"\1\0" * 10 + b"\2\0" * 5
        client.close()
        client.close()
        with pytest.raises(ConnectionLostError, match="the client was closed"):
            client.ping()


def test_sync_speech_exit_after_close_is_no_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_context()

    with served(script) as url, SyncClient(url) as client:
        with client.speak():
            client.close()
        with pytest.raises(ConnectionLostError, match="the client was closed"):
            client.speak().__enter__()


def test_sync_client_is_of_no_use_in_forked_process() -> None:
    """The loop's thread is not forked, so nothing would ever answer."""

    async def script(peer: Peer) -> None:
        pass

    def use(client: SyncClient, told: Connection) -> None:
        with pytest.raises(ConnectionLostError, match="the process that connected it"):
            client.ping()
        client.close()
        told.send("closed")

    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    with served(script) as url, SyncClient(url) as client:
        child = fork.Process(target=use, args=(client, there))
        child.start()
        there.close()
        try:
            assert here.poll(60)
            assert here.recv() == "closed"
        finally:
            child.kill()
            child.join()
        assert client.ping() > 0


def test_sync_client_is_closed_by_several_threads() -> None:
    async def script(peer: Peer) -> None:
        pass

    with served(script) as url, ThreadPoolExecutor(3) as threads:
        for _ in range(60):
            with SyncClient(url) as client:
                for closing in [threads.submit(client.close) for _ in range(3)]:
                    closing.result()


def test_sync_on_words_cannot_wait_for_its_own_thread() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.say(protocol.Timestamps(create.context_id, []))
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    with (
        served(script) as url,
        SyncClient(url) as client,
        client.speak(on_words=lambda words: print(client.ping())) as speech,
        pytest.raises(RuntimeError, match="on_words"),
    ):
        list(speech)


def test_sync_on_words_that_exits_ends_only_its_speech() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.say(protocol.Timestamps(create.context_id, []))
        await peer.expect(protocol.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    def leave(words: Sequence[protocol.Word]) -> None:
        sys.exit("enough")

    with served(script) as url, SyncClient(url) as client:
        with (
            pytest.raises(RuntimeError, match="on_words ended with SystemExit") as ended,
            client.speak(on_words=leave) as speech,
        ):
            list(speech)
        assert isinstance(ended.value.__cause__, SystemExit)
        assert client.ping() > 0


def test_sync_wait_flushed_returns_true_after_flush() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        flush = await peer.expect(protocol.ContextFlush)
        await peer.say(protocol.FlushDone(create.context_id, flush.flush_id))
        await peer.expect(protocol.ContextEnd)
        await peer.finish(create.context_id)

    with served(script) as url, SyncClient(url) as client, client.speak() as speech:
        assert speech.wait_flushed(speech.flush())
        speech.end()
        assert speech.read() == b""


def test_call_while_the_client_is_being_closed_ends() -> None:
    """The loop still runs then, to close what is open on it, but no longer for new work."""
    loop = _LoopThread()
    closing, ended = threading.Event(), asyncio.Event()
    endless = asyncio.Event()

    async def open_on_loop() -> AsyncIterator[None]:
        try:
            yield
        finally:
            closing.set()
            await ended.wait()

    async def begin() -> None:
        await anext(opened)

    async def work() -> None:
        ended.set()
        await endless.wait()

    def call() -> None:
        assert closing.wait(30)
        try:
            loop.run(work())
        except ClientError as error:
            failures.put(error)
            assert loop._loop is not None
            loop._loop.call_soon_threadsafe(ended.set)

    opened = open_on_loop()
    loop.start()
    loop.run(begin())
    failures: queue.Queue[ClientError] = queue.Queue()
    threading.Thread(target=call, daemon=True).start()
    loop.stop()
    assert isinstance(failures.get(timeout=30), ConnectionLostError)
