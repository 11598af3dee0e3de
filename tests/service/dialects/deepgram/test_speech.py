"""Deepgram's version 1 socket against a live gateway: turns, formats, flushing, clearing."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from loadtest.fakes.talker import FakeTalker
from service.audio.filters import Resampler
from service.dialects.deepgram.aura import joined
from tests.service.audio.audio_signal import stretched
from tests.service.dialects.deepgram.talk import EXACT, SLOW, TEXTS, speaking
from tests.service.dialects.vendor_talk import s16
from tests.service.live import SPEC, gateway
from tests.service.memory import served


async def test_socket_speaks_two_turns() -> None:
    query = "model=default&encoding=linear16&sample_rate=24000"
    async with gateway(**EXACT) as server, speaking(server, query) as talk:
        for number, text in enumerate(TEXTS):
            talk.audio = b""
            for word in text.split():
                await talk.send("Speak", text=word + " ")
            await talk.send("Flush")
            assert await talk.next() == {"type": "Flushed", "sequence_id": number}
            assert talk.audio == s16(server.whole(text))
            await server.until_free()  # no slot is held between turns
        await talk.send("Close")
        assert await talk.closed() == 1000


async def test_first_message_is_metadata_with_model() -> None:
    async with gateway() as server, speaking(server, "model=default", greet=False) as talk:
        metadata = await talk.next()
        assert metadata["type"] == "Metadata"
        assert metadata["model_name"] == "default"
        assert {"request_id", "model_version", "model_uuid"} <= set(metadata)


@pytest.mark.parametrize(
    ("query", "rate"),
    [("", 24_000), ("sample_rate=8000", 8_000), ("sample_rate=48000&encoding=linear16", 48_000)],
)
async def test_linear16_audio_has_requested_sample_rate(query: str, rate: int) -> None:
    async with gateway(**EXACT) as server, speaking(server, query) as talk:
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        await talk.next()
        wanted = server.whole(TEXTS[0])
        if rate != SPEC.sample_rate:
            resampler = Resampler(SPEC.sample_rate, rate)
            wanted = np.concatenate([resampler.push(wanted), resampler.finish()])
        assert talk.audio == s16(wanted)


@pytest.mark.parametrize("encoding", ["mulaw", "alaw"])
async def test_telephony_encodings_default_to_8000_hz(encoding: str) -> None:
    async with gateway(**EXACT) as server, speaking(server, f"encoding={encoding}") as talk:
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        await talk.next()
        assert len(talk.audio) == len(server.whole(TEXTS[0])) // 3


async def test_socket_speaks_at_requested_speed() -> None:
    async with gateway(**EXACT) as server, speaking(server, "speed=1.5") as talk:
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        assert (await talk.next())["type"] == "Flushed"
        assert talk.audio == s16(stretched(server.whole(TEXTS[0]), 1.5))
        talk.audio = b""
        await talk.send("Speak", text=TEXTS[1])
        await talk.send("Flush")
        await talk.next()
        assert talk.audio == s16(stretched(server.whole(TEXTS[1]), 1.5))


async def test_sentences_without_space_between_them_are_spoken_separately() -> None:
    """As Pipecat sends them. The first is spoken before the second arrives."""
    async with gateway(**EXACT) as server, speaking(server) as talk:
        await talk.send("Speak", text=TEXTS[0])
        await talk.hear()
        await talk.send("Speak", text=TEXTS[1])
        await talk.send("Flush")
        await talk.next()
        assert talk.audio == b"".join(s16(server.whole(text)) for text in TEXTS)


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        (["Hello there.", "How are you?"], "Hello there. How are you? "),
        (["Hel", "lo", ".", " How"], "Hello. How"),
        (["Pi is 3", ".", "14"], "Pi is 3.14"),
        (["It costs 3.", "50 dollars."], "It costs 3.50 dollars. "),
        (["See example", ".", "com"], "See example.com"),
        (["Yes.", "It is."], "Yes. It is. "),
        (["He said “go.”", "Then"], "He said “go.” Then"),
        (["He went.", "3 came."], "He went. 3 came. "),
        (["a ", "b"], "a b"),
        (["Wait…", "“What”"], "Wait… “What”"),
    ],
)
def test_joined_adds_missing_space_after_sentence(pieces: list[str], whole: str) -> None:
    text, tail = "", ""
    for piece in pieces:
        added, tail = joined(tail, piece)
        text += added
    assert text == whole


async def test_refused_text_does_not_hide_end_of_sentence() -> None:
    async with gateway(max_text_chars=60, **EXACT) as server, speaking(server) as talk:
        await talk.send("Speak", text="Yes.")
        await talk.send("Speak", text="x" * 60)
        assert (await talk.next())["code"] == "TEXT_TOO_LONG"
        await talk.send("Speak", text="It is.")
        await talk.send("Flush")
        await talk.next()
        assert talk.audio == s16(np.concatenate([server.whole("Yes."), server.whole("It is.")]))


async def test_flushes_of_one_turn_are_answered_in_order() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, speaking(server) as talk:
        for text in TEXTS:
            await talk.send("Speak", text=text)
            await talk.send("Flush")
        assert await talk.next() == {"type": "Flushed", "sequence_id": 0}
        assert talk.audio == s16(server.whole(TEXTS[0]))
        assert await talk.next() == {"type": "Flushed", "sequence_id": 1}
        assert talk.audio == b"".join(s16(server.whole(text)) for text in TEXTS)
        await server.until_free()


@pytest.mark.parametrize("text", ["", "   ", "🙂", "..."])
async def test_flush_without_speakable_text_is_answered(text: str) -> None:
    async with gateway() as server, speaking(server) as talk:
        await talk.send("Speak", text=text)
        await talk.send("Flush")
        assert await talk.next() == {"type": "Flushed", "sequence_id": 0}
        await talk.send("Flush")
        assert await talk.next() == {"type": "Flushed", "sequence_id": 1}
        # Unspeakable text becomes 200 ms of silence (setting unspeakable_text).
        assert talk.audio == (b"" if not text.strip() else bytes(2 * SPEC.sample_rate // 5))
        await server.until_free()
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        assert (await talk.next())["sequence_id"] == 2
        assert talk.audio


async def test_line_break_after_flush_holds_no_slot() -> None:
    talker = FakeTalker(row_s=0.001)
    async with (
        gateway(talker, context_idle_s=3600, **EXACT) as server,
        speaking(server) as talk,
    ):
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        await talk.send("Speak", text="\n")
        assert (await talk.next())["type"] == "Flushed"
        await server.until_free()
        await talk.send("Speak", text=" Really?")
        await talk.send("Flush")
        assert (await talk.next())["sequence_id"] == 1
        assert talk.audio == s16(np.concatenate([server.whole(TEXTS[0]), server.whole("Really?")]))


async def test_clear_drops_audio_of_old_turn() -> None:
    """Pipecat interrupts in this way. The cleared Flush is not answered."""
    async with gateway(FakeTalker(**SLOW), **EXACT) as server, speaking(server) as talk:
        await talk.send("Speak", text=TEXTS[1] * 3)
        await talk.send("Flush")
        await talk.hear()
        await talk.send("Clear")
        assert await talk.next() == {"type": "Cleared", "sequence_id": 0}
        await server.until_free()
        talk.audio = b""
        await talk.send("Speak", text=TEXTS[0])
        await talk.send("Flush")
        assert await talk.next() == {"type": "Flushed", "sequence_id": 1}
        assert talk.audio == s16(server.whole(TEXTS[0]))
        await talk.send("Clear")
        assert await talk.next() == {"type": "Cleared", "sequence_id": 2}


async def test_clear_drops_unsent_audio_of_turns_that_are_over() -> None:
    async with served(**EXACT) as service, service.socket("/v1/speak") as socket:

        async def speak(text: str) -> None:
            made = service.talker.rows_made
            socket.send({"type": "Speak", "text": text})
            socket.send({"type": "Flush"})
            await service.until_rows(made)
            await service.until_free()

        assert isinstance(await socket.next(), dict)
        socket.reading.clear()
        for text in TEXTS:
            await speak(text)
        socket.send({"type": "Clear"})
        await speak(TEXTS[0])
        socket.reading.set()
        heard, told = [b""], list[str]()
        while len(told) < 4:
            message = await socket.next()
            if isinstance(message, dict):
                told.append(message["type"])
                heard.append(b"")
            elif message is not None:
                heard[-1] += message
        assert told == ["Flushed", "Flushed", "Cleared", "Flushed"]
        before, *cleared, after, _ = heard
        assert len(before) < len(s16(service.whole(TEXTS[0])))  # what was being sent
        assert (cleared, after) == ([b"", b""], s16(service.whole(TEXTS[0])))


async def test_close_after_flush_stops_speech() -> None:
    """LiveKit's plugin interrupts only in this way."""
    async with gateway(FakeTalker(**SLOW)) as server, speaking(server) as talk:
        await talk.send("Speak", text=TEXTS[1] * 5)
        await talk.hear()
        await talk.send("Flush")
        await talk.send("Close")
        assert await talk.closed() == 1000
        assert len(talk.audio) < len(s16(server.whole(TEXTS[1] * 5))) / 2
        await server.until_free()
        made = server.talker.rows_made
        await asyncio.sleep(0.05)
        assert server.talker.rows_made == made
