"""Soak test: does the service grow while it works? ``python -m loadtest.soak --minutes 60``.

Starts ``talkwire serve`` as a user does. Clients speak, cancel, disconnect in the middle and break
off, in a constant mix. Memory, file descriptors and threads of the service and of its children are
read every second, and once more at the end, when all clients have left. For each, the report has
the slope per hour with the 95 % confidence interval, after a warm-up, and the values at rest before
and after the run. If a run ends early, also by Ctrl-C, the report covers the time until then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from http.client import HTTPException

import psutil

from loadtest import servers
from loadtest.program import bounded, failing, output_file
from loadtest.run import carry_out, port_of
from loadtest.stats import trend
from talkwire_client import Client, ClientError, ServerError

TEXTS = (
    "Yesterday my brother saw a yellow bird in the garden.",
    "Every winter the mountain village is white. Nobody travels there before the spring.",
    "Open the window.",
)
_QUIET_S = 10.0
_READ_S = 1.0
#: Share of the run before the regression begins, while caches fill.
_WARM_UP = 0.2
_MIB = 1 << 20
#: ``ended_by`` of a run that the user stopped.
_INTERRUPT = "interrupt"
#: Values by the name of their series, such as "gateway rss_mib".
Reading = dict[str, float]


@dataclass(slots=True)
class Soaked:
    """Readings of a run so far: (seconds, reading)."""

    done: dict[str, int] = field(default_factory=dict)
    readings: list[tuple[float, Reading]] = field(default_factory=list)
    missed: int = 0
    before: Reading = field(default_factory=dict)
    after: Reading = field(default_factory=dict)


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[psutil.Process, int]]:
    """Run ``talkwire serve`` until the block ends. Yields its process and its port."""
    async with servers.started(servers.real()) as server:
        yield psutil.Process(server.pid), port_of(server.url, "native")


def read(process: psutil.Process, port: int) -> Reading:
    """Read the resources held by the service and its children, its tasks and its open contexts."""
    values = _held("gateway", process)
    seen: Counter[str] = Counter()
    for child in sorted(process.children(recursive=True), key=lambda each: each.pid):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            name = _name(child)
            seen[name] += 1
            values |= _held(f"{name} {seen[name]}" if seen[name] > 1 else name, child)
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(("tts_event_loop_tasks ", "tts_contexts_active ")):
                series, value = line.split(" ")
                values[f"gateway {series.removeprefix('tts_')}"] = float(value)
    return values


def _name(process: psutil.Process) -> str:
    """Return its package, as in ``python -m talker.worker``."""
    module = next((part for part in process.cmdline() if "." in part and "/" not in part), "")
    return module.split(".")[0] or "other"


def _held(name: str, process: psutil.Process) -> Reading:
    with process.oneshot():
        return {
            f"{name} rss_mib": process.memory_info().rss / _MIB,
            f"{name} fds": process.num_fds(),
            f"{name} threads": process.num_threads(),
        }


async def client(url: str, seed: int, until: float, done: dict[str, int]) -> None:
    """Simulate an agent: most utterances are heard to the end, some are cancelled, some connections
    are dropped. Errors are counted by name, and then another connection is opened.
    """
    chance = random.Random(seed)
    while time.monotonic() < until:
        try:
            async with Client(url) as native:
                await _day(native, chance, until, done)
        except ClientError as error:
            _count(done, type(error).__name__)
        await asyncio.sleep(chance.expovariate(1.0))


async def _day(native: Client, chance: random.Random, until: float, done: dict[str, int]) -> None:
    for _ in range(chance.randrange(1, 6)):
        way = chance.choices(("heard", "cancelled", "left"), (8, 3, 1))[0]
        try:
            await _speak(native, chance, way)
        except ServerError as error:
            way = error.code
        _count(done, way)
        if way == "left" or time.monotonic() > until:
            break


def _count(done: dict[str, int], way: str) -> None:
    done[way] = done.get(way, 0) + 1


async def _speak(native: Client, chance: random.Random, way: str) -> None:
    """Speak, and leave early unless ``heard``, which cancels the speech."""
    seed = chance.randrange(1 << 30)
    rate = chance.choice((8000, 24000))
    text = " ".join(chance.choices(TEXTS, k=chance.randrange(1, 4)))
    async with native.speak(text, seed=seed, sample_rate=rate) as speech:
        async for _ in speech:
            if way != "heard" and chance.random() < 0.3:
                return


async def soak(minutes: float, clients: int) -> dict[str, object]:
    """Run the test. Returns the report of the time until its end, an error or Ctrl-C
    (``ended_by``).
    """
    kept = Soaked()
    ended_by: str | None = None
    try:
        await _soak(60 * minutes, clients, kept)
    except asyncio.CancelledError:
        ended_by = _INTERRUPT
    except Exception as error:
        first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        ended_by = f"{type(first).__name__}: {first}"
    return {
        "utterances": kept.done,
        "minutes": minutes,
        "ended_by": ended_by,
        "missed_readings": kept.missed,
        "series": summary(kept.readings, kept.before, kept.after),
    }


async def _soak(seconds: float, clients: int, kept: Soaked) -> None:
    async with served() as (process, port), asyncio.TaskGroup() as busy:
        url = f"ws://127.0.0.1:{port}/v1/tts/stream"
        await client(url, 0, time.monotonic() + 5, {})
        await asyncio.sleep(_QUIET_S)
        kept.before = await asyncio.to_thread(read, process, port)
        began = time.monotonic()
        until = began + seconds
        agents = [busy.create_task(client(url, n + 1, until, kept.done)) for n in range(clients)]
        while time.monotonic() < until:
            await asyncio.sleep(_READ_S)
            try:
                values = await asyncio.to_thread(read, process, port)
            except (OSError, HTTPException):  # it did not answer in time: one reading is missing
                kept.missed += 1
            else:
                kept.readings.append((time.monotonic() - began, values))
        await asyncio.gather(*agents)
        await asyncio.sleep(_QUIET_S)
        kept.after = await asyncio.to_thread(read, process, port)


def summary(
    readings: Sequence[tuple[float, Reading]], before: Reading, after: Reading
) -> dict[str, dict[str, float | None]]:
    """Return each series' slope per hour (None: too few readings), and its values at rest."""
    kept = [one for one in readings if one[0] >= _WARM_UP * readings[-1][0]]
    found: dict[str, dict[str, float | None]] = {}
    for name in before:
        points = [(at / 3600, values[name]) for at, values in kept if name in values]
        line = _line([at for at, _ in points], [value for _, value in points])
        found[name] = line | {"before": before[name], "after": after.get(name)}
    return {
        name: {key: None if value is None else round(value, 2) for key, value in line.items()}
        for name, line in found.items()
    }


