"""A worker process: runs its share of the sessions and prints a record per turn.

Standard input has the plan on its first line and the run's beginning (monotonic seconds) on the
second. Its end, also by the parent's death, ends the run. Standard output has a line ``ready`` and
then records. Run as ``python -m loadtest.worker INDEX``.
"""

from __future__ import annotations

import asyncio
import heapq
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from operator import itemgetter

import msgspec

from loadtest import native_session, openai_session
from loadtest.plan import Plan, arrivals
from loadtest.process_stats import allow_open_files
from loadtest.records import TurnRecord, to_line
from loadtest.session import new_record
from loadtest.workload import Turn, from_beginning, session

_STOPPING_S = 8.0
_CONVERSE = {"native": native_session.converse, "openai": openai_session.converse}


#: A session's number, its beginning, and its turns from then on.
Share = tuple[int, float, tuple[Turn, ...]]


def shares(plan: Plan, index: int) -> list[tuple[int, float]]:
    """List (number, beginning) of the sessions that worker ``index`` runs."""
    return [
        (number, at) for number, at in enumerate(arrivals(plan)) if number % plan.processes == index
    ]


def scripts(plan: Plan, index: int) -> Iterator[Share]:
    """Yield the sessions of worker ``index``, in order of beginning. Sessions in progress when the
    run begins are drawn at once, and continue with the next turn that is due. The others are drawn
    when they are requested.
    """
    own = shares(plan, index)
    begun = [(n, session(plan.workload, plan.seed, n), at) for n, at in own if at < 0]
    left = [(n, *from_beginning(turns, at)) for n, turns, at in begun]
    early = sorted(((n, at, turns) for n, turns, at in left if turns), key=itemgetter(1))
    later = ((n, at, session(plan.workload, plan.seed, n)) for n, at in own if at >= 0)
    return heapq.merge(early, later, key=itemgetter(1))


def emit(record: TurnRecord) -> None:
    """Write one record. This hardly ever waits, since the parent reads as fast as it can."""
    sys.stdout.buffer.write(to_line(record))
    sys.stdout.buffer.flush()


async def run(plan: Plan, coming: Iterator[Share], zero_s: float, stop: asyncio.Event) -> None:
    """Begin each session when it is due, independently of the others. Returns when all have ended,
    at the plan's last moment, or at ``stop``.
    """
    max_open = max(1, plan.max_open // plan.processes)
    talking: set[asyncio.Task[None]] = set()

    async def begin() -> None:
        for number, at, turns in coming:
            await asyncio.sleep(at + zero_s - time.monotonic())
            if len(talking) >= max_open:
                emit(_dropped(number, turns[0], at, zero_s))
                continue
            converse = _CONVERSE[plan.protocol]
            task = asyncio.create_task(converse(plan, number, turns, at, zero_s, emit))
            talking.add(task)
            task.add_done_callback(talking.discard)
        while talking:
            await asyncio.wait(talking)

    beginning = asyncio.create_task(begin())
    stopping = asyncio.create_task(stop.wait())
    left_s = zero_s + plan.duration_s + plan.grace_s - time.monotonic()
    await asyncio.wait({beginning, stopping}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
    for task in (beginning, stopping, *talking):
        task.cancel()
    await asyncio.wait({beginning, stopping, *talking}, timeout=_STOPPING_S)
    if beginning.done() and not beginning.cancelled():
        beginning.result()  # raises its error, if it had one


def _dropped(number: int, turn: Turn, at: float, zero_s: float) -> TurnRecord:
    record = new_record(number, 0, turn, at, zero_s)
    record.outcome = "dropped"
    record.code = "max_open"
    record.ended_s = record.started_s
    return record


async def _main(index: int) -> None:
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    plan = msgspec.json.decode(await stdin.readline(), type=Plan)
    coming = scripts(plan, index)
    print("ready", flush=True)
    zero = await stdin.readline()
    if not zero:
        return
    stop = asyncio.Event()
    watching = asyncio.create_task(_until_closed(stdin, stop))
    await run(plan, coming, float(zero), stop)
    watching.cancel()


async def _until_closed(stdin: asyncio.StreamReader, stop: asyncio.Event) -> None:
    await stdin.read()
    stop.set()


def main(argv: Sequence[str]) -> None:
    """Run the process."""
    allow_open_files()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and closes our input
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_main(int(argv[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
