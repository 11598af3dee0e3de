"""Warnings of a text in the messages of other vendors' sockets, and in batches."""

from __future__ import annotations

from typing import Any

import httpx

from tests.service.dialects.cartesia.talk import asking
from tests.service.dialects.deepgram.talk import speaking as deepgram
from tests.service.dialects.elevenlabs.talk import multi, single
from tests.service.dialects.vendor_talk import VendorTalk, vendor
from tests.service.dialects.vllm_omni.talk import STREAM
from tests.service.dialects.vllm_omni.talk import speaking as vllm_omni
from tests.service.live import gateway

EMOTION = "The voice has no emotion 'excited'; it is left out."
TAG = "The tag <noise> is unknown."
#: Of each kind the first is told.
TEXT = "[excited] We won! <noise/> [excited] Really."


def warned(talk: VendorTalk) -> list[dict[str, Any]]:
    return [message for message in talk.messages if "warning" in message]


async def test_elevenlabs_audio_has_warnings_of_its_context() -> None:
    async with gateway() as server:
        async with multi(server) as talk:
            await talk.send(context_id="a", text="Plain text.")
            await talk.send(context_id="b", text=TEXT)
            for name in ("a", "b"):
                await talk.send(context_id=name, flush=True)
                await talk.send(context_id=name, close_context=True)
            for _ in range(2):
                await talk.until(lambda message: message.get("isFinal"))
            (told,) = warned(talk)
            assert (told["contextId"], told["warning"]) == ("b", f"{EMOTION} {TAG}")
            assert told["audio"]
        async with single(server) as talk:
            await talk.send(text=TEXT)
            await talk.send(text="")
            await talk.rest()
            (told,) = warned(talk)
            assert told["warning"] == f"{EMOTION} {TAG}"


async def test_cartesia_audio_has_warnings_of_its_context() -> None:
    async with gateway() as server, vendor(f"{server.http}/tts/websocket", "data") as talk:
        await talk.send(**asking("a", "Plain text."))
        await talk.send(**asking("b", TEXT))
        for _ in range(2):
            await talk.until(lambda message: message["type"] == "done")
        (told,) = warned(talk)
        assert (told["type"], told["context_id"]) == ("chunk", "b")
        assert told["warning"] == f"{EMOTION} {TAG}"


async def test_deepgram_socket_has_warnings_and_stays_open() -> None:
    async with gateway() as server, deepgram(server) as talk:
        await talk.send("Speak", text=TEXT)
        await talk.send("Flush")
        for code, message in (("EMOTION", EMOTION), ("TAG", TAG)):
            expected = {"type": "Warning", "code": code, "description": message}
            assert await talk.next() == {**expected, "warn_msg": message}
        assert (await talk.next())["type"] == "Flushed"
        await talk.send("Speak", text="Plain text.")
        await talk.send("Flush")
        assert (await talk.next())["type"] == "Flushed"


async def test_vllm_omni_sentence_has_its_own_warnings() -> None:
    for options in (STREAM, {}):
        async with (
            gateway() as server,
            vllm_omni(server, **options, split_granularity="sentence") as t,
        ):
            await t.say(
                "It is plain. ", "[excited] They have won the match today. ", "Really <noise/> so."
            )
            told = []
            for index, text in enumerate(
                ["It is plain.", "[excited] They have won the match today.", "Really <noise/> so."]
            ):
                start, _ = await t.sentence(0, index, text)
                told.append(start.get("warning"))
            assert told == [None, EMOTION, TAG]


async def test_batch_results_have_warnings_of_their_texts() -> None:
    items = [{"input": "Plain text."}, {"input": TEXT}]
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"{server.http}/v1/audio/speech/batch", json={"items": items})
        plain, marked = answer.json()["results"]
        assert "warnings" not in plain
        assert marked["warnings"] == [EMOTION, TAG]
