"""Tracing that keeps its spans in memory, and texts and ids for tests of traces."""

from __future__ import annotations

import asyncio
import time

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service.tracing import Tracing
from tests.service.live import Gateway, client

FIRST, SECOND = "Zanzibar is far away.", " Quagga herds graze there, they say."
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
#: The documented attributes; docs/guides/operations.md has the same list.
ATTRIBUTES = {
    "tts.context": {
        *("tts.protocol", "tts.request_id", "tts.model", "tts.outcome", "tts.characters"),
        *("tts.utterances", "tts.audio_s", "tts.generated_s", "tts.ttfa_s", "tts.underruns"),
        *("tts.underrun_s", "error.type"),
    },
    "tts.utterance": {
        *("tts.utterance", "tts.characters", "tts.rows", "tts.windows", "tts.samples"),
    },
    "tts.segment": set(),
    "tts.talker.wait": set(),
    "tts.talker.first_row": set(),
    "tts.talker.rows": {"tts.rows"},
    "tts.codec.queue": set(),
    "tts.codec.decode": {"tts.frames", "tts.new_frames", "tts.batch"},
    "tts.send": {"tts.samples"},
}


class Kept:
    """Tracing whose spans stay in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing = Tracing("test", "fake", SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return sorted((s for s in self.spans if s.name == name), key=lambda s: s.start_time or 0)

    @property
    def root(self) -> ReadableSpan:
        (root,) = self.named("tts.context")
        return root

    def under(self, parent: ReadableSpan) -> dict[str, list[ReadableSpan]]:
        """Return the children of ``parent`` by name, ordered by start."""
        found: dict[str, list[ReadableSpan]] = {}
        for span in sorted(self.spans, key=lambda span: span.start_time or 0):
            if span.parent is not None and span.parent.span_id == parent.context.span_id:
                found.setdefault(span.name, []).append(span)
        return found


async def speak(server: Gateway, **headers: str) -> tuple[int, float]:
    """Speak two sentences, the first sent in two pieces.

    Returns:
        The number of samples, and the time in seconds after which the second piece was sent,
        counted from when the service had read the first.
    """
    async with client(server.url, additional_headers=headers) as talk:
        handle = await talk.create()
        await talk.send("text.append", context_id="c", text=FIRST[:8])
        await talk.send("ping")
        await talk.until("pong")
        read_at = time.monotonic()
        await asyncio.sleep(0.02)
        apart_s = time.monotonic() - read_at
        await talk.send("text.append", context_id="c", text=FIRST[8:])
        await talk.send("text.append", context_id="c", text=SECOND)
        await talk.send("context.end", context_id="c")
        await talk.until("context.done")
        return len(talk.samples(handle)), apart_s
