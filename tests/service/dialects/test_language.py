"""A requested language: one that the model reads is accepted, and others are refused. Where the
model follows the text, the field is refused or named as ignored.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from streaming.errors import ErrorCode, RequestError
from streaming.ports import RowGenerator, SpeechRequest
from tests.service.dialects.cartesia.talk import asking
from tests.service.dialects.elevenlabs.talk import multi, single
from tests.service.dialects.vendor_talk import vendor
from tests.service.dialects.vllm_omni.talk import STREAM, speaking
from tests.service.live import client, gateway
from text.english.normaliser import normalise
from text.front_end import spoken_lengths

HEADER = "x-talkwire-ignored"
CARTESIA: dict[str, Any] = {
    "model_id": "sonic-3", "transcript": "Hello.", "voice": {"mode": "id", "id": "default"},
    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
}  # fmt: skip
ELEVENLABS: dict[str, Any] = {"text": "Hello."}
OPENAI: dict[str, Any] = {"input": "Hello."}
#: Requests over HTTP, and their fields that name a language.
REQUESTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("/v1/audio/speech", OPENAI, ["language"]),
    ("/tts/bytes", CARTESIA, ["language", "locale"]),
    ("/tts/sse", CARTESIA, ["language", "locale"]),
    ("/v1/text-to-speech/default", ELEVENLABS, ["language_code"]),
    ("/v1/text-to-speech/default/stream", ELEVENLABS, ["language_code"]),
    ("/v1/text-to-speech/default/with-timestamps", ELEVENLABS, ["language_code"]),
    ("/v1/text-to-speech/default/stream/with-timestamps", ELEVENLABS, ["language_code"]),
]
#: Values that clients' defaults and users send for English, or for any language.
ACCEPTED = ["en", "en-US", "EN", "en_GB", "English", "Auto", "auto", "multi", None]


class EnglishTalker(FakeTalker):
    """A talker that reads English only, as the embedded voice does."""

    def __init__(self) -> None:
        rendering = replace(FAKE_SPEC.rendering, languages=("en",))
        lengths = partial(spoken_lengths, normalise)
        super().__init__(spec=replace(FAKE_SPEC, rendering=rendering, spoken_lengths=lengths))

    def check(self, request: SpeechRequest) -> None:
        super().check(request)
        if not normalise(request.text).text:
            raise RequestError(ErrorCode.INVALID_TEXT, "There is nothing to say.")


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [*REQUESTS, ("/v1/audio/speech/batch", {"items": [OPENAI]}, ["language"])],
)
async def test_language_is_named_as_ignored_over_http(
    path: str, body: dict[str, Any], fields: list[str]
) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        plain = await http.post(server.http + path, json=body)
        asked = await http.post(server.http + path, json=body | dict.fromkeys(fields, "de"))
        assert plain.status_code == asked.status_code == 200
        assert HEADER not in plain.headers
        assert asked.headers[HEADER] == ", ".join(fields)


async def test_language_is_named_as_ignored_on_cartesia_socket() -> None:
    async with gateway() as server, vendor(f"{server.http}/tts/websocket", "data") as talk:
        response = talk.socket.response
        assert response is not None
        assert response.headers[HEADER] == "language, locale"
        await talk.send(**asking("c", "Hello.", language="de"))
        await talk.until(lambda message: message["type"] == "done")


async def test_language_is_named_as_ignored_on_elevenlabs_sockets() -> None:
    async with gateway() as server:
        for connected in (multi, single):
            async with connected(server, language_code="de") as talk:
                assert talk.socket.response is not None
                assert talk.socket.response.headers[HEADER] == "language_code"
            async with connected(server) as talk:
                assert talk.socket.response is not None
                assert HEADER not in talk.socket.response.headers


async def test_language_is_refused_by_native_protocol() -> None:
    async with gateway() as server, client(server.url) as native:
        await native.send("context.create", context_id="c", language="de")
        error = await native.error()
        assert (error["code"], error["param"]) == ("unsupported", "language")
        await native.create("c", language=None)


@pytest.mark.parametrize("language", ["Auto", None])
async def test_language_auto_or_null_is_accepted_on_vllm_omni_socket(language: str | None) -> None:
    async with gateway() as server, speaking(server, **STREAM, language=language) as talk:
        await talk.say("Hello.")
        await talk.sentence(0, 0, "Hello.")


async def test_language_is_refused_on_vllm_omni_socket() -> None:
    async with gateway() as server, speaking(server, **STREAM, language="German") as talk:
        error = await talk.next()
        assert (error["code"], error["param"]) == ("unsupported", "language")


class PolyglotTalker(FakeTalker):
    """A talker that reads three languages, of which a request may name one. It notes them."""

    def __init__(self) -> None:
        rendering = replace(FAKE_SPEC.rendering, languages=("de", "en", "zh"))
        super().__init__(spec=replace(FAKE_SPEC, rendering=rendering))
        self.spoken: list[str | None] = []

    def generate(self, request: SpeechRequest) -> RowGenerator:
        self.spoken.append(request.language)
        return super().generate(request)


#: Values of a field, and the language in which the talker is to speak.
CHOSEN = {"de": "de", "German": "de", "zh-CN": "zh", "auto": None, None: None}


@pytest.mark.parametrize(("path", "body", "fields"), REQUESTS)
async def test_language_reaches_talker_over_http(
    path: str, body: dict[str, Any], fields: list[str]
) -> None:
    talker = PolyglotTalker()
    async with gateway(talker) as server, httpx.AsyncClient(timeout=60) as http:
        talker.spoken.clear()  # the start has spoken
        for field in fields:
            for value, language in CHOSEN.items():
                answer = await http.post(server.http + path, json={**body, field: value})
                assert answer.status_code == 200, (field, value)
                assert HEADER not in answer.headers
                assert talker.spoken.pop() == language, (field, value)
            answer = await http.post(server.http + path, json={**body, field: "sv"})
            assert answer.status_code == 400
            assert "de, en, zh (this voice reads German, English and Chinese)" in answer.text
    assert talker.spoken == []


async def test_language_reaches_talker_on_sockets() -> None:
    talker = PolyglotTalker()
    async with gateway(talker, unknown_voice="default") as server:
        talker.spoken.clear()  # the start has spoken
        async with client(server.url) as native:
            await native.create("c", language="zh")
            await native.send("text.append", context_id="c", text="Hello.")
            await native.send("context.end", context_id="c")
            await native.until("context.done")
        assert talker.spoken.pop() == "zh"
        async with speaking(server, **STREAM, language="German") as talk:
            await talk.say("Hello.")
            await talk.sentence(0, 0, "Hello.")
        assert talker.spoken.pop() == "de"
        async with vendor(f"{server.http}/tts/websocket", "data") as talk:
            await talk.send(**asking("a", "Hello.", language="en", locale="de-DE"))
            await talk.until(lambda message: message["type"] == "done")
        assert talker.spoken.pop() == "en"
        async with httpx.AsyncClient(timeout=60) as http:
            address = f"{server.http}/v1/speak?model=aura-2-someone-de"
            assert (await http.post(address, json={"text": "Hello."})).status_code == 200
        assert talker.spoken.pop() == "de"
        async with single(server, language_code="zh") as talk:
            await talk.send(text="Hello. ", flush=True)
            await talk.until(lambda message: bool(message.get("audio")))
        assert talker.spoken.pop() == "zh"
    assert talker.spoken == []


@pytest.mark.parametrize(("path", "body", "fields"), REQUESTS)
async def test_language_that_is_read_is_accepted_over_http(
    path: str, body: dict[str, Any], fields: list[str]
) -> None:
    async with gateway(EnglishTalker()) as server, httpx.AsyncClient(timeout=60) as http:
        for field in fields:
            for value in ACCEPTED:
                answer = await http.post(server.http + path, json={**body, field: value})
                assert answer.status_code == 200, (field, value)
                assert HEADER not in answer.headers
            answer = await http.post(server.http + path, json={**body, field: "de"})
            assert answer.status_code == 400
            for told in (field, '\\"de\\"', "en (this voice reads English)"):
                assert told in answer.text


async def test_language_of_an_item_is_its_own_error_in_a_batch() -> None:
    items = [OPENAI, OPENAI | {"language": "de"}, OPENAI | {"language": "en"}]
    async with gateway(EnglishTalker()) as server, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"{server.http}/v1/audio/speech/batch", json={"items": items})
        results = answer.json()["results"]
        assert [one["status"] for one in results] == ["success", "error", "success"]
        assert (results[1]["code"], results[1]["param"]) == ("unsupported", "language")


async def test_language_of_a_native_context() -> None:
    async with gateway(EnglishTalker()) as server, client(server.url) as native:
        for number, value in enumerate(ACCEPTED):
            await native.create(f"c{number}", language=value)
            await native.send("context.cancel", context_id=f"c{number}")
            await native.until("context.cancelled")
        await native.send("context.create", context_id="d", language="zh-CN")
        error = await native.error()
        assert (error["code"], error["param"]) == ("unsupported", "language")
        allowed = 'language must be en (this voice reads English), not "zh-CN".'
        assert error["message"] == allowed


async def test_language_of_a_cartesia_context() -> None:
    async with (
        gateway(EnglishTalker()) as server,
        vendor(f"{server.http}/tts/websocket", "data") as talk,
    ):
        assert talk.socket.response is not None
        assert HEADER not in talk.socket.response.headers
        await talk.send(**asking("a", "Hello.", language="en"))
        await talk.until(lambda message: message["type"] == "done")
        await talk.send(**asking("b", "Hello.", language="fr"))
        error = await talk.until(lambda message: message["type"] == "error")
        assert (error["context_id"], error["error_code"]) == ("b", "unsupported")
        assert "language must be en" in error["message"]


async def test_language_of_an_elevenlabs_socket() -> None:
    async with gateway(EnglishTalker()) as server:
        for connected in (multi, single):
            async with connected(server, language_code="en") as talk:
                assert talk.socket.response is not None
                assert HEADER not in talk.socket.response.headers
            with pytest.raises(InvalidStatus) as refused:
                async with connected(server, language_code="de"):
                    pass
            assert b"language_code must be en" in refused.value.response.body


@pytest.mark.parametrize(
    ("model", "status"), [("aura-2-thalia-en", 200), ("aura-2-nestor-es", 400)]
)
async def test_language_of_a_deepgram_model(model: str, status: int) -> None:
    async with (
        gateway(EnglishTalker(), unknown_voice="default") as server,
        httpx.AsyncClient(timeout=60) as http,
    ):
        address = f"{server.http}/v1/speak?model={model}"
        answer = await http.post(address, json={"text": "Hello."})
        assert answer.status_code == status
        if status == 400:
            told = 'model must be a voice of en, not "aura-2-nestor-es".'
            assert answer.json()["err_msg"] == told


async def test_language_on_vllm_omni_socket() -> None:
    async with gateway(EnglishTalker()) as server:
        for value in ("English", "en", "Auto"):
            async with speaking(server, **STREAM, language=value) as talk:
                await talk.say("Hello.")
                await talk.sentence(0, 0, "Hello.")
        async with speaking(server, **STREAM, language="Chinese") as talk:
            error = await talk.next()
            assert (error["code"], error["param"]) == ("unsupported", "language")


async def test_text_in_another_script_is_warned_of() -> None:
    async with gateway(EnglishTalker()) as server, httpx.AsyncClient(timeout=60) as http:
        for text, is_warned in (
            ("Hello. 你好，世界。 Привет.", True),
            ("He said да.", False),
            ("Où est le café?", False),
        ):
            body = {"input": text, "response_format": "pcm"}
            answer = await http.post(f"{server.http}/v1/audio/speech", json=body)
            assert answer.status_code == 200
            warning = "The voice reads English; other letters are left out."
            assert answer.headers.get("x-talkwire-warning") == (warning if is_warned else None)


async def test_text_with_nothing_to_speak_is_an_error_that_names_the_language() -> None:
    async with gateway(EnglishTalker()) as server, client(server.url) as native:
        await native.create()
        await native.send("text.append", context_id="c", text="日本語")
        await native.send("context.end", context_id="c")
        assert (await native.until("warning"))["kind"] == "language"
        assert (await native.error())["message"] == (
            "There is nothing in the text that can be spoken. This voice reads English."
        )
