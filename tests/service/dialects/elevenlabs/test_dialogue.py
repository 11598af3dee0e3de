"""Text-to-dialogue: voices that take turns, over HTTP and on sockets."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadtest.fakes.talker import FAKE_SPEC, TIMED_SPEC, FakeTalker
from service.dialects.elevenlabs import streams
from service.dialects.elevenlabs.dialogue import MAX_LINES, MAX_VOICES
from streaming.ports import RowGenerator, SpeechRequest
from tests.service.dialects.elevenlabs.talk import EXACT
from tests.service.dialects.vendor_talk import s16
from tests.service.memory import MemorySocket, Refused, Served, served

PATH = "/v1/text-to-dialogue"
LINES = [("emma", "Who is there?"), ("adam", "It is me"), ("adam", "Open up!"), ("emma", "Never.")]
#: A talker that does not finish during a test.
ENDLESS: dict[str, Any] = {"frames_per_character": 50, "row_s": 0.002}


class Cast(FakeTalker):
    """A talker with several voices, which records who says what."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.voices = ("default", "emma", "adam", *(f"voice{n}" for n in range(MAX_VOICES)))
        self.said: list[tuple[str, str]] = []
        self.talks: list[str | None] = []

    async def generate(self, request: SpeechRequest) -> RowGenerator:
        self.said.append((request.voice, request.text))
        self.talks.append(request.conversation)
        async with aclosing(super().generate(request)) as pieces:
            async for piece in pieces:
                yield piece


@contextlib.asynccontextmanager
async def cast(settings: dict[str, Any] = EXACT, **options: Any) -> AsyncIterator[Served]:
    talker = Cast(**options)
    async with served(talker, **settings) as service:
        talker.said.clear()  # the warm-up text
        talker.talks.clear()
        yield service


def said(service: Served) -> list[tuple[str, str]]:
    assert isinstance(service.talker, Cast)
    return service.talker.said


def inputs(*lines: tuple[str, str]) -> list[dict[str, str]]:
    return [{"text": text, "voice_id": voice} for voice, text in lines]


def whole(service: Served, *texts: str) -> bytes:
    return b"".join(s16(service.whole(text)) for text in texts)


async def post(service: Served, path: str = "", **body: Any) -> Any:
    return await service.http.post(f"{PATH}{path}?output_format=pcm_24000", json=body)


# -- HTTP


@pytest.mark.parametrize("path", ["", "/stream"])
async def test_lines_are_one_body_each_in_its_voice(path: str) -> None:
    async with cast() as service:
        answer = await post(service, path, inputs=inputs(*LINES))
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("audio/")
        assert said(service) == LINES
        assert answer.content == whole(service, *(text for _, text in LINES))
        await service.until_free()


async def test_dialogue_is_one_file_at_a_speed_with_a_seed() -> None:
    body = {"inputs": inputs(*LINES), "seed": 7, "settings": {"speed": 1.5, "stability": 0.5}}
    async with cast() as service:
        answer = await service.http.post(f"{PATH}?output_format=wav_24000", json=body)
        assert answer.content.count(b"RIFF") == 1
        again = await service.http.post(f"{PATH}?output_format=wav_24000", json=body)
        assert again.content == answer.content
        other = await service.http.post(f"{PATH}?output_format=wav_24000", json=body | {"seed": 8})
        assert other.content != answer.content
        samples = sum(len(service.whole(text, 7)) for _, text in LINES)
        assert len(answer.content) == pytest.approx(2 * samples / 1.5, rel=0.02)


async def test_every_voice_has_its_own_conversation_which_ends_with_the_dialogue() -> None:
    async with cast(spec=replace(FAKE_SPEC, has_continuity=True)) as service:
        await post(service, inputs=inputs(*LINES))
        assert isinstance(service.talker, Cast)
        emma, adam, again, back = service.talker.talks
        assert (emma, adam) == (back, again)
        assert emma != adam
        assert not service.talker.conversations


def spread(lines: list[dict[str, Any]]) -> list[tuple[int, str, float, float]]:
    """All voice segments: number, text, start, end."""
    found = []
    for line in lines:
        for one in line["voice_segments"]:
            chars = line["alignment"]["characters"]
            text = "".join(chars[one["character_start_index"] : one["character_end_index"]])
            number = one["dialogue_input_index"]
            assert one["voice_id"] == LINES[number][0]
            found.append((number, text, one["start_time_seconds"], one["end_time_seconds"]))
    return found


