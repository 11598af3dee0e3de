"""Wyoming's messages, errors and limits, on connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import numpy as np
import pytest

from loadtest.fakes.talker import FakeTalker
from service.listening import Unable, open_listeners
from service.settings import Settings
from tests.service.dialects.wyoming.talk import (
    connected,
    listening,
    samples_of,
    talking,
    until_left,
)
from tests.service.memory import Served, served
from tests.waiting import until

TEXT = "This one is a sentence that is long enough to be sent in several pieces."
OTHER = "Another one, which is spoken after it."
EXACT: dict[str, Any] = {"first_lookahead_frames": 3, "lookahead_frames": 3}
#: A talker that does not finish during a test.
ENDLESS: dict[str, Any] = {"frames_per_character": 50, "row_s": 0.002}


def s16(service: Served, text: str) -> bytes:
    return np.rint(np.clip(service.whole(text), -1, 1) * 32767).astype("<i2").tobytes()


def metrics(service: Served) -> str:
    return service.runtime.metrics.render().decode()


async def native_samples(service: Served, text: str) -> bytes:
    """What the native protocol sends for a text."""
    audio = b""
    async with service.socket("/v1/tts/stream") as socket:
        for message in (
            {"type": "context.create", "context_id": "c", "audio": {"encoding": "pcm_s16le"}},
            {"type": "text.append", "context_id": "c", "text": text},
            {"type": "context.end", "context_id": "c"},
        ):
            socket.send(message)
        while True:
            answer = await socket.next()
            if isinstance(answer, bytes):
                audio += answer[12:]
            elif answer is None or answer["type"] == "context.done":
                return audio


async def test_describe_lists_voices_with_languages() -> None:
    async with served() as service, talking(service.runtime) as talk:
        talk.send("describe")
        info = await talk.next()
        names = list(service.runtime.voices.names)
    assert info is not None
    assert info.type == "info"
    (program,) = info.data["tts"]
    assert program["supports_synthesize_streaming"]
    assert program["installed"]
    assert [voice["name"] for voice in program["voices"]] == names
    assert all(voice["languages"] and voice["installed"] for voice in program["voices"])
    assert info.data["asr"] == []


async def test_whole_and_streamed_speech_equal_native_samples() -> None:
    async with served(**EXACT) as service, talking(service.runtime) as talk:
        expected = await native_samples(service, TEXT)
        assert expected == s16(service, TEXT)
        talk.send("synthesize", text=TEXT, voice={"name": "default"}, text_format="text")
        whole = await talk.until("audio-stop")
        assert [event.type for event in whole[:2]] == ["audio-start", "audio-chunk"]
        assert samples_of(whole) == expected
        assert whole[-1].data["timestamp"] == 1000 * len(expected) // 2 // 24_000
        talk.send("synthesize-start")
        for word in TEXT.split(" "):
            talk.send("synthesize-chunk", text=f"{word} ")
        talk.send("synthesize", text=TEXT)  # for servers that cannot stream
        talk.send("synthesize-stop")
        streamed = await talk.until("synthesize-stopped")
        assert [event.type for event in streamed].count("audio-start") == 1
        assert streamed[-2].type == "audio-stop"
        assert samples_of(streamed) == expected
        await service.until_free()


async def test_streamed_text_is_spoken_before_its_end() -> None:
    async with served(**EXACT) as service, talking(service.runtime) as talk:
        talk.send("synthesize-start")
        talk.send("synthesize-chunk", text=f"{TEXT} ")
        talk.send("synthesize-chunk", text="Another ")
        assert (await talk.until("audio-chunk"))[0].type == "audio-start"
        talk.send("synthesize-stop")
        await talk.until("synthesize-stopped")


async def test_texts_are_spoken_in_order_and_pings_between() -> None:
    async with served(**EXACT) as service, talking(service.runtime) as talk:
        for text in (TEXT, OTHER):
            talk.send("synthesize", text=text)
        talk.send("synthesize-start")
        talk.send("synthesize-chunk", text=TEXT)
        talk.send("synthesize-stop")
        talk.send("transcribe", b"\n{}", name="of another domain")
        heard = [samples_of(await talk.until("audio-stop")) for _ in range(3)]
        assert heard == [s16(service, text) for text in (TEXT, OTHER, TEXT)]
        await talk.until("synthesize-stopped")
        talk.send("ping", text="caf\u00e9")
        pong = await talk.next()
        assert pong is not None
        assert (pong.type, pong.data) == ("pong", {"text": "caf\u00e9"})


@pytest.mark.parametrize("text", ["...", "\N{PARTY POPPER}"])
async def test_text_without_words_ends_all_the_same(text: str) -> None:
    async with served() as service, talking(service.runtime) as talk:
        assert not any(await talk.speak(text))
        talk.send("synthesize-start")
        talk.send("synthesize-chunk", text=text)
        talk.send("synthesize-stop")
        assert not any(samples_of(await talk.until("synthesize-stopped")))


@pytest.mark.parametrize(
    ("events", "code", "words"),
    [
        ([("synthesize", {})], "invalid_message", "text is missing"),
        ([("synthesize", {"text": ""})], "invalid_text", "nothing in the text"),
        ([("synthesize", {"text": 5})], "invalid_message", "text must be a string"),
        ([("synthesize", {"text": TEXT, "voice": "x"})], "invalid_message", "voice must be"),
        ([("synthesize", {"text": TEXT, "text_format": "html"})], "invalid_message",
         "text_format must be text or ssml"),
        ([("synthesize", {"text": TEXT, "voice": {"name": "nobody"}})], "unknown_voice",
         "voice.name: There is no voice"),
        ([("synthesize", {"text": TEXT, "voice": {"name": "default", "speaker": "a"}})],
         "unsupported", "voice.speaker"),
        ([("synthesize-chunk", {"text": TEXT})], "unknown_context", "synthesize-start"),
        ([("synthesize-stop", {})], "unknown_context", "synthesize-start"),
        ([("synthesize-start", {}), ("synthesize-start", {})], "context_exists",
         "synthesize-stop"),
        ([("ping", {"text": []})], "invalid_message", "text must be a string"),
        ([("synthesize", {"text": "x" * 101})], "text_too_long", "100"),
        ([("synthesize-start", {}), *[("synthesize-chunk", {"text": "x" * 60})] * 2],
         "text_too_long", "100"),
        ([("synthesize", {"text": TEXT})] * 4, "too_many_contexts", "3 open contexts"),
    ],
)  # fmt: skip
async def test_error_is_told_and_ends_connection(
    events: list[tuple[str, dict[str, Any]]], code: str, words: str
) -> None:
    limits: dict[str, Any] = {"max_text_chars": 100, "max_contexts_per_session": 3}
    async with served(FakeTalker(**ENDLESS), unknown_voice="error", **limits) as service:
        async with talking(service.runtime) as talk:
            for type_, data in events:
                talk.send(type_, **data)
            error = await talk.error()
        assert error["code"] == code
        assert words in error["text"]
        counted = service.runtime.metrics.render().decode()
        assert f'tts_errors_total{{code="{code}"}} 1.0' in counted
        await service.until_free()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 300_000,
        b"{" * 300_000,
        b'{"type": "synthesize", "data_length": 99999999}\n',
        json.dumps({"type": "x"}).encode() + b"\n\n",
    ],
)
async def test_hostile_bytes_get_error_and_end(data: bytes) -> None:
    async with served() as service:
        async with talking(service.runtime) as talk:
            talk.send_bytes(data)
            assert (await talk.error())["code"] in ("invalid_json", "invalid_message")
        async with talking(service.runtime) as talk:
            assert any(await talk.speak(TEXT))


async def test_flood_of_unknown_events_does_not_keep_others_waiting() -> None:
    async with served() as service, listening(service.runtime) as port:
        async with connected(port) as flood, connected(port) as talk:
            flood.send_bytes(b'{"type":"x"}\n' * 50_000)
            flood.send("ping")
            assert any(await talk.speak(TEXT))
            assert (await flood.until("pong"))[-1].data == {"text": None}
        await until_left(service.runtime)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_client_that_leaves_frees_slot(is_streamed: bool) -> None:
    async with served(FakeTalker(**ENDLESS)) as service:
        async with talking(service.runtime) as talk:
            if is_streamed:
                talk.send("synthesize-start")
                talk.send("synthesize-chunk", text=f"{TEXT} {OTHER}")
            else:
                talk.send("synthesize", text=TEXT)
                talk.send("synthesize", text=OTHER)
            await talk.until("audio-chunk")
            assert service.runtime.admission.active == 1
        await service.until_free()
        counted = service.runtime.metrics.render().decode()
    assert 'tts_contexts_total{outcome="cancelled",protocol="wyoming"} 1.0' in counted


@pytest.mark.parametrize(
    ("settings", "opening"),
    [
        ({"handshake_s": 0.05}, ()),
        ({"session_idle_s": 0.05}, ("ping",)),
        ({"context_idle_s": 0.05}, ("synthesize-start",)),
    ],
)
async def test_silent_client_is_told_and_leaves(
    settings: dict[str, Any], opening: tuple[str, ...]
) -> None:
    async with served(**settings) as service, talking(service.runtime) as talk:
        for type_ in opening:
            talk.send(type_)
        events = []
        while (event := await talk.next()) is not None:
            events.append(event)
        assert (events[-1].type, events[-1].data["code"]) == ("error", "idle_timeout")


async def test_connections_are_limited_together_with_others() -> None:
    async with served(max_connections=1) as service, listening(service.runtime) as port:
        async with connected(port) as first:
            first.send("ping")
            await first.until("pong")
            async with connected(port) as second:
                assert (await second.error())["code"] == "overloaded"
        await until_left(service.runtime)


async def test_clients_are_held_until_service_is_ready() -> None:
    async with served(hold_s=60.0) as service, talking(service.runtime) as talk:
        service.codec.is_ready = False
        talk.send("describe")
        await until(lambda: service.runtime.lifecycle.held, timeout_s=30)
        service.codec.is_ready = True
        await talk.until("info")
        assert any(await talk.speak(TEXT))


async def test_drain_ends_idle_connections_and_busy_ones_when_done() -> None:
    async with (
        served(FakeTalker(row_s=0.001), **EXACT) as service,
        listening(service.runtime) as port,
        connected(port) as idle,
        connected(port) as busy,
    ):
        idle.send("ping")
        await idle.until("pong")
        busy.send("synthesize", text=TEXT)
        first = await busy.until("audio-chunk")
        draining = asyncio.create_task(service.runtime.lifecycle.drain())
        assert await idle.next() is None
        rest = await busy.until("audio-stop")
        assert samples_of(first + rest) == s16(service, TEXT)
        assert await busy.next() is None
        async with asyncio.timeout(30):
            await draining


async def test_drain_waits_until_slow_client_has_all_audio() -> None:
    text = "A short one."
    async with served(**EXACT) as service, contextlib.AsyncExitStack() as listener:
        port = await listener.enter_async_context(listening(service.runtime, send_bytes=4096))
        async with connected(port, receive_bytes=4096) as talk:
            talk.pause()
            talk.send("synthesize", text=text)
            await until(
                lambda: 'complete",protocol="wyoming"} 1.0' in metrics(service), timeout_s=30
            )

            async def stop() -> None:
                await service.runtime.lifecycle.drain()
                await listener.aclose()

            stopping = asyncio.create_task(stop())
            await asyncio.wait({stopping}, timeout=0.1)  # in which it could end too soon
            talk.resume()
            assert samples_of(await talk.until("audio-stop")) == s16(service, text)
            assert await talk.next() is None
            async with asyncio.timeout(30):
                await stopping


async def test_end_of_listener_cuts_connections(caplog: pytest.LogCaptureFixture) -> None:
    async with served(FakeTalker(**ENDLESS)) as service:
        async with listening(service.runtime) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(json.dumps({"type": "synthesize", "data": {"text": TEXT}}).encode())
            writer.write(b"\n")
            assert await reader.readline()
        assert service.runtime.lifecycle.connections == 0
        await service.until_free()
        writer.transport.abort()
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_keys_refuse_port_of_protocol_without_keys() -> None:
    settings = Settings(api_keys_file="keys.json", wyoming_port=0)  # type: ignore[arg-type]
    with pytest.raises(Unable, match=r"wyoming_port 0 .* api_keys_file"), open_listeners(settings):
        pass


def test_listener_is_opened_at_host_only_if_set() -> None:
    with open_listeners(Settings(port=0)) as listeners:
        assert listeners.wyoming is None
    with open_listeners(Settings(port=0, wyoming_port=0)) as listeners:
        assert listeners.wyoming is not None
        address, port = listeners.wyoming.getsockname()
        assert address == "127.0.0.1"
        taken = Settings(port=0, wyoming_port=port)
        with pytest.raises(Unable, match="choose another with --wyoming"), open_listeners(taken):
            pass
