"""Traces of contexts: span tree, times and parent trace, without text or voice names."""

from __future__ import annotations

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from loadtest.fakes.talker import FakeTalker
from service.tracing import MAX_WINDOWS
from streaming.events import StartTalker, TextAppended, TimerFired, UtteranceEnded
from streaming.ports import DecodeStats
from streaming.protocol.binary import AudioHeader
from streaming.spec import Samples
from streaming.window import DecodeWindow
from tests.service.kept_spans import (
    ATTRIBUTES,
    FIRST,
    PARENT,
    SECOND,
    SPAN_ID,
    TRACE_ID,
    Kept,
    speak,
)
from tests.service.live import SPEC, client, gateway

UNSAMPLED = PARENT[:-1] + "0"


def times(span: ReadableSpan) -> tuple[int, int]:
    """Return start and end in nanoseconds."""
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.end_time
    return span.start_time, span.end_time


def value(span: ReadableSpan, name: str) -> int:
    found = (span.attributes or {})[name]
    assert isinstance(found, int)
    return found


async def test_trace_has_documented_spans_for_each_utterance() -> None:
    kept, delay_s = Kept(), 0.004
    talker = FakeTalker(row_s=0.002, first_row_s=0.01)
    async with gateway(talker, delay_s, kept.tracing) as server:
        warmed_up = server.codec.decoded
        samples, apart_s = await speak(server)
        windows = server.codec.decoded - warmed_up
    root = kept.root
    assert root.parent is None
    assert root.kind is SpanKind.SERVER
    assert root.status.status_code is StatusCode.UNSET
    assert dict(root.attributes or {}) | {"tts.request_id": 0, "tts.ttfa_s": 0} == {
        "tts.protocol": "native",
        "tts.request_id": 0,
        "tts.model": "fake",
        "tts.outcome": "complete",
        "tts.characters": len(FIRST + SECOND),
        "tts.utterances": 2,
        "tts.audio_s": samples / SPEC.sample_rate,
        "tts.generated_s": samples / SPEC.sample_rate,
        "tts.ttfa_s": 0,
        "tts.underruns": (root.attributes or {})["tts.underruns"],
        "tts.underrun_s": (root.attributes or {})["tts.underrun_s"],
    }
    assert {span.name for span in kept.spans} == ATTRIBUTES.keys()
    assert {span.context.trace_id for span in kept.spans} == {root.context.trace_id}
    assert kept.under(root).keys() == {"tts.utterance"}
    utterances = kept.under(root)["tts.utterance"]
    assert [value(span, "tts.utterance") for span in utterances] == [0, 1]
    assert sum(value(span, "tts.samples") for span in utterances) == samples
    assert sum(value(span, "tts.windows") for span in utterances) == windows
    for utterance in utterances:
        check_stages(kept, utterance, delay_s)
    begun, ended = times(root)
    assert all(begun <= times(span)[0] and times(span)[1] <= ended for span in kept.spans)
    # The first sentence begins with its first piece, not with the piece that completes it.
    (first,) = kept.under(utterances[0])["tts.segment"]
    assert times(first)[1] - times(first)[0] > apart_s * 1e9


def check_stages(kept: Kept, utterance: ReadableSpan, delay_s: float) -> None:
    stages = kept.under(utterance)
    assert stages.keys() == ATTRIBUTES.keys() - {"tts.context", "tts.utterance"}
    single = ("tts.segment", "tts.talker.wait", "tts.talker.first_row", "tts.talker.rows")
    segment, wait, first_row, rows = (times(*stages[name]) for name in single)
    assert times(utterance)[0] == segment[0]
    assert segment[1] == wait[0]
    assert wait[1] == first_row[0]
    assert first_row[1] == rows[0]
    decodes, queues = stages["tts.codec.decode"], stages["tts.codec.queue"]
    assert len(decodes) == len(queues) == value(utterance, "tts.windows")
    frames = sum(value(span, "tts.new_frames") for span in decodes)
    assert frames * SPEC.hop_length == value(utterance, "tts.samples")
    for queue, decode in zip(queues, decodes, strict=True):
        assert rows[0] <= times(queue)[0]
        assert times(queue)[1] == times(decode)[0]
        assert times(decode)[1] - times(decode)[0] == pytest.approx(delay_s * 1e9, rel=1e-3)
    (send,) = stages["tts.send"]
    assert times(decodes[0])[1] <= times(send)[0] <= times(send)[1]
    assert times(decodes[-1])[1] <= times(send)[1] == times(utterance)[1]


async def test_trace_contains_no_text_and_no_voice_name() -> None:
    kept = Kept()
    async with gateway(FakeTalker(fail_after=0), traces=kept.tracing) as server:
        async with client(server.url) as talk:
            await talk.say(FIRST + SECOND, voice="default", continuity="none")
        speech = {"input": "!fail " + FIRST, "voice": "alloy"}
        async with httpx.AsyncClient(timeout=30) as http:
            refused = await http.post(f"{server.http}/v1/audio/speech", json=speech)
            assert refused.status_code == 500
    assert len(kept.named("tts.context")) == 2
    for span in kept.spans:
        assert (span.attributes or {}).keys() <= ATTRIBUTES[span.name], span.name
        assert not span.events
        assert not span.links
        written = span.to_json().casefold()
        for word in (FIRST + SECOND).casefold().split():
            assert len(word) < 4 or word.strip(".,") not in written
        for secret in ("alloy", "default", "!fail", "127.0.0.1"):
            assert secret not in written