@pytest.mark.parametrize("path", ["/with-timestamps", "/stream/with-timestamps"])
async def test_segments_tell_who_speaks_which_characters_and_when(path: str) -> None:
    async with cast(spec=TIMED_SPEC, frames_per_character=2.0) as service:
        answer = await post(service, path, inputs=inputs(*LINES))
        lines = [json.loads(line) for line in answer.text.splitlines()]
        pcm = b"".join(base64.b64decode(line["audio_base64"]) for line in lines)
        assert pcm == whole(service, *(text for _, text in LINES))
        segments = spread(lines)
        texts = ["".join(text for at, text, *_ in segments if at == n) for n in range(len(LINES))]
        assert texts == [text for _, text in LINES]
        assert (len(lines) == 1) == (path == "/with-timestamps")
        ends = np.cumsum([len(service.whole(text)) / 24_000 for _, text in LINES])
        for number, _, start, end in segments:
            assert start <= end <= ends[number] + 0.1
            assert start >= (ends[number - 1] - 0.1 if number else 0)


async def test_model_without_timings_has_no_segments() -> None:
    async with cast() as service:
        whole_body = (await post(service, "/with-timestamps", inputs=inputs(*LINES))).json()
        assert whole_body["alignment"] is None
        assert whole_body["voice_segments"] == []


async def test_lines_without_words_are_left_out() -> None:
    async with cast() as service:
        lines = (("emma", "..."), ("adam", "Yes."), ("emma", ""), ("emma", "\N{PARTY POPPER}"))
        answer = await post(service, inputs=inputs(*lines))
        assert answer.content == whole(service, "Yes.")


EMMA = inputs(("emma", "a"))
MANY = inputs(*((f"voice{n}", "a") for n in range(MAX_VOICES)), ("emma", "b"))
GONE = "voice_0123456789abcdef"
LONG = inputs(("emma", "a" * 60), ("adam", "b" * 41))


@pytest.mark.parametrize(
    ("body", "code", "field", "told"),
    [
        ({}, "invalid_message", "inputs", "inputs is missing"),
        ({"inputs": []}, "invalid_message", "inputs", "at least 1"),
        ({"inputs": EMMA * (MAX_LINES + 1)}, "invalid_message", "inputs", f"at most {MAX_LINES}"),
        ({"inputs": [{"text": "a"}]}, "invalid_message", "inputs.0.voice_id", "missing"),
        ({"inputs": [{"text": 5, "voice_id": "emma"}]}, "invalid_message", "inputs.0.text", "5"),
        (
            {"inputs": EMMA + inputs((GONE, "b"))},
            "unknown_voice",
            "inputs.1.voice_id",
            GONE,
        ),
        (
            {"inputs": MANY},
            "invalid_message",
            "inputs.10.voice_id",
            'one of the 10 voices before it, the most of a dialogue, not "emma"',
        ),
        ({"inputs": LONG}, "text_too_long", "inputs", "at most 100 characters in all, not 101"),
        ({"inputs": EMMA, "seed": -1}, "invalid_message", "seed", "at least 0"),
        ({"inputs": EMMA, "audio_effects": {"a": 1}}, "unsupported", "audio_effects", "effects"),
        ({"inputs": EMMA, "settings": {"speed": 9}}, "invalid_message", "settings.speed", "most 4"),
    ],
)
async def test_refusal_names_field_value_and_what_is_allowed(
    body: dict[str, Any], code: str, field: str, told: str
) -> None:
    async with cast({"max_text_chars": 100}) as service:
        answer = await post(service, **body)
        detail = answer.json()["detail"]
        assert (detail["code"], detail["param"]) == (code, field)
        assert told in detail["message"]
        assert said(service) == []


# -- sockets


class Talk:
    """A connected client. ``sounds`` has the audio of contexts."""

    def __init__(self, socket: MemorySocket) -> None:
        self.socket = socket
        self.sounds: dict[str | None, bytes] = {}
        self.messages: list[dict[str, Any]] = []

    def send(self, context: str | None = "c", **fields: Any) -> None:
        self.socket.send(fields if context is None else {"context_id": context, **fields})

    async def next(self) -> dict[str, Any]:
        message = await self.socket.next()
        assert isinstance(message, dict), f"closed {self.socket.close_code}"
        context = message.get("context_id")
        sound = base64.b64decode(message.get("audio") or "")
        self.sounds[context] = self.sounds.get(context, b"") + sound
        self.messages.append(message)
        return message

    async def until(self, key: str, context: str | None = "c") -> dict[str, Any]:
        message = await self.next()
        while key not in message or message.get("context_id") != context:
            message = await self.next()
        return message

    async def closed(self) -> int | None:
        while await self.socket.next() is not None:
            pass
        return self.socket.close_code