def _line(hours: Sequence[float], values: Sequence[float]) -> dict[str, float | None]:
    try:
        return asdict(trend(hours, values))
    except ValueError:
        return {"slope": None, "low": None, "high": None}


@failing("loadtest.soak")
def main(argv: Sequence[str] | None = None) -> None:
    """Run the test, and print the slopes."""
    parser = argparse.ArgumentParser(prog="loadtest.soak", description=__doc__)
    parser.add_argument("--minutes", type=bounded(float, 0.01), default=60.0)
    parser.add_argument("--clients", type=bounded(int, 1), default=2)
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    report = carry_out(soak(options.minutes, options.clients))
    print(f"{report['minutes']} minutes, utterances: {report['utterances']}\n")
    if report["ended_by"] or report["missed_readings"]:
        print(f"Ended by: {report['ended_by']}; readings missed: {report['missed_readings']}\n")
    print("| series | slope per hour | 95 % from | to | at rest before | after |")
    print("| --- | --- | --- | --- | --- | --- |")
    series: dict[str, dict[str, float | None]] = report["series"]  # type: ignore[assignment]
    for name, row in series.items():
        cells = ("-" if value is None else f"{value:g}" for value in row.values())
        print(f"| {name} | " + " | ".join(cells) + " |")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    if report["ended_by"] not in (None, _INTERRUPT):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
