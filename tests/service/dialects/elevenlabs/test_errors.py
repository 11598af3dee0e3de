"""ElevenLabs' sockets: refused messages and handshakes, limits, failures."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from loadtest.fakes.talker import FakeTalker
from tests.service.dialects.elevenlabs.talk import (
    EXACT,
    MULTI,
    ONE,
    SINGLE,
    TWO,
    address,
    finish,
    is_final,
    multi,
    open_context,
)
from tests.service.dialects.vendor_talk import s16, vendor
from tests.service.live import gateway


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
async def test_invalid_message_closes_socket(path: str, data: str | bytes, code: str) -> None:
    async with gateway() as server, vendor(address(server, path)) as talk:
        await talk.socket.send(data)
        (error,) = await talk.rest()
        assert (error["error"], error["code"]) == (code, 1008)
        assert error["message"]
        assert talk.socket.close_code == 1008


async def test_socket_allows_only_five_contexts_to_accept_text() -> None:
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
        assert error["message"] == "A socket may hold 5 open contexts that take text."
        await talk.until(is_final("f"))
        await finish(talk, "a")
        await open_context(talk, "g", TWO)  # "a" accepts no more text
        await finish(talk, "g")
        await talk.until(is_final("g"))
        assert talk.sounds["g"] == s16(server.whole(TWO))


async def test_overloaded_error_ends_only_its_context() -> None:
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


async def test_engine_failure_ends_only_its_context() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", "This will !fail soon. ")
        await open_context(talk, "b", ONE)
        error = await talk.until(lambda message: message.get("error"))
        assert (error["error"], error["contextId"], error["code"]) == ("engine_failed", "a", 1011)
        assert (await talk.next()) == {"isFinal": True, "contextId": "a"}
        await finish(talk, "b")
        await talk.until(is_final("b"))
        assert talk.sounds["b"] == s16(server.whole(ONE))
        async with httpx.AsyncClient(timeout=60) as http:
            counted = (await http.get(server.http + "/metrics")).text
        assert 'tts_errors_total{code="engine_failed"} 1.0' in counted
        assert 'tts_contexts_total{outcome="error",protocol="elevenlabs"} 1.0' in counted
        assert 'tts_contexts_total{outcome="complete",protocol="elevenlabs"} 1.0' in counted


async def test_too_long_text_is_not_added() -> None:
    async with gateway(max_text_chars=30, **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", ONE, TWO)
        error = await talk.until(lambda message: message.get("error"))
        assert (error["error"], error["contextId"]) == ("text_too_long", "a")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


@pytest.mark.parametrize("texts", [(), ("\N{PARTY POPPER}",), ("...",)])
async def test_turn_without_speakable_text_ends_without_error(texts: tuple[str, ...]) -> None:
    async with (
        gateway(unspeakable_text="error") as server,
        multi(server, auto_mode="true") as talk,
    ):
        await open_context(talk, "a", *texts)
        await finish(talk, "a")
        assert await talk.next() == {"isFinal": True, "contextId": "a"}
        await server.until_free()


async def test_unknown_pronunciation_dictionaries_are_refused() -> None:
    locators = [{"pronunciation_dictionary_id": "x", "version_id": "y"}]
    async with gateway() as server, multi(server) as talk:
        await talk.send(text=" ", context_id="a", pronunciation_dictionary_locators=locators)
        error = await talk.next()
        assert (error["error"], error["contextId"]) == ("unknown_pronunciations", "a")
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
async def test_handshake_with_invalid_voice_or_query_is_refused(
    path: str, voice: str, query: dict[str, Any], status: int, code: str
) -> None:
    async with gateway() as server:
        with pytest.raises(InvalidStatus) as refused:
            async with vendor(address(server, path, voice, **query)):
                pass
        response = refused.value.response
        assert response.status_code == status
        assert f'"status":"{code}"'.encode() in (response.body or b"")