@contextlib.asynccontextmanager
async def talking(
    service: Served, kind: str = "multi-stream-input", query: str = ""
) -> AsyncIterator[Talk]:
    async with service.socket(f"{PATH}/{kind}?output_format=pcm_24000&{query}") as socket:
        yield Talk(socket)


CAST = ["emma", "adam"]


async def test_context_speaks_lines_in_its_voices() -> None:
    async with cast() as service, talking(service) as talk:
        talk.send(voices=CAST)
        talk.send(inputs=inputs(*LINES[:2]))
        talk.send(inputs=[{"text": "Open up!", "voice_id": "adam", "new_turn": True}])
        talk.send(inputs=inputs(LINES[3]), flush=True)
        assert await talk.until("is_final_audio_for_turn")
        talk.send(close_context=True)
        assert await talk.until("is_final") == {"is_final": True, "context_id": "c"}
        assert [(voice, text.strip()) for voice, text in said(service)] == LINES
        assert talk.sounds["c"] == whole(service, *(text for _, text in said(service)))
        await service.until_free()


async def test_texts_of_a_line_are_joined_as_they_are() -> None:
    async with cast() as service, talking(service) as talk:
        talk.send(voices=CAST)
        for piece in ("Who is ", "the", "re?"):
            talk.send(inputs=inputs(("emma", piece)))
        talk.send(close_context=True)  # speaks what is not flushed, as in ElevenLabs' API
        await talk.until("is_final")
        assert said(service) == [("emma", "Who is there?")]


async def test_registered_context_holds_no_slot_and_is_forgotten() -> None:
    async with cast() as service, talking(service, query="inactivity_timeout=1") as talk:
        talk.send("keeps", voices=CAST)
        talk.send("keeps", keep_alive=True)
        assert service.runtime.admission.active == 0
        assert await talk.until("is_final", "keeps")


async def test_contexts_speak_side_by_side() -> None:
    async with cast() as service, talking(service) as talk:
        for context, line in (("a", LINES[0]), ("b", LINES[1])):
            talk.send(context, voices=[line[0]])
            talk.send(context, inputs=inputs(line), flush=True)
            talk.send(context, close_context=True)
        finals = 0
        while finals < 2:
            finals += "is_final" in await talk.next()
        for context, (_, text) in (("a", LINES[0]), ("b", LINES[1])):
            assert talk.sounds[context] == whole(service, text)


async def test_alignments_restart_with_the_audio_of_each_message() -> None:
    async with cast(spec=TIMED_SPEC, frames_per_character=2.0) as service:
        async with talking(service, query="sync_alignment=true") as talk:
            talk.send(voices=CAST)
            talk.send(inputs=[line | {"new_turn": True} for line in inputs(*LINES)], flush=True)
            talk.send(close_context=True)
            await talk.until("is_final")
        at_ms, words, chars = 0.0, dict[str, float](), ""
        for message in talk.messages:
            if alignment := message.get("alignment"):
                starts = alignment["char_start_times_ms"]
                assert len(starts) == len(alignment["chars"]) == len(alignment["char_durations_ms"])
                for char, start in zip(alignment["chars"], starts, strict=True):
                    if chars[-1:] in ("", " "):
                        words[char] = at_ms + start
                    chars += char
            at_ms += len(base64.b64decode(message.get("audio") or "")) / 48
        assert chars.split() == " ".join(text for _, text in LINES).split()
        ends = np.cumsum([1000 * len(service.whole(text)) / 24_000 for _, text in said(service)])
        assert words["W"] == pytest.approx(0, abs=90)
        assert words["O"] == pytest.approx(ends[1], abs=90)
        assert words["N"] == pytest.approx(ends[2], abs=90)


async def test_alignment_is_not_sent_unless_asked_for() -> None:
    async with cast(spec=TIMED_SPEC) as service, talking(service) as talk:
        talk.send(voices=CAST)
        talk.send(inputs=inputs(*LINES), close_context=True)
        await talk.until("is_final")
        assert not any("alignment" in message for message in talk.messages)


