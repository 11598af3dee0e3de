"""ElevenLabs' sockets against a live gateway; the official clients are in tests/official."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import av
import av.error
import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from streaming.spec import Samples
from talker.fake import FakeTalker
from tests.service.listening import PADDING, decoded, likeness
from tests.service.live import Gateway, gateway
from tests.service.vendor_talk import VendorTalk, s16, vendor

EXACT = {"first_lookahead_frames": 3, "lookahead_frames": 3}
ONE, TWO = "A sentence to say.", "And a second one, which is longer than the first."
MULTI, SINGLE = "multi-stream-input", "stream-input"


def address(server: Gateway, path: str, voice: str = "default", **query: Any) -> str:
    query.setdefault("output_format", "pcm_24000")
    params = "&".join(f"{name}={value}" for name, value in query.items())
    return f"{server.http}/v1/text-to-speech/{voice}/{path}?{params}"


@asynccontextmanager
async def multi(server: Gateway, **query: Any) -> AsyncIterator[VendorTalk]:
    async with vendor(address(server, MULTI, **query)) as talk:
        yield talk


@asynccontextmanager
async def single(server: Gateway, **query: Any) -> AsyncIterator[VendorTalk]:
    async with vendor(address(server, SINGLE, **query)) as talk:
        yield talk


def whole(server: Gateway, *texts: str) -> Samples:
    return np.concatenate([server.whole(text) for text in texts])


def is_final(context: str) -> Any:
    return lambda message: message.get("isFinal") and message.get("contextId") == context


async def open_context(talk: VendorTalk, context: str, *texts: str) -> None:
    await talk.send(text=" ", context_id=context, voice_settings={"stability": 0.5})
    for text in texts:
        await talk.send(text=text, context_id=context)


async def finish(talk: VendorTalk, context: str) -> None:
    """As agents do at the end of a turn."""
    await talk.send(context_id=context, flush=True)
    await talk.send(context_id=context, close_context=True)


# -- speaking


async def test_a_turn_of_phrases_is_spoken_and_ended() -> None:
    async with gateway(**EXACT) as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", ONE, "Half a phrase", TWO)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(whole(server, ONE, "Half a phrase", TWO))
        await server.until_free()


async def test_text_comes_in_any_pieces_and_sentences_are_found() -> None:
    async with gateway(**EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", *f"{ONE} {TWO} ")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(whole(server, ONE, TWO))


@pytest.mark.parametrize(
    ("auto_mode", "spoken"),
    [("true", ("three point", "one four")), ("false", ("three pointone four",))],
)
async def test_in_auto_mode_alone_a_message_is_a_phrase(
    auto_mode: str, spoken: tuple[str, ...]
) -> None:
    async with gateway(**EXACT) as server, multi(server, auto_mode=auto_mode) as talk:
        await open_context(talk, "a", "three point", "one four")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(whole(server, *spoken))


async def test_phrases_are_spoken_without_waiting_for_more() -> None:
    async with gateway(**EXACT) as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", "Half a phrase")
        while len(talk.sounds.get("a", b"")) < len(s16(server.whole("Half a phrase"))):
            await talk.next()
        assert talk.sounds["a"] == s16(server.whole("Half a phrase"))


async def test_a_flush_speaks_what_is_there_also_with_text_of_its_own() -> None:
    async with gateway(**EXACT) as server, multi(server) as talk:
        await talk.send(text="Half a sen", context_id="a", flush=True)
        while len(talk.sounds.get("a", b"")) < len(s16(server.whole("Half a sen"))):
            await talk.next()
        await talk.send(text="tence. ", context_id="a", flush=True)
        await talk.send(context_id="a", close_context=True)
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(whole(server, "Half a sen", "tence."))


async def test_contexts_do_not_mix_and_ids_can_be_used_again() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", ONE)
        await open_context(talk, "b", TWO)
        await finish(talk, "b")
        await finish(talk, "a")
        finals = [(await talk.until(lambda m: m.get("isFinal")))["contextId"] for _ in "ab"]
        assert sorted(finals) == ["a", "b"]
        assert (talk.sounds["a"], talk.sounds["b"]) == (
            s16(server.whole(ONE)),
            s16(server.whole(TWO)),
        )
        await open_context(talk, "a", TWO)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(whole(server, ONE, TWO))


async def test_without_an_id_there_is_one_context() -> None:
    async with gateway(**EXACT) as server, multi(server) as talk:
        await talk.send(text=ONE + " ")
        await talk.send(flush=True)
        await talk.send(close_context=True)
        final = await talk.until(lambda message: message.get("isFinal"))
        assert talk.sounds[final["contextId"]] == s16(server.whole(ONE))


@pytest.mark.parametrize("speed", [0.8, 1.25])
async def test_speed_is_the_one_knob_that_turns(speed: float) -> None:
    settings = {"speed": speed, "stability": 0.1, "use_speaker_boost": True, "style": None}
    async with gateway(**EXACT) as server, multi(server) as talk:
        await talk.send(text=" ", context_id="a", voice_settings=settings)
        await talk.send(text=ONE, context_id="a")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert len(talk.pcm("a")) == pytest.approx(len(server.whole(ONE)) / speed, abs=2)


# -- formats


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 32000, 44100, 48000])
async def test_linear_pcm_has_the_rate_that_was_asked_for(rate: int) -> None:
    async with gateway(**EXACT) as server, multi(server, output_format=f"pcm_{rate}") as talk:
        await open_context(talk, "a", ONE)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert len(talk.pcm("a")) == -(-len(server.whole(ONE)) * rate // 24_000)


@pytest.mark.parametrize("law", ["ulaw", "alaw"])
async def test_telephony_is_one_byte_a_sample(law: str) -> None:
    async with gateway(**EXACT) as server, multi(server, output_format=f"{law}_8000") as talk:
        await open_context(talk, "a", ONE)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert len(talk.sounds["a"]) == len(server.whole(ONE)) // 3


@pytest.mark.parametrize(
    ("name", "rate"),
    [("mp3_22050_32", 22_050), ("mp3_44100_128", 44_100), ("opus_48000_64", 48_000)],
)
async def test_one_file_goes_through_a_context(name: str, rate: int) -> None:
    """Sentences follow each other without the silence that a new file would begin with."""
    async with gateway(**EXACT) as server, multi(server, output_format=name) as talk:
        await open_context(talk, "a", f"{ONE} {TWO} ")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        got, its_rate = decoded(talk.sounds["a"])
        want = whole(server, ONE, TWO)
        assert its_rate == rate
        assert 0 <= len(got) - len(want) <= PADDING
        assert likeness(got, want) > likeness(got, whole(server, ONE[::-1], TWO[::-1])) + 0.2


def length(data: bytes) -> int:
    """Samples in the beginning of a file; 0 if it is too short to tell what it is."""
    try:
        return len(decoded(data)[0])
    except (av.error.FFmpegError, ValueError):
        return 0


@pytest.mark.parametrize("name", ["mp3_22050_32", "opus_48000_64"])
async def test_a_file_is_flushed_before_a_pause_and_goes_on(name: str) -> None:
    async with gateway(**EXACT) as server, multi(server, output_format=name) as talk:
        await talk.send(text=ONE, context_id="a", flush=True)
        while (heard := length(talk.sounds.get("a", b""))) < len(server.whole(ONE)):
            await talk.next()
        assert heard <= len(server.whole(ONE)) + PADDING
        await talk.send(text=TWO, context_id="a")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        more = length(talk.sounds["a"]) - heard - len(server.whole(TWO))
        assert 0 <= more <= PADDING


# -- ending and interrupting

SLOW: dict[str, Any] = {"row_s": 0.002, "frames_per_character": 20}


async def until_heard(talk: VendorTalk, context: str) -> None:
    await talk.until(lambda message: message.get("audio") and message["contextId"] == context)


async def test_what_was_flushed_is_spoken_to_its_end_after_close_context() -> None:
    talker = FakeTalker(row_s=0.001)
    async with gateway(talker, **EXACT) as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", ONE, TWO)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(whole(server, ONE, TWO))


async def test_a_second_close_context_interrupts() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", ONE, TWO)
        await finish(talk, "a")
        await until_heard(talk, "a")
        await talk.send(context_id="a", close_context=True)
        await talk.until(is_final("a"))
        await server.until_free()
        heard = talk.sounds["a"]
        await open_context(talk, "b", "Yes.")
        await finish(talk, "b")
        await talk.until(is_final("b"))
        assert talk.sounds["a"] == heard
        assert len(heard) < len(s16(whole(server, ONE, TWO))) / 2
        await talk.send(context_id="a", close_context=True)  # once more, when all is over
        await talk.send(context_id="a", flush=True)
        await open_context(talk, "c", "Yes.")
        await finish(talk, "c")
        await talk.until(is_final("c"))


async def test_close_context_without_a_flush_interrupts() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", ONE, TWO)
        await until_heard(talk, "a")
        await talk.send(context_id="a", close_context=True)
        await talk.until(is_final("a"))
        await server.until_free()
        assert len(talk.sounds["a"]) < len(s16(whole(server, ONE, TWO))) / 2


async def test_text_after_a_flush_is_not_flushed() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, multi(server) as talk:
        await talk.send(text=ONE, context_id="a", flush=True)
        await talk.send(text=TWO, context_id="a")
        await talk.send(context_id="a", close_context=True)
        await talk.until(is_final("a"))
        await server.until_free()
        assert len(talk.sounds.get("a", b"")) < len(s16(server.whole(ONE)))


async def test_a_closed_context_takes_no_text_and_goes_on() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", ONE)
        await finish(talk, "a")
        await talk.send(text=TWO, context_id="a")
        error = await talk.until(lambda message: message.get("error"))
        assert (error["error"], error["contextId"]) == ("context_closed", "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


async def test_a_client_that_says_nothing_of_an_interruption_wastes_little() -> None:
    """LiveKit's plugin only stops listening: generation keeps to the lead."""
    talker = FakeTalker(row_s=0.0005, frames_per_character=25)
    async with gateway(talker, default_lead_ms=500) as server, multi(server) as talk:
        made = server.talker.rows_made
        await open_context(talk, "a", "Twenty characters.. ")
        await finish(talk, "a")
        await until_heard(talk, "a")
        await asyncio.sleep(0.5)
        limit = (0.5 + 0.5) * 25 + 75 + 103 + 64 + 8  # see test_native
        assert server.talker.rows_made - made < limit
        assert server.talker.outstanding == 1


