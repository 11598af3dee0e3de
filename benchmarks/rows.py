"""The gateway's cost per row of a talker: ``python -m benchmarks.rows``.

A scripted talker process sends its steps, each with a row of every stream, as bytes of the link.
They pass through decoding, ``RowStream``, ``ContextDriver``, pace, session, delay and window, in
real time. The codec answers at once with silence, and nothing is sent on. With ``--served`` the
whole gateway runs: windows go to a codec worker, a process that answers with noise, and its samples
as PCM through WebSockets to clients in another process. The result is processor time
(``getrusage``) of this process per row, so other work on the machine matters little; the best of
several runs.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import resource
import socket
import sys
import time

import numpy as np
import uvicorn

from codec.engine import CodecWorkerEngine
from ipc.framing import MessageReader, encode
from loadtest.fakes.codec import FakeCodec, FakeCodecEngine, NoiseDecoder, run_worker
from loadtest.fakes.talker import FakeTalker
from loadtest.process_stats import allow_open_files
from loadtest.program import (
    bounded,
    environment,
    failing,
    markdown_table,
    output_file,
    print_facts,
    write_json,
)
from service.app import create_app
from service.audio.formats import AudioFormat
from service.build import assemble
from service.contexts.driver import ContextDriver
from service.contexts.options import SpeechOptions, SpeechPlan, session_settings
from service.engines.contracts import Engines
from service.settings import Settings
from service.tracing import Tracing
from service.transport.server_config import server_config
from streaming.events import Done, EndRequested, OutputCommand, SendAudio, TextAppended
from streaming.ports import DecodeStats, RowGenerator, SpeechRequest
from streaming.session import Session
from streaming.spec import CodecSpec, Samples
from streaming.window import DecodeWindow
from talker.messages import (
    FromChild,
    FromGateway,
    Generate,
    NewRows,
    Step,
    StreamInterval,
)
from talker.pending_requests import PendingRequests
from talkwire_client import Client

_TEXT = "one long sentence without any end at all"
#: Marks the arguments of the process that listens.
_LISTEN = "listen"
_SPEC = CodecSpec(24_000, 960, (1024,) * 8, 10, 10)
_HOLD_ROWS = 64


class SteppingTalker(FakeTalker):
    """A talker that sends a row of all streams per step, as the talker process does: some rows of a
    stream together, if the gateway wants them so.
    """

    def __init__(self) -> None:
        super().__init__()
        self._requests = PendingRequests(self._send, 1 << 16, _HOLD_ROWS)
        self._handles = itertools.count()
        #: By stream: the number of rows to send together, and those that are held back.
        self._streams: dict[int, tuple[int, list[bytes]]] = {}
        self._has_more = asyncio.Event()
        self._reader: MessageReader[Step] = MessageReader(FromChild)

    def generate(self, request: SpeechRequest) -> RowGenerator:
        """See ``streaming.ports``."""
        if request.request_id.startswith("warm-up"):
            return super().generate(request)
        message = Generate(next(self._handles), (1, 2, 3), 1 << 16, 1.0, 0.95, 50, 0)
        return self._requests.speak(message, _SPEC.num_codebooks, request.request_id)

    def _send(self, message: FromGateway) -> None:
        encode(message)
        match message:
            case Generate(handle):
                self._streams[handle] = (1, [])
                self._has_more.set()
            case StreamInterval(handle, rows):
                self._streams[handle] = (rows, self._streams[handle][1])

    async def requested(self, streams: int) -> None:
        """Wait until so many streams have been requested."""
        while len(self._streams) < streams:
            self._has_more.clear()
            await self._has_more.wait()

    async def run(self, steps: int, step_s: float) -> None:
        """Make ``steps`` steps, one every ``step_s``."""
        rng = np.random.default_rng(0)
        books = _SPEC.num_codebooks
        rows = [rng.integers(0, 1024, (1, books), np.int16).tobytes() for _ in range(64)]
        began = time.monotonic()
        for step in range(steps):
            new = []
            for handle, (at_once, held) in self._streams.items():
                held.append(rows[step % 64])
                if step == steps - 1:
                    new.append(NewRows(handle, b"".join(held), "stop"))
                elif len(held) >= at_once:
                    new.append(NewRows(handle, b"".join(held), ""))
                    held.clear()
            for message in self._reader.feed(encode(Step(len(self._streams), new))):
                self._requests.on_message(message)
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
    """Counts the audio of a context, which goes nowhere."""

    def __init__(self) -> None:
        self.samples = 0
        self.late = 0
        self.done = asyncio.Event()

    def emit(self, command: OutputCommand) -> None:
        """Count an output of a session."""
        match command:
            case SendAudio():
                self.samples += len(command.samples)
                self.late += command.late
            case Done():
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
    engines, tracing = Engines(talker, SilentCodec(_SPEC)), thrown_away() if traces else None
    runtime = assemble(settings, engines, tracing=tracing)
    await runtime.engines.codec.start()
    runtime.pace.begin()
    sinks = [Nobody() for _ in range(streams)]
    async with asyncio.TaskGroup() as tasks:
        for number, sink in enumerate(sinks):
            options = SpeechOptions(format=AudioFormat("pcm_s16le"))
            session = Session(session_settings(runtime, options))
            request = SpeechRequest(f"r{number}", "")
            encoder = options.format.encoder(_SPEC.sample_rate)
            plan = SpeechPlan("native", session, request, encoder, options)
            driver = ContextDriver(runtime, plan, sink.emit, tasks)
            driver.post(TextAppended(_TEXT))
            driver.post(EndRequested())
        await talker.requested(streams)
        before = _cpu_s()
        await talker.run(rows, rho * _SPEC.frame_s)
        for sink in sinks:
            await sink.done.wait()
        spent = _cpu_s() - before
    return 1e6 * spent / (streams * rows), sum(sink.late for sink in sinks)


async def measure_served(streams: int, rows: int, rho: float) -> tuple[float, int]:
    """Return the same for the whole gateway, with clients, and a codec in its own process."""
    talker = SteppingTalker()
    settings = Settings(
        admission="fixed",
        max_contexts=streams,
        max_connections=2 * streams,
        default_lead_ms=120_000,
    )
    engines = Engines(talker, CodecWorkerEngine("noise", module="benchmarks.rows"))
    runtime = assemble(settings, engines)
    server = uvicorn.Server(server_config(create_app(runtime), settings, grace_s=2))
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        port = listener.getsockname()[1]
        command = (sys.executable, "-m", "benchmarks.rows", _LISTEN, str(port), str(streams))
        clients = await asyncio.create_subprocess_exec(*command)
        await talker.requested(streams)
        before = _cpu_s()
        await talker.run(rows, rho * _SPEC.frame_s)
        status = await clients.wait()
        spent = _cpu_s() - before
        server.should_exit = True
        await serving
    if status:
        raise ChildProcessError("the clients have failed: see above")
    late = runtime.metrics.registry.get_sample_value("tts_underruns_total", {"protocol": "native"})
    return 1e6 * spent / (streams * rows), int(late or 0)


async def listen(port: int, streams: int) -> None:
    """Be the clients of ``measure_served``."""

    async def hear() -> None:
        client = Client(f"http://127.0.0.1:{port}", open_timeout_s=60.0)
        async with client, client.speak(_TEXT) as speech:
            async for _ in speech:
                pass

    async with asyncio.TaskGroup() as tasks:
        for _ in range(streams):
            tasks.create_task(hear())


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
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--traces", action="store_true", help="make traces, and throw them away")
    kind.add_argument("--served", action="store_true", help="the whole gateway, with clients")
    parser.add_argument("--json", type=output_file)
    args = parser.parse_args()
    facts = environment(("numpy", "msgspec", "uvloop"))
    print_facts(facts)
    allow_open_files()

    def once(streams: int, rows: int, rho: float) -> tuple[float, int]:
        work = (
            measure_served(streams, rows, rho)
            if args.served
            else measure(streams, rows, rho, traces=args.traces)
        )
        with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
            return runner.run(work)

    once(2, 60, 0.1)  # imports and one-time setup
    table = []
    for rho in args.rho:
        for streams in args.streams:
            runs = [once(streams, args.rows, rho) for _ in range(args.repeat)]
            costs = [round(us, 1) for us, _ in runs]
            table.append((rho, streams, f"{min(costs):.1f}", costs, sum(n for _, n in runs)))
    head = ("row / frame time", "streams", "us per row", "runs", "late chunks")
    print(markdown_table(head, table))
    write_json(args.json, {**facts, "served": args.served, "rows": table})


if __name__ == "__main__":
    match sys.argv[1:]:
        case [word, port, streams] if word == _LISTEN:
            asyncio.run(listen(int(port), int(streams)))
        case ["--model", *_]:  # a codec worker
            run_worker(lambda model: FakeCodec(NoiseDecoder(_SPEC)))
        case _:
            main()
