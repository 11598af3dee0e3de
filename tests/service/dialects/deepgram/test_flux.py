"""Deepgram's version 2 socket (Flux): turns, interruptions, the speed, warnings, errors."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from service.dialects.deepgram.flux import MAX_WAITING
from streaming.errors import BackendError, ErrorCode
from tests.service.audio.audio_signal import stretched
from tests.service.dialects.deepgram.talk import EXACT, TEXTS
from tests.service.dialects.vendor_talk import s16
from tests.service.live import hold_codec
from tests.service.memory import MemorySocket, Refused, Served, served

#: A talker that does not finish during a test.
ENDLESS: dict[str, Any] = {"frames_per_character": 50, "row_s": 0.002}
RATE = 24_000


class Talk:
    """A connected client. Binary messages are collected as audio, text messages are JSON."""

    def __init__(self, socket: MemorySocket) -> None:
        self.socket, self.audio = socket, b""

    def send(self, kind: str, **fields: Any) -> None:
        self.socket.send({"type": kind, **fields})

    def speak(self, *texts: str) -> None:
        """Send a turn."""
        for text in texts:
            self.send("Speak", text=text)
        self.send("Flush")

    async def next(self) -> dict[str, Any]:
        """Return the next JSON message."""
        while isinstance(message := await self.socket.next(), bytes):
            self.audio += message
        assert message is not None, f"closed {self.socket.close_code}"
        return message

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """Return the messages up to the first of a kind."""
        messages = [await self.next()]
        while messages[-1]["type"] != kind:
            messages.append(await self.next())
        return messages

    async def hear(self, seconds: float = 0.0) -> None:
        """Collect audio: some, or so many seconds."""
        wanted = len(self.audio) + max(1, int(2 * RATE * seconds))
        while len(self.audio) < wanted:
            message = await self.socket.next()
            if isinstance(message, bytes):
                self.audio += message

    async def closed(self) -> int | None:
        """Read until the socket closes, and return the close code."""
        while await self.socket.next() is not None:
            pass
        return self.socket.close_code


@contextlib.asynccontextmanager
async def talking(service: Served, query: str = "") -> AsyncIterator[Talk]:
    async with service.socket(f"/v2/speak?{query}") as socket:
        talk = Talk(socket)
        assert (await talk.next())["type"] == "Connected"
        yield talk


def kinds(messages: list[dict[str, Any]]) -> list[str]:
    return [message["type"] for message in messages]


async def test_connected_names_model_and_request() -> None:
    async with served() as service, service.socket("/v2/speak?model=default") as socket:
        hello = await Talk(socket).next()
    assert (hello["type"], hello["model_name"]) == ("Connected", "default")
    assert len(hello["request_id"]) == 36
    assert hello["model_version"]
    (model,) = hello["model_uuids"]
    assert len(model) == 36


async def test_turns_of_a_socket_begin_with_started_and_end_with_metadata() -> None:
    async with served(**EXACT) as service, talking(service) as talk:
        ids = []
        for text in TEXTS:
            talk.audio = b""
            talk.speak(*(word + " " for word in text.split()))
            started, flushed, metadata = await talk.until("SpeechMetadata")
            assert kinds([started, flushed]) == ["SpeechStarted", "Flushed"]
            assert talk.audio == s16(service.whole(text))
            assert metadata["audio_duration_ms"] == round(1000 * len(talk.audio) / 2 / RATE)
            assert metadata["input_character_count"] == len(text) + 1
            ids.append(started["speech_id"])
            assert {flushed["speech_id"], metadata["speech_id"]} == {ids[-1]}
            await service.until_free()  # no slot is held between turns
        assert len(set(ids)) == 2
        assert all(len(one) == 18 and one.startswith("dg_sp_") for one in ids)


async def test_control_characters_are_counted_but_not_billed() -> None:
    async with served() as service, talking(service) as talk:
        talk.speak("One\x00 two\x07.")
        metadata = (await talk.until("SpeechMetadata"))[-1]
    assert metadata["input_character_count"] == 10
    assert metadata["billable_character_count"] == 8


async def test_turn_that_waits_is_spoken_after_the_one_before() -> None:
    async with served(**EXACT) as service, talking(service) as talk:
        talk.speak(TEXTS[0])
        talk.speak(TEXTS[1])
        first, second = await talk.until("SpeechMetadata"), await talk.until("SpeechMetadata")
        assert kinds(first) == kinds(second) == ["SpeechStarted", "Flushed", "SpeechMetadata"]
        assert talk.audio == b"".join(s16(service.whole(text)) for text in TEXTS)
        assert service.talker.outstanding == 0


async def test_turn_that_waits_takes_text_after_its_beginning() -> None:
    async with served(FakeTalker(row_s=0.001), **EXACT) as service, talking(service) as talk:
        talk.speak(TEXTS[0])
        talk.send("Speak", text=TEXTS[1] + " ")
        await talk.until("SpeechMetadata")
        assert (await talk.next())["type"] == "SpeechStarted"
        talk.speak(TEXTS[0])
        await talk.until("SpeechMetadata")
        said = (TEXTS[0], TEXTS[1], TEXTS[0])
        assert talk.audio == b"".join(s16(service.whole(text)) for text in said)


async def test_interrupt_with_offset_splits_text_and_frees_slot() -> None:
    text = " ".join(TEXTS * 4)
    talker = FakeTalker(frames_per_character=4, row_s=0.001)
    async with served(talker, **EXACT) as service, talking(service) as talk:
        talk.speak(text)
        await talk.hear(2.0)
        talk.send("Interrupt", playback_offset={"type": "time_ms", "value": 1500})
        interrupted = (await talk.until("SpeechInterrupted"))[-1]
        await service.until_free()
        assert interrupted["audio_played_ms"] == 1500
        assert interrupted["text_spoken"]
        assert interrupted["text_spoken"] + interrupted["text_remaining"] == text
        assert len(interrupted["text_spoken"]) < len(text) / 2
        metadata = interrupted["metadata"]
        assert metadata["audio_duration_ms"] >= 2000
        assert metadata["input_character_count"] == len(text)
        talk.audio = b""
        talk.speak(TEXTS[0])
        await talk.until("SpeechMetadata")
        assert talk.audio == s16(service.whole(TEXTS[0]))


async def test_interrupt_without_offset_tells_no_text_and_what_was_sent() -> None:
    async with served(FakeTalker(**ENDLESS)) as service, talking(service) as talk:
        talk.speak(TEXTS[0])
        await talk.hear(0.5)
        talk.send("Interrupt")
        told = (await talk.until("SpeechInterrupted"))[-1]
        await service.until_free()
        assert told["audio_played_ms"] == round(1000 * len(talk.audio) / 2 / RATE)
        assert not {"text_spoken", "text_remaining"} & told.keys()


async def test_offsets_count_from_the_beginning_of_the_session() -> None:
    """A whole turn counts in full, an interrupted one up to its interruption."""
    talker = FakeTalker(row_s=0.001, frames_per_character=8)
    async with served(talker) as service, talking(service) as talk:
        talk.speak(TEXTS[0])
        whole_ms = (await talk.until("SpeechMetadata"))[-1]["audio_duration_ms"]
        talk.speak(TEXTS[1])
        await talk.hear(1.5)
        at = {"type": "time_ms", "value": whole_ms + 1000}
        talk.send("Interrupt", playback_offset=at)
        first = (await talk.until("SpeechInterrupted"))[-1]
        assert first["audio_played_ms"] == whole_ms + 1000
        talk.speak(TEXTS[1])
        await talk.hear(1.5)
        talk.send("Interrupt", playback_offset={"type": "time_ms", "value": whole_ms + 2000})
        second = (await talk.until("SpeechInterrupted"))[-1]
        for told in (first, second):  # an estimate, by how much has been generated
            assert told["text_spoken"]
            assert TEXTS[1].startswith(told["text_spoken"])
        talk.send("Close")
        session = (await talk.until("SessionMetadata"))[-1]
    assert session["total_audio_duration_ms"] == whole_ms + 2000
    characters = len(TEXTS[0]) + 2 * len(TEXTS[1])
    assert session["total_input_character_count"] == characters
    assert session["total_billable_character_count"] == characters


async def test_offset_behind_the_last_one_is_ignored_with_a_warning() -> None:
    async with served(FakeTalker(**ENDLESS)) as service, talking(service) as talk:
        for offset in (800, 700, 800):
            if not service.runtime.admission.active:
                talk.speak(TEXTS[0])
            await talk.hear(1.0)
            talk.send("Interrupt", playback_offset={"type": "time_ms", "value": offset})
            last = await talk.next()
            while last["type"] not in ("Warning", "SpeechInterrupted"):
                last = await talk.next()
            if offset == 700:
                assert last["code"] == "INVALID_INTERRUPT_OFFSET"
                assert "at least 800 ms" in last["description"]
                assert "not 700 ms" in last["description"]
                assert service.runtime.admission.active == 1
            else:
                assert last["type"] == "SpeechInterrupted"
        await service.until_free()


async def test_interruption_before_any_audio_stops_the_turn() -> None:
    """Deepgram ignores it (NO_AUDIO_GENERATED), and speaks on to nobody."""
    talker = FakeTalker(first_row_s=1.0)
    async with served(talker) as service, talking(service) as talk:
        talk.speak(TEXTS[0])
        await talk.until("Flushed")
        talk.send("Interrupt", playback_offset={"type": "time_ms", "value": 0})
        told = (await talk.until("SpeechInterrupted"))[-1]
        await service.until_free()
        assert (told["audio_played_ms"], told["text_spoken"]) == (0, "")
        assert told["text_remaining"] == TEXTS[0]


async def test_turn_that_waits_is_spoken_after_an_interruption() -> None:
    async with served(FakeTalker(row_s=0.001), **EXACT) as service, talking(service) as talk:
        talk.speak(TEXTS[1] * 9)
        talk.speak(TEXTS[0])
        await talk.hear()
        talk.send("Interrupt")
        await talk.until("SpeechInterrupted")
        talk.audio = b""
        assert kinds(await talk.until("SpeechMetadata")) == [
            "SpeechStarted", "Flushed", "SpeechMetadata",
        ]  # fmt: skip
        assert talk.audio == s16(service.whole(TEXTS[0]))


async def test_ten_interrupted_turns_hold_one_slot_at_a_time() -> None:
    async with served(FakeTalker(**ENDLESS), max_contexts=1) as service, talking(service) as talk:
        for _ in range(10):
            talk.speak(TEXTS[0], TEXTS[1])
            await talk.hear()
            assert service.runtime.admission.active == 1
            talk.send("Interrupt")
            await talk.until("SpeechInterrupted")
            assert service.runtime.admission.active == 0
        await service.until_free()


@pytest.mark.parametrize("kind", ["Flush", "Interrupt"])
async def test_message_without_turn_gets_warning(kind: str) -> None:
    async with served() as service, talking(service) as talk:
        talk.send(kind)
        warning = await talk.next()
        assert (warning["type"], warning["code"]) == ("Warning", "NO_ACTIVE_SPEECH")


async def test_second_flush_gets_warning_while_the_turn_is_spoken() -> None:
    async with served(FakeTalker(**ENDLESS)) as service, talking(service) as talk:
        talk.speak(TEXTS[0])
        talk.send("Flush")
        assert kinds(await talk.until("Warning")) == ["SpeechStarted", "Flushed", "Warning"]


async def test_offset_of_a_late_interruption_is_the_session_s_position() -> None:
    """The turn is over here, but its listener had not heard all of it."""
    talker = FakeTalker(row_s=0.001, frames_per_character=8)
    async with served(talker) as service, talking(service) as talk:
        talk.speak(TEXTS[1])
        await talk.until("SpeechMetadata")
        talk.send("Interrupt", playback_offset={"type": "time_ms", "value": 500})
        assert (await talk.next())["code"] == "NO_ACTIVE_SPEECH"
        talk.speak(TEXTS[0])
        await talk.hear(1.0)
        talk.send("Interrupt", playback_offset={"type": "time_ms", "value": 1000})
        told = (await talk.until("SpeechInterrupted"))[-1]
        assert told["audio_played_ms"] == 1000
        assert told["text_spoken"]
        talk.send("Close")
        assert (await talk.next())["total_audio_duration_ms"] == 1000


async def test_unspeakable_turn_ends_without_audio() -> None:
    async with served(unspeakable_text="error") as service, talking(service) as talk:
        talk.speak("...")
        *_, warning, metadata = await talk.until("SpeechMetadata")
        assert (warning["type"], warning["code"]) == ("Warning", "NO_SYNTHESIZABLE_TEXT")
        assert metadata["audio_duration_ms"] == 0
        talk.speak(TEXTS[0])
        assert kinds(await talk.until("SpeechMetadata"))[0] == "SpeechStarted"


async def test_configured_speed_applies_from_the_next_turn() -> None:
    async with served(**EXACT) as service, talking(service) as talk:
        talk.send("Configure", speed=1.5)
        assert await talk.next() == {"type": "ConfigureSuccess", "applied": {"speed": 1.5}}
        talk.speak(TEXTS[0])
        await talk.until("SpeechMetadata")
        assert talk.audio == s16(stretched(service.whole(TEXTS[0]), 1.5))


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({}, {"type": "ConfigureSuccess", "applied": {}}),
        (
            {"speed": 9},
            {
                "type": "ConfigureFailure", "code": "SPEED_OUT_OF_RANGE", "field": "speed",
                "value": 9, "description": "speed must be from 0.25 to 4.0, not 9.",
            },
        ),
        (
            {"model": "emma"},
            {
                "type": "ConfigureFailure", "code": "UNSUPPORTED",
                "description": "model is not a field here; the fields are speed.",
            },
        ),
    ],
)  # fmt: skip
async def test_configure_is_answered(fields: dict[str, Any], answer: dict[str, Any]) -> None:
    async with served() as service, talking(service) as talk:
        talk.send("Configure", **fields)
        assert await talk.next() == answer
        talk.speak(TEXTS[0])
        await talk.until("SpeechMetadata")


async def test_close_speaks_all_turns_then_tells_totals() -> None:
    async with served(**EXACT) as service, talking(service) as talk:
        talk.speak(TEXTS[0])
        talk.send("Speak", text=TEXTS[1])
        talk.send("Close")
        talk.send("Speak", text="This is ignored.")
        messages = await talk.until("SessionMetadata")
        assert kinds(messages) == [
            *("SpeechStarted", "Flushed", "SpeechMetadata") * 2, "SessionMetadata",
        ]  # fmt: skip
        assert talk.audio == b"".join(s16(service.whole(text)) for text in TEXTS)
        total = round(1000 * len(talk.audio) / 2 / RATE)
        assert abs(messages[-1]["total_audio_duration_ms"] - total) <= 1
        assert await talk.closed() == 1000


async def test_close_without_turn_closes_at_once() -> None:
    async with served() as service, talking(service) as talk:
        talk.send("Close")
        assert (await talk.next())["total_audio_duration_ms"] == 0
        assert await talk.closed() == 1000


@pytest.mark.parametrize(
    ("message", "code", "close"),
    [
        ("{", "INVALID_JSON", 1008),
        ("[]", "UNKNOWN_MESSAGE", 1008),
        ({"type": "Clear"}, "UNKNOWN_MESSAGE", 1008),
        ({"type": "Speak"}, "INVALID_MESSAGE", 1008),
        ({"type": "Speak", "text": 5}, "INVALID_MESSAGE", 1008),
        ({"type": "Configure", "speed": "fast"}, "INVALID_MESSAGE", 1008),
        ({"type": "Configure", "speed": True}, "INVALID_MESSAGE", 1008),
        ({"type": "Interrupt", "playback_offset": 5}, "INVALID_MESSAGE", 1008),
        ({"type": "Interrupt", "playback_offset": {}}, "INVALID_MESSAGE", 1008),
        ({"type": "Interrupt", "playback_offset": {"type": "time_ms"}}, "INVALID_MESSAGE", 1008),
        (
            {"type": "Interrupt", "playback_offset": {"type": "bytes", "value": 1}},
            "INVALID_MESSAGE",
            1008,
        ),
        (
            {"type": "Interrupt", "playback_offset": {"type": "time_ms", "value": -1}},
            "INVALID_MESSAGE",
            1008,
        ),
        (b"\0", "INVALID_MESSAGE", 1003),
    ],
)
async def test_invalid_message_closes_socket(message: Any, code: str, close: int) -> None:
    async with served() as service, talking(service) as talk:
        talk.socket.send(message)
        error = await talk.next()
        assert (error["type"], error["code"]) == ("Error", code)
        assert error["description"]
        assert await talk.closed() == close


async def test_failed_turn_closes_socket_and_forgets_turns_that_wait() -> None:
    async with served() as service, talking(service) as talk:
        service.codec.fail_with = BackendError(ErrorCode.CODEC_FAILED, "The codec failed.")
        talk.speak(TEXTS[0])
        talk.speak(TEXTS[1])
        assert (await talk.until("Error"))[-1]["code"] == "CODEC_FAILED"
        assert await talk.closed() == 1011
        await service.until_free()


async def test_drain_lets_turn_finish_and_refuses_turns_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served(**EXACT) as service, talking(service) as talk:
        asked, may_answer = hold_codec(service, monkeypatch)
        talk.speak(TEXTS[0])
        talk.speak(TEXTS[1])
        await asked.wait()
        service.runtime.lifecycle.begin_drain()
        assert (await talk.until("Warning"))[-1]["code"] == "DRAINING"
        may_answer.set()
        await talk.until("SpeechMetadata")
        assert talk.audio == s16(service.whole(TEXTS[0]))
        assert (await talk.until("Error"))[-1]["code"] == "DRAINING"
        assert await talk.closed() == 1013
        await service.until_free()


async def test_too_long_text_is_not_added() -> None:
    async with served(max_text_chars=60, **EXACT) as service, talking(service) as talk:
        talk.send("Speak", text=TEXTS[0])
        talk.send("Speak", text="x" * 50)
        warning = (await talk.until("Warning"))[-1]
        assert warning["code"] == "TEXT_TOO_LONG"
        assert "60 characters" in warning["description"]
        talk.send("Flush")
        await talk.until("SpeechMetadata")
        assert talk.audio == s16(service.whole(TEXTS[0]))


async def test_turns_that_wait_are_bounded() -> None:
    async with served(FakeTalker(**ENDLESS)) as service, talking(service) as talk:
        for _ in range(MAX_WAITING + 2):
            talk.speak("Yes.")
        error = (await talk.until("Error"))[-1]
        assert error["code"] == "TOO_MANY_CONTEXTS"
        assert str(MAX_WAITING) in error["description"]
        assert await talk.closed() == 1008
        await service.until_free()


async def test_texts_that_wait_are_bounded_together() -> None:
    async with (
        served(FakeTalker(**ENDLESS), max_text_chars=100) as service,
        talking(service) as talk,
    ):
        talk.speak("Yes.")
        talk.speak("x" * 90)
        talk.send("Speak", text="y" * 11)
        assert (await talk.until("Warning"))[-1]["code"] == "TEXT_TOO_LONG"


async def test_idle_turn_is_flushed_with_a_warning_and_idle_socket_closes() -> None:
    settings: dict[str, Any] = {"context_idle_s": 0.1, "session_idle_s": 0.7}
    async with served(**settings, **EXACT) as service, talking(service) as talk:
        talk.send("Speak", text="Nobody ever flushes this")
        assert kinds(await talk.until("SpeechMetadata")) == [
            "SpeechStarted", "Warning", "Flushed", "SpeechMetadata",
        ]  # fmt: skip
        assert talk.audio == s16(service.whole("Nobody ever flushes this"))
        await service.until_free()
        assert (await talk.next())["code"] == "IDLE_TIMEOUT"
        assert await talk.closed() == 1001


@pytest.mark.parametrize(
    ("query", "code", "told"),
    [
        ("model=flux-julia-de", "UNSUPPORTED", "model must be"),
        ("encoding=mp3", "UNSUPPORTED", "encoding must be"),
        ("container=wav", "UNSUPPORTED", "container must be"),
        ("speed=9", "INVALID_PARAMETER", "speed must be"),
        ("expressivity=2", "UNSUPPORTED", "expressivity must be 0"),
        ("expressivity=much", "INVALID_PARAMETER", "expressivity must be"),
        ("callback=http%3A%2F%2Fx", "UNSUPPORTED", "callback is not"),
    ],
)
async def test_handshake_with_invalid_query_is_refused(query: str, code: str, told: str) -> None:
    talker = FakeTalker(
        spec=replace(FAKE_SPEC, rendering=replace(FAKE_SPEC.rendering, languages=("en",)))
    )
    async with served(talker) as service:
        with pytest.raises(Refused) as refused:
            async with talking(service, query):
                pytest.fail("it was accepted")
    body = refused.value.body
    assert (refused.value.status, body["err_code"]) == (400, code)
    assert body["err_msg"].startswith(told)


async def test_handshake_accepts_what_clients_send_by_default() -> None:
    query = "model=flux-alexis-en&mip_opt_out=false&tag=a&tag=b&expressivity=0&sample_rate=24000.0"
    async with served() as service, talking(service, query) as talk:
        talk.send("Close")
        assert (await talk.next())["type"] == "SessionMetadata"


async def test_request_is_answered_as_in_version_1() -> None:
    query = "encoding=linear16&container=none&model=flux-alexis-en&expressivity=0"
    async with served(**EXACT) as service:
        answer = await service.http.post(f"/v2/speak?{query}", json={"text": TEXTS[0]})
        assert answer.status_code == 200
        assert answer.content == s16(service.whole(TEXTS[0]))
        assert answer.headers["dg-model-name"] == "flux-alexis-en"
        refused = await service.http.post("/v2/speak?expressivity=-2", json={"text": TEXTS[0]})
        assert (refused.status_code, refused.json()["err_code"]) == (400, "UNSUPPORTED")