async def test_close_socket_speaks_what_was_flushed_and_closes() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", ONE)
        await talk.send(context_id="a", flush=True)
        await open_context(talk, "b", TWO)
        await talk.send(close_socket=True)
        await talk.send(text="Too late.", context_id="c")
        rest = await talk.rest()
        finals = [message["contextId"] for message in rest if message.get("isFinal")]
        assert finals == ["b", "a"]
        assert talk.sounds["a"] == s16(server.whole(ONE))
        assert not talk.sounds.get("b")
        assert talk.socket.close_code == 1000


async def test_close_socket_alone_closes_at_once() -> None:
    async with gateway() as server, multi(server) as talk:
        await talk.send(close_socket=True)
        assert await talk.rest() == []
        assert talk.socket.close_code == 1000


async def test_a_client_that_vanishes_frees_everything() -> None:
    async with gateway(FakeTalker(**SLOW)) as server:
        async with multi(server) as talk:
            await open_context(talk, "a", ONE)
            await finish(talk, "a")
            await until_heard(talk, "a")
            talk.socket.transport.abort()
        await server.until_free()


# -- keeping alive


async def test_an_empty_text_opens_nothing() -> None:
    async with gateway() as server, multi(server) as talk:
        await talk.send(text="")
        await talk.send(text="", context_id="a")
        await talk.send(context_id="a", flush=True)
        await talk.send(context_id="a", close_context=True)
        await open_context(talk, "b", ONE)
        await finish(talk, "b")
        await talk.until(is_final("b"))
        assert {message["contextId"] for message in talk.messages} == {"b"}