@pytest.mark.parametrize(
    ("messages", "error", "param"),
    [
        ([{"inputs": inputs(LINES[0])}], "invalid_message", "voices"),
        ([{"voices": CAST}, {"voices": CAST}], "invalid_message", "voices"),
        (
            [{"voices": ["emma"]}, {"inputs": inputs(*LINES)}],
            "invalid_message",
            "inputs.1.voice_id",
        ),
        ([{"voices": ["emma", GONE]}], "unknown_voice", "voices.1"),
    ],
)
async def test_error_of_a_context_ends_it_and_leaves_the_socket_open(
    messages: list[dict[str, Any]], error: str, param: str
) -> None:
    async with cast() as service, talking(service) as talk:
        for message in messages:
            talk.send(**message)
        told = await talk.until("error")
        assert (told["error"], told["param"]) == (error, param)
        assert told["message"]
        assert await talk.until("is_final")
        talk.send("other", voices=CAST)
        talk.send("other", inputs=inputs(LINES[0]), close_context=True)
        await talk.until("is_final", "other")
        assert talk.sounds["other"] == whole(service, LINES[0][1])


@pytest.mark.parametrize(
    "message",
    [
        "{",
        json.dumps({"voices": CAST}),
        json.dumps({"context_id": "c", "voices": []}),
        json.dumps({"context_id": "c", "voices": ["emma"] * (MAX_VOICES + 1)}),
        json.dumps({"context_id": "c", "inputs": [{"text": "a"}]}),
    ],
)
async def test_invalid_message_closes_socket(message: str) -> None:
    async with cast() as service, talking(service) as talk:
        talk.socket.send(message)
        assert (await talk.until("error", None))["code"] == 1008
        assert await talk.closed() == 1008


async def test_registered_contexts_are_bounded() -> None:
    async with cast() as service, talking(service) as talk:
        for number in range(11):
            talk.send(f"c{number}", voices=CAST)
        assert (await talk.until("error", "c10"))["error"] == "too_many_contexts"


async def test_close_socket_speaks_everything() -> None:
    async with cast() as service, talking(service) as talk:
        talk.send("a", voices=CAST)
        talk.send("a", inputs=inputs(*LINES[:2]))
        talk.send("b", voices=CAST)
        talk.send(None, close_socket=True)
        await talk.until("is_final", "a")
        assert talk.sounds["a"] == whole(service, *(text for _, text in said(service)))
        assert await talk.closed() == 1000


async def test_late_close_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_END_OF_TURN_S", 0.0)  # so much time passes
    async with cast({}, **ENDLESS) as service, talking(service) as talk:
        talk.send(voices=CAST)
        talk.send(inputs=inputs(*LINES), flush=True)
        await talk.until("audio")
        talk.send(close_context=True)
        await talk.until("is_final")
        await service.until_free()


async def test_pipecat_interrupts_by_a_close_without_flush() -> None:
    async with cast({}, **ENDLESS) as service, talking(service) as talk:
        talk.send("pipecat-keepalive", voices=["emma"])
        talk.send(voices=["emma"])
        talk.send(inputs=[{"text": "Who is there? I ask.", "voice_id": "emma", "new_turn": True}])
        await talk.until("audio")
        talk.send(close_context=True)
        await talk.until("is_final")
        await service.until_free()


async def test_interrupted_turns_do_not_lock_the_next_ones_out() -> None:
    """LiveKit's plugin only opens the next context."""
    async with cast({"max_contexts": 2}, **ENDLESS) as service, talking(service) as talk:
        for number in range(10):
            context = f"c{number}"
            talk.send(context, voices=["emma"])
            talk.send(context, inputs=inputs(LINES[0]))
            talk.send(context, inputs=inputs(("emma", "")), flush=True)
            talk.send(context, close_context=True)
            await talk.until("audio", context)
            assert service.runtime.admission.active <= 2


async def test_single_socket_has_one_dialogue_without_ids() -> None:
    async with cast() as service, talking(service, "stream-input") as talk:
        talk.send(None, voices=CAST)
        talk.send(None, inputs=inputs(*LINES))
        talk.send(None, close_socket=True)
        assert await talk.until("is_final", None) == {"is_final": True}
        assert talk.sounds[None] == whole(service, *(text for _, text in said(service)))
        assert await talk.closed() == 1000


async def test_single_socket_closes_after_an_error() -> None:
    async with cast() as service, talking(service, "stream-input") as talk:
        talk.send(None, voices=["emma"])
        talk.send(None, inputs=inputs(LINES[1]))
        told = await talk.until("error", None)
        assert told["param"] == "inputs.0.voice_id"
        assert "emma" in told["message"]
        assert await talk.closed() == 1008


async def test_handshake_with_invalid_format_is_refused() -> None:
    async with cast() as service:
        with pytest.raises(Refused) as refused:
            async with service.socket(f"{PATH}/stream-input?output_format=wav_24000"):
                pytest.fail("it was accepted")
        assert refused.value.body["detail"]["param"] == "output_format"
