"""Running a plan: worker processes, their records, and samples of the server's resources."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from loadtest import openai_session
from loadtest.figures import Figures, figures
from loadtest.plan import Plan, Protocol
from loadtest.process_stats import Meter, listener_pid, load_average, usage
from loadtest.records import TurnRecord, from_line

#: Delay of the workers' common start after the last one is ready.
_LEAD_S = 0.2
_START_S = 60.0
_LINE_BYTES = 1 << 24

OnProgress = Callable[[float, int], None]
T = TypeVar("T")


class LoadTestError(Exception):
    """An error that is shown to the user before the program ends."""


class Result(msgspec.Struct, frozen=True):
    """A run's results and raw records; ``stopped``: the user stopped it early."""

    figures: Figures
    records: list[TurnRecord]
    stopped: bool


def port_of(url: str, protocol: Protocol) -> int:
    """Return the port of an address that is valid for the protocol. Raises LoadTestError."""
    parts = urlsplit(url)
    ports = {"ws": 80, "wss": 443} | ({"http": 80, "https": 443} if protocol == "openai" else {})
    try:
        usual = ports[parts.scheme]
        return usual if parts.port is None else parts.port
    except (KeyError, ValueError) as error:
        hint = "; --protocol openai speaks HTTP" if parts.scheme in ("http", "https") else ""
        raise LoadTestError(f"not an address for this protocol: {url}{hint}") from error


def require_local(url: str, protocol: Protocol = "native") -> int:
    """Return the port of a loopback address. Raises LoadTestError for any other address."""
    port = port_of(url, protocol)
    parts = urlsplit(url)
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LoadTestError(f"no machine is known by the name in {url}") from error
    if not all(ipaddress.ip_address(str(each[4][0])).is_loopback for each in found):
        raise LoadTestError(
            f"{parts.hostname} is another machine; add --remote if you may put load on it"
        )
    return port


def check_address(plan: Plan, *, remote: bool = False) -> int:
    """Return the port of the plan's address. Raises LoadTestError or ValueError if it is invalid
    for the protocol, and unless ``remote`` if it is another machine's.
    """
    port = port_of(plan.url, plan.protocol)
    if plan.protocol == "openai":
        openai_session.address(plan.url)
    return port if remote else require_local(plan.url, plan.protocol)


async def run_plan(
    plan: Plan,
    *,
    pid: int | None = None,
    remote: bool = False,
    slo_ttfa_ms: float = 500.0,
    on_progress: OnProgress = lambda elapsed_s, turns: None,
) -> Result:
    """Run a plan. Ctrl-C ends it early, with the results so far. Raises LoadTestError, or
    ValueError for an invalid address.
    """
    port = check_address(plan, remote=remote)
    if not remote:
        pid = pid or listener_pid(port)
    before = load_average()
    stop = asyncio.Event()
    meter = Meter(pid)
    records: list[TurnRecord] = []
    with _on_interrupt(stop.set):
        workers = [await _start(plan, index) for index in range(plan.processes)]
        try:
            zero_s = await _begin(workers)
            sampling = asyncio.create_task(meter.run())
            reading = [asyncio.create_task(_read(worker, records)) for worker in workers]
            await _watch(plan, reading, stop, zero_s, lambda t: on_progress(t, len(records)))
            stopped_s = time.monotonic() - zero_s if stop.is_set() else None
            for worker in workers:
                _close(worker)
            await asyncio.gather(*reading)
            sampling.cancel()
        finally:
            await _end(workers)
    if any(worker.returncode for worker in workers):
        raise LoadTestError("a worker process broke; what it said is above")
    last_s = min(plan.duration_s, stopped_s or plan.duration_s)
    spent = usage(meter.samples, zero_s + plan.warmup_s, zero_s + last_s)
    results = figures(
        plan,
        records,
        slo_ttfa_ms=slo_ttfa_ms,
        server=spent,
        load_average=(before, load_average()),
        until_s=stopped_s,
    )
    return Result(results, records, stop.is_set())  # also by a Ctrl-C after the last turn


def carry_out(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine. SIGTERM acts like Ctrl-C, so that the servers that it started end too."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return asyncio.run(work)
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    """Act like Ctrl-C, also in a shell's background jobs, which ignore it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _start(plan: Plan, index: int) -> asyncio.subprocess.Process:
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadtest.worker",
        str(index),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
        start_new_session=True,  # signals to our process group are for us: we close its input
    )
    assert worker.stdin is not None
    worker.stdin.write(msgspec.json.encode(plan) + b"\n")
    return worker


async def _begin(workers: list[asyncio.subprocess.Process]) -> float:
    """Wait until all workers are ready, and tell them the run's beginning (monotonic seconds)."""
    for worker in workers:
        assert worker.stdout is not None
        said = b""
        with contextlib.suppress(TimeoutError):
            said = await asyncio.wait_for(worker.stdout.readline(), _START_S)
        if said != b"ready\n":
            raise LoadTestError("a worker process did not start")
    zero_s = time.monotonic() + _LEAD_S
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(f"{zero_s}\n".encode())
    return zero_s


async def _read(worker: asyncio.subprocess.Process, records: list[TurnRecord]) -> None:
    assert worker.stdout is not None
    while line := await worker.stdout.readline():
        records.append(from_line(line))


async def _watch(
    plan: Plan,
    reading: list[asyncio.Task[None]],
    stop: asyncio.Event,
    zero_s: float,
    tell: Callable[[float], None],
) -> None:
    """Wait until every worker is done, the user stops the run, or the time is over."""
    stopping = asyncio.create_task(stop.wait())
    end_s = plan.duration_s + plan.grace_s
    while (now_s := time.monotonic() - zero_s) < end_s and not stop.is_set():
        tell(min(now_s, end_s))
        left = {task for task in reading if not task.done()}
        if not left:
            break
        await asyncio.wait({*left, stopping}, timeout=0.25, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()


def _close(worker: asyncio.subprocess.Process) -> None:
    """Close a worker's input, which tells it to stop. This does no harm if it is done."""
    if worker.stdin is not None:
        worker.stdin.close()


async def _end(workers: list[asyncio.subprocess.Process]) -> None:
    for worker in workers:
        _close(worker)
        try:
            async with asyncio.timeout(15):
                await worker.wait()
        except TimeoutError:
            worker.kill()
            await worker.wait()