async def test_a_context_left_alone_is_spoken_and_ended_and_then_the_socket() -> None:
    async with gateway(**EXACT) as server, multi(server, inactivity_timeout=1) as talk:
        await open_context(talk, "a", "Half a sentence")
        await open_context(talk, "b")
        *_, last = rest = await talk.rest()
        assert {m["contextId"] for m in rest if m.get("isFinal")} == {"a", "b"}
        assert talk.sounds["a"] == s16(server.whole("Half a sentence"))
        assert (last["error"], last["code"]) == ("idle_timeout", 1008)
        assert talk.socket.close_code == 1008


# -- errors


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("{", "invalid_json"),
        ("[]", "invalid_message"),
        ('{"text":5}', "invalid_message"),
        ('{"text":"a","voice_settings":{"speed":9}}', "invalid_message"),
        (b"{}", "invalid_message"),
    ],
)
@pytest.mark.parametrize("path", [MULTI, SINGLE])
async def test_what_is_no_message_closes_the_socket(
    path: str, data: str | bytes, code: str
) -> None:
    async with gateway() as server, vendor(address(server, path)) as talk:
        await talk.socket.send(data)
        (error,) = await talk.rest()
        assert (error["error"], error["code"]) == (code, 1008)
        assert error["message"]
        assert talk.socket.close_code == 1008