async def test_cancel_ends_open_spans_with_cancelled_status() -> None:
    kept, talker = Kept(), FakeTalker(row_s=0.002, frames_per_character=20)
    async with gateway(talker, traces=kept.tracing) as server, client(server.url) as talk:
        await talk.create()
        await talk.send("text.append", context_id="c", text=FIRST + SECOND)
        while not isinstance(await talk.next(), AudioHeader):
            pass
        await talk.send("context.cancel", context_id="c")
        await talk.until("context.cancelled")
        await server.until_free()
    root = kept.root
    assert (root.attributes or {})["tts.outcome"] == "cancelled"
    assert root.status.status_code is StatusCode.UNSET  # a barge-in is not an error
    (utterance,) = kept.under(root)["tts.utterance"]
    (rows,) = kept.under(utterance)["tts.talker.rows"]
    for span in (utterance, rows):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "cancelled"
        assert times(span)[1] <= times(root)[1]
    assert len(kept.named("tts.talker.first_row")) == 1
    assert kept.named("tts.talker.first_row")[0].status.status_code is StatusCode.UNSET


async def test_span_of_failed_context_has_only_error_code() -> None:
    kept = Kept()
    talker = FakeTalker(row_s=0.001)
    async with gateway(talker, traces=kept.tracing) as server, client(server.url) as talk:
        await talk.create()
        await talk.send("text.append", context_id="c", text="Zanzibar !fail.")
        await talk.send("context.end", context_id="c")
        assert (await talk.error())["code"] == "engine_failed"
        await talk.until("context.done")
    assert kept.root.status.status_code is StatusCode.ERROR
    assert kept.root.status.description == "engine_failed"
    assert (kept.root.attributes or {})["error.type"] == "engine_failed"
    assert kept.named("tts.utterance")[0].status.description == "engine_failed"


async def test_window_spans_are_limited_to_max_windows() -> None:
    kept = Kept()
    talker = FakeTalker(row_s=0.0005, frames_per_character=3)
    served = gateway(talker, traces=kept.tracing, first_chunk_frames=1, max_chunk_frames=1)
    async with served as server, client(server.url) as talk:
        await talk.say(FIRST)
    (utterance,) = kept.named("tts.utterance")
    assert value(utterance, "tts.windows") > MAX_WINDOWS
    decodes = kept.named("tts.codec.decode")
    assert len(decodes) == MAX_WINDOWS
    assert times(decodes[-1])[1] <= times(utterance)[1]
    (send,) = kept.named("tts.send")
    assert times(decodes[0])[0] <= times(send)[0]


async def test_window_of_trimmed_silence_has_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    async with gateway(traces=kept.tracing, first_chunk_frames=1) as server:
        warmed_up, decode = server.codec.decoded, server.codec.decode

        async def decode_first_as_silence(
            window: DecodeWindow, deadline: float, request_id: str
        ) -> tuple[Samples, DecodeStats]:
            samples, stats = await decode(window, deadline, request_id)
            return (samples if server.codec.decoded > warmed_up + 1 else 0 * samples), stats

        monkeypatch.setattr(server.codec, "decode", decode_first_as_silence)
        async with client(server.url) as talk:
            await talk.say(FIRST)
        windows = server.codec.decoded - warmed_up
    assert value(kept.root, "tts.utterances") == 1
    (utterance,) = kept.named("tts.utterance")
    assert value(utterance, "tts.windows") == windows > 1
    assert len(kept.named("tts.codec.decode")) == windows
    frames = sum(value(span, "tts.new_frames") for span in kept.named("tts.codec.decode"))
    assert frames * SPEC.hop_length == value(utterance, "tts.samples") + SPEC.hop_length


def test_utterance_span_ends_when_its_end_comes_after_its_audio() -> None:
    kept = Kept()
    trace = kept.tracing.open("native", "r", 0.0)
    assert trace is not None
    trace.note(TextAppended(FIRST), [StartTalker(0, FIRST, 1.0)], 1.0, 1.0)
    assert not kept.named("tts.utterance")
    trace.note(TimerFired(), [UtteranceEnded(0)], 2.0, 2.0)
    (span,) = kept.named("tts.utterance")
    assert times(span)[1] - times(span)[0] == 1_000_000_000


async def test_context_span_follows_traceparent_of_client() -> None:
    kept = Kept()
    async with gateway(traces=kept.tracing) as server:
        await speak(server, traceparent=PARENT)
        async with httpx.AsyncClient(timeout=30) as http:
            await http.post(
                f"{server.http}/v1/audio/speech",
                json={"input": FIRST, "response_format": "pcm"},
                headers={"traceparent": PARENT},
            )
        await speak(server)
        for unusable in ("00-zz-b7ad6b7169203331-01", "x" * 5000):
            await speak(server, traceparent=unusable)
        before = len(kept.spans)
        await speak(server, traceparent=UNSAMPLED)
        assert len(kept.spans) == before
    roots = kept.named("tts.context")
    protocols = [(root.attributes or {})["tts.protocol"] for root in roots]
    assert protocols == ["native", "openai", "native", "native", "native"]
    for root in roots[:2]:
        assert root.context.trace_id == TRACE_ID
        assert root.parent is not None
        assert root.parent.span_id == SPAN_ID
        assert root.parent.is_remote
    for root in roots[2:]:
        assert root.parent is None
        assert root.context.trace_id != TRACE_ID
