"""Does the service grow while it works? ``python -m loadtest.soak --minutes 60``.

Starts ``talkwire serve`` as a user does and lets clients speak, cancel, leave in the middle and
break off, a little of everything all the time. Memory, file descriptors and threads of the
service and of its children are read every second, and at the end, when all have left, once
more. What is told of each is its slope in an hour with the 95 % confidence interval, after a
warm-up, and what is left at the end over what there was before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from clients.errors import ServerError
from clients.native import NativeClient
from loadtest.trend import Trend, trend
from streaming.wire import AudioOptions, SamplingOptions

TEXTS = (
    "Yesterday my brother saw a yellow bird in the garden.",
    "Every winter the mountain village is white. Nobody travels there before the spring.",
    "Open the window.",
)
_START_S, _QUIET_S = 300.0, 10.0
#: Of the whole, before the regression begins: caches fill.
_WARM_UP = 0.2
_MIB = 1 << 20
#: Reading = one series by name, such as "gateway rss_mib".
Reading = dict[str, float]


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[psutil.Process, int]]:
    """A service that is ready, and its port."""
    talkwire = Path(sys.executable).with_name("talkwire")
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(talkwire, "serve", "--port", "0", stderr=log)
        try:
            async with asyncio.timeout(_START_S):
                while b"Ready after" not in (said := os.pread(log.fileno(), 1 << 16, 0)):
                    if process.returncode is not None:
                        raise RuntimeError(said.decode())
                    await asyncio.sleep(0.2)
            found = re.search(rb"http://127\.0\.0\.1:(\d+)", said)
            assert found is not None
            yield psutil.Process(process.pid), int(found[1])
        finally:
            process.terminate()
            await process.wait()


def read(process: psutil.Process, port: int) -> Reading:
    """What the service and its children hold now, and its tasks and open work."""
    values: Reading = {}
    named = {"gateway": process}
    for child in process.children():
        module = next((part for part in child.cmdline() if "." in part and "/" not in part), "")
        named[module.split(".")[0] or "other"] = child
    for name, one in named.items():
        with one.oneshot():
            values[f"{name} rss_mib"] = one.memory_info().rss / _MIB
            values[f"{name} fds"] = one.num_fds()
            values[f"{name} threads"] = one.num_threads()
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(("tts_event_loop_tasks ", "tts_contexts_active ")):
                series, value = line.split(" ")
                values[f"gateway {series.removeprefix('tts_')}"] = float(value)
    return values


async def client(url: str, seed: int, until: float, done: dict[str, int]) -> None:
    """One agent's day: most utterances are heard to the end, some are cut off, some sockets
    are left without a word.
    """
    chance = random.Random(seed)
    while time.monotonic() < until:
        async with NativeClient.connect(url) as native:
            for _ in range(chance.randrange(1, 6)):
                way = chance.choices(("heard", "cancelled", "left"), (8, 3, 1))[0]
                try:
                    await _speak(native, chance, way)
                except ServerError as error:
                    way = error.code
                done[way] = done.get(way, 0) + 1
                if way == "left" or time.monotonic() > until:
                    break
        await asyncio.sleep(chance.expovariate(1.0))


async def _speak(native: NativeClient, chance: random.Random, way: str) -> None:
    """Closing the generator early cancels the context; leaving, the socket goes with it."""
    sampling = SamplingOptions(seed=chance.randrange(1 << 30))
    audio = AudioOptions(sample_rate=chance.choice((8000, 24000)))
    text = " ".join(chance.choices(TEXTS, k=chance.randrange(1, 4)))
    speech = native.speak(text, audio=audio, sampling=sampling)
    async with contextlib.aclosing(speech) as chunks:
        async for _ in chunks:
            if way != "heard" and chance.random() < 0.3:
                return


async def soak(minutes: float, clients: int) -> dict[str, object]:
    """Run; the report."""
    readings: list[tuple[float, Reading]] = []
    done: dict[str, int] = {}
    async with served() as (process, port):
        url = f"ws://127.0.0.1:{port}/v1/tts/stream"
        await client(url, 0, time.monotonic() + 5, {})
        await asyncio.sleep(_QUIET_S)
        before = read(process, port)
        began = time.monotonic()
        until = began + 60 * minutes
        busy = [asyncio.create_task(client(url, n + 1, until, done)) for n in range(clients)]
        while time.monotonic() < until:
            await asyncio.sleep(1.0)
            values = await asyncio.to_thread(read, process, port)
            readings.append((time.monotonic() - began, values))
        await asyncio.gather(*busy)
        await asyncio.sleep(_QUIET_S)
        after = read(process, port)
    return {"utterances": done, "minutes": minutes, "series": summary(readings, before, after)}


def summary(
    readings: Sequence[tuple[float, Reading]], before: Reading, after: Reading
) -> dict[str, dict[str, float]]:
    """For each series its slope per hour, and its values at rest."""
    kept = [one for one in readings if one[0] >= _WARM_UP * readings[-1][0]]
    found: dict[str, dict[str, float]] = {}
    for name in before:
        hours = [at / 3600 for at, values in kept if name in values]
        line: Trend = trend(hours, [values[name] for _, values in kept if name in values])
        rest = {"before": round(before[name], 2), "after": round(after.get(name, float("nan")), 2)}
        found[name] = {key: round(value, 2) for key, value in asdict(line).items()} | rest
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Soak, and print what grows."""
    parser = argparse.ArgumentParser(prog="loadtest.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    report = asyncio.run(soak(options.minutes, options.clients))
    print(f"{report['minutes']} minutes, utterances: {report['utterances']}\n")
    print("| series | slope per hour | 95 % from | to | at rest before | after |")
    print("| --- | --- | --- | --- | --- | --- |")
    series: dict[str, dict[str, float]] = report["series"]  # type: ignore[assignment]
    for name, row in series.items():
        print(f"| {name} | " + " | ".join(f"{value:g}" for value in row.values()) + " |")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