async def test_five_contexts_take_text_at_once() -> None:
    async with gateway(**EXACT) as server, multi(server) as talk:
        for name in "abcde":
            await open_context(talk, name, ONE)
        await open_context(talk, "f", ONE)
        error = await talk.until(lambda message: message.get("error"))
        assert (error["error"], error["contextId"], error["code"]) == (
            "too_many_contexts",
            "f",
            1008,
        )
        await talk.until(is_final("f"))
        await finish(talk, "a")
        await open_context(talk, "g", TWO)  # "a" is still being spoken, or was
        await finish(talk, "g")
        await talk.until(is_final("g"))
        assert talk.sounds["g"] == s16(server.whole(TWO))


async def test_a_full_server_is_told_to_the_context_alone() -> None:
    talker = FakeTalker(row_s=0.001)
    async with gateway(talker, max_contexts=1, **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", ONE)
        await open_context(talk, "b")
        error = await talk.until(lambda message: message.get("error"))
        assert (error["error"], error["contextId"]) == ("overloaded", "b")
        await talk.until(is_final("b"))
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


async def test_a_failing_engine_ends_its_context_alone() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", "This will !fail soon. ")
        await open_context(talk, "b", ONE)
        error = await talk.until(lambda message: message.get("error"))
        assert (error["error"], error["contextId"], error["code"]) == ("engine_failed", "a", 1011)
        assert (await talk.next()) == {"isFinal": True, "contextId": "a"}
        await finish(talk, "b")
        await talk.until(is_final("b"))
        assert talk.sounds["b"] == s16(server.whole(ONE))
        async with httpx.AsyncClient() as http:
            counted = (await http.get(server.http + "/metrics")).text
        assert 'tts_errors_total{code="engine_failed"} 1.0' in counted
        assert 'tts_contexts_total{outcome="error",protocol="elevenlabs"} 1.0' in counted
        assert 'tts_contexts_total{outcome="complete",protocol="elevenlabs"} 1.0' in counted


async def test_a_text_that_is_too_long_is_left_out() -> None:
    async with gateway(max_text_chars=30, **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", ONE, TWO)
        error = await talk.until(lambda message: message.get("error"))
        assert (error["error"], error["contextId"]) == ("text_too_long", "a")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


@pytest.mark.parametrize("texts", [(), ("\N{PARTY POPPER}",), ("...",)])
async def test_a_turn_with_nothing_to_say_ends_without_an_error(texts: tuple[str, ...]) -> None:
    async with gateway() as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", *texts)
        await finish(talk, "a")
        assert await talk.next() == {"isFinal": True, "contextId": "a"}
        await server.until_free()


async def test_dictionaries_are_refused() -> None:
    locators = [{"pronunciation_dictionary_id": "x", "version_id": "y"}]
    async with gateway() as server, multi(server) as talk:
        await talk.send(text=" ", context_id="a", pronunciation_dictionary_locators=locators)
        error = await talk.next()
        assert (error["error"], error["contextId"]) == ("unsupported", "a")
        assert await talk.next() == {"isFinal": True, "contextId": "a"}


REFUSED = [
    ("nobody", {}, 404, "unknown_voice"),
    ("default", {"output_format": "pcm_12345"}, 400, "unsupported"),
    ("default", {"output_format": "mp3_44100"}, 400, "unsupported"),
    ("default", {"output_format": "mp3_22050_129"}, 400, "unsupported"),
    ("default", {"output_format": "midi"}, 400, "unsupported"),
    ("default", {"output_format": "wav_44100"}, 400, "unsupported"),
    ("default", {"enable_ssml_parsing": "true"}, 400, "unsupported"),
    ("default", {"inactivity_timeout": "soon"}, 400, "invalid_parameter"),
]


@pytest.mark.parametrize(("voice", "query", "status", "code"), REFUSED)
@pytest.mark.parametrize("path", [MULTI, SINGLE])
async def test_what_cannot_be_served_is_refused_at_the_handshake(
    path: str, voice: str, query: dict[str, Any], status: int, code: str
) -> None:
    async with gateway() as server:
        with pytest.raises(InvalidStatus) as refused:
            async with vendor(address(server, path, voice, **query)):
                pass
        response = refused.value.response
        assert response.status_code == status
        assert f'"status":"{code}"'.encode() in (response.body or b"")


async def test_a_server_that_is_not_ready_says_so() -> None:
    async with gateway() as server:
        server.codec.is_ready = False
        with pytest.raises(InvalidStatus) as refused:
            async with multi(server):
                pass
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    "settings", [{"voice_aliases": {"theirs": "default"}}, {"unknown_voice": "default"}]
)
async def test_their_voices_can_stand_for_ours(settings: dict[str, Any]) -> None:
    async with (
        gateway(**settings, **EXACT) as server,
        vendor(address(server, MULTI, "theirs")) as talk,
    ):
        await open_context(talk, "a", ONE)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


# -- stream-input


async def test_a_single_stream_ends_with_an_empty_text_and_closes() -> None:
    async with gateway(**EXACT) as server, single(server) as talk:
        opening = {"text": " ", "voice_settings": None, "try_trigger_generation": True}
        await talk.send(**opening, generation_config={"chunk_length_schedule": [50]})
        await talk.send(text=ONE + " ", try_trigger_generation=True)
        await talk.send(text=TWO + " ")
        await talk.send(text="")
        await talk.send(text="Too late.")
        *_, last = await talk.rest()
        assert last == {"isFinal": True}
        assert all("contextId" not in message for message in talk.messages)
        assert talk.sounds[None] == s16(whole(server, ONE, TWO))
        assert talk.socket.close_code == 1000
        await server.until_free()


async def test_a_single_stream_can_be_flushed_and_goes_on() -> None:
    async with gateway(**EXACT) as server, single(server) as talk:
        await talk.send(text="Half a sen", flush=True)
        while len(talk.sounds.get(None, b"")) < len(s16(server.whole("Half a sen"))):
            await talk.next()
        await talk.send(text="tence. ")
        await talk.send(text="")
        await talk.rest()
        assert talk.sounds[None] == s16(whole(server, "Half a sen", "tence."))


@pytest.mark.parametrize("texts", [(), (" ",), ("\N{PARTY POPPER} ",)])
async def test_a_single_stream_may_have_nothing_to_say(texts: tuple[str, ...]) -> None:
    async with gateway() as server, single(server) as talk:
        for text in texts:
            await talk.send(text=text)
        await talk.send(text="")
        assert await talk.rest() == [{"isFinal": True}]
        assert talk.socket.close_code == 1000


async def test_the_last_word_of_a_single_stream_that_broke_is_its_error() -> None:
    async with gateway(FakeTalker(row_s=0.001)) as server, single(server) as talk:
        await talk.send(text="This will !fail soon. ")
        await talk.send(text="")
        *_, last = await talk.rest()
        assert (last["error"], last["code"]) == ("engine_failed", 1011)
        assert talk.socket.close_code == 1011


async def test_a_single_stream_that_cannot_be_opened() -> None:
    async with gateway(FakeTalker(**SLOW), max_contexts=1) as server, multi(server) as other:
        await open_context(other, "a", ONE)
        async with single(server) as talk:
            await talk.send(text=" ")
            (error,) = await talk.rest()
            assert (error["error"], error["code"]) == ("overloaded", 1008)
            assert talk.socket.close_code == 1008


async def test_a_single_stream_left_alone_is_closed() -> None:
    async with gateway() as server, single(server, inactivity_timeout=1) as talk:
        await talk.send(text="Half a sentence")
        *_, last = await talk.rest()
        assert last["error"] == "idle_timeout"
        assert talk.socket.close_code == 1008
        await server.until_free()
