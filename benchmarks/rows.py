"""The gateway's cost per row of a talker: ``python -m benchmarks.rows``.

A scripted talker process sends its steps, each with a row of every stream, as bytes of the link.
They pass through decoding, ``RowStream``, ``ContextDriver``, pace, session, delay and window, in
real time. The codec answers at once with silence, and nothing is sent on. The result is processor
time (``getrusage``) per row, so other work on the machine matters little; the best of several runs.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.report import bounded, environment, failing, markdown_table, print_facts
from codec.fake import FakeCodecEngine
from ipc.framing import MessageReader, encode
from service.audio.factory import make_stream_encoder
from service.contexts.driver import ContextDriver
from service.contexts.options import SpeechPlan, session_settings
from service.metrics import Metrics
from service.runtime import Runtime
from service.settings import Settings
from service.tracing import Tracing
from streaming.events import Cancelled, Done, EndAsked, Flushed, SendAudio, TextAppended
from streaming.ports import DecodeStats, RowDemand, RowGenerator, SpeechRequest
from streaming.protocol import messages as wire
from streaming.session import Session
from streaming.spec import CodecSpec, Samples
from streaming.window import DecodeWindow
from streaming.word_timing import WordTiming
from talker.fake import FakeTalker
from talker.messages import FromChild, NewRows, Step
from talker.pending_requests import RowStream

_SPEC = CodecSpec(24_000, 960, (1024,) * 8, 10, 10)
_HOLD_ROWS = 64


class SteppingTalker(FakeTalker):
    """A talker that sends a row of all streams per step, as the talker process does."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[int, RowStream] = {}
        self._reader: MessageReader[Step] = MessageReader(FromChild)

    async def generate(self, request: SpeechRequest) -> RowGenerator:
        """See ``streaming.ports``."""
        stream, handle = RowStream(_SPEC.num_codebooks, _HOLD_ROWS), len(self.streams)
        self.streams[handle] = stream
        demand: RowDemand | None = None
        while True:
            rows = await stream.next(0.0 if demand is None else demand.delay_s)
            demand = yield rows
            if rows.finish:
                return

    async def run(self, steps: int, step_s: float) -> None:
        """Make ``steps`` steps, one every ``step_s``."""
        rng, books = np.random.default_rng(0), _SPEC.num_codebooks
        rows = [rng.integers(0, 1024, (1, books), np.int16).tobytes() for _ in range(64)]
        began = time.monotonic()
        for step in range(steps):
            finish = "stop" if step == steps - 1 else ""
            made = [NewRows(handle, rows[step % 64], finish) for handle in self.streams]  # type: ignore[arg-type]
            for message in self._reader.feed(encode(Step(len(made), made))):
                for new in message.rows:
                    self.streams[new.handle].put(new.rows, new.finish, new.spoken)
            await asyncio.sleep(max(0.0, began + (step + 1) * step_s - time.monotonic()))


class SilentCodec(FakeCodecEngine):
    """A codec that answers at once, so that only the gateway's own work is measured."""

    async def decode(
        self, window: DecodeWindow, deadline_s: float, request_id: str = ""
    ) -> tuple[Samples, DecodeStats]:
        """See ``streaming.ports``."""
        stats = DecodeStats(window.codes.shape[1], window.new_frames, 0.0, 0.0, 1, 0.0)
        return np.zeros(window.new_frames * _SPEC.hop_length, np.float32), stats


class Nobody:
    """A ContextSink that only counts the audio."""

    def __init__(self) -> None:
        self.samples = 0
        self.late = 0
        self.done = asyncio.Event()

    def on_audio(self, audio: SendAudio, words: Sequence[WordTiming]) -> None:
        """See ContextSink."""
        self.samples += len(audio.samples)
        self.late += audio.late

    def on_word_timings(self, timings: Sequence[WordTiming]) -> None:
        """See ContextSink."""

    def on_utterance_ended(self) -> None:
        """See ContextSink."""

    def on_flushed(self, flushed: Flushed) -> None:
        """See ContextSink."""

    def on_cancelled(self, cancelled: Cancelled) -> None:
        """See ContextSink."""

    def on_done(self, done: Done) -> None:
        """See ContextSink."""
        self.done.set()


def thrown_away() -> Tracing:
    """Return a Tracing that discards all traces."""
    from opentelemetry.sdk.trace import SpanProcessor

    return Tracing("rows", "fake", SpanProcessor())


async def measure(
    streams: int, rows: int, rho: float, *, traces: bool = False
) -> tuple[float, int]:
    """Return the microseconds per row, and the number of late chunks."""
    talker = SteppingTalker()
    settings = Settings(default_lead_ms=120_000)
    runtime = Runtime(settings, talker, SilentCodec(_SPEC), Metrics("rows", "fake"))
    runtime.tracing = thrown_away() if traces else None
    await runtime.codec.start()
    runtime.engine_pace.begin()
    sinks = [Nobody() for _ in range(streams)]
    async with asyncio.TaskGroup() as tasks:
        for number, sink in enumerate(sinks):
            create = wire.ContextCreate(f"c{number}")
            session = Session(session_settings(runtime, create))
            request = SpeechRequest(f"r{number}", "")
            encoder = make_stream_encoder("pcm_s16le", _SPEC.sample_rate)
            plan = SpeechPlan("native", session, request, encoder)
            driver = ContextDriver(runtime, plan, sink, tasks)
            driver.post(TextAppended("one long sentence without any end at all"))
            driver.post(EndAsked())
        await asyncio.sleep(0.1)  # until all have sent their request
        before = _cpu_s()
        await talker.run(rows, rho * _SPEC.frame_s)
        for sink in sinks:
            await sink.done.wait()
        spent = _cpu_s() - before
    return 1e6 * spent / (streams * rows), sum(sink.late for sink in sinks)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@failing("benchmarks.rows")
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.rows", description=__doc__)
    parser.add_argument("--streams", type=bounded(int, 1), nargs="+", default=[4, 16, 64])
    parser.add_argument("--rows", type=bounded(int, 1), default=250)
    parser.add_argument("--rho", type=bounded(float, 0), nargs="+", default=[0.1, 0.25, 0.8])
    parser.add_argument("--repeat", type=bounded(int, 1), default=3)
    parser.add_argument("--traces", action="store_true", help="make traces, and throw them away")
    args = parser.parse_args()
    print_facts(environment(("numpy", "msgspec")))
    asyncio.run(measure(2, 60, 0.1))  # imports and one-time setup
    table = []
    for rho in args.rho:
        for streams in args.streams:
            runs = [
                asyncio.run(measure(streams, args.rows, rho, traces=args.traces))
                for _ in range(args.repeat)
            ]
            table.append(
                (rho, streams, f"{min(us for us, _ in runs):.1f}", sum(n for _, n in runs))
            )
    print(markdown_table(("row / frame time", "streams", "us per row", "late chunks"), table))


if __name__ == "__main__":
    main()
