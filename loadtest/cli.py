"""``python -m loadtest``: run, sweep, gateway, compare. Tables go to stdout, the rest to stderr."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from loadtest import servers
from loadtest.compare import as_markdown, caveats, compare
from loadtest.plan import Plan, parse_rate, parse_share, steps, warmup_within
from loadtest.plots import draw_plots
from loadtest.program import bounded, failing
from loadtest.report import Row, RunRecords, prepare_files, read_json, write_report
from loadtest.run import LoadTestError, OnProgress, carry_out, check_address, run_plan
from loadtest.session import API_KEY
from loadtest.sweep import gateway_against_bare
from loadtest.sweep import sweep as run_sweep
from loadtest.workload import Workload, read_texts

_URL = os.environ.get("TALKWIRE_URL") or "ws://127.0.0.1:8000/v1/tts/stream"
_MOST_S = 3600.0


def options_of_all() -> argparse.ArgumentParser:
    """Make the options of every command that measures."""
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument
    add("--duration", type=bounded(float, 1, _MOST_S), help="seconds")
    add("--processes", type=bounded(int, 1, 64), default=1, help="worker processes")
    add("--seed", type=int, default=1, help="the same seed draws the same load")
    add("--slo-ttfa-ms", type=bounded(float, 0), default=500,
        help="TTFA from the sentence that counts as good")  # fmt: skip
    add("--out", type=Path, help="folder for report.json, report.md and plots")
    parser.set_defaults(raw=None, plots=False)
    return parser


def options_of_loads() -> argparse.ArgumentParser:
    """Make the options of commands that put a load on a service."""
    parser = argparse.ArgumentParser(add_help=False, parents=[options_of_all()])
    add = parser.add_argument
    add("--url", default=_URL, help="the service's WebSocket, or (openai) its API")
    add("--protocol", choices=("native", "openai"), default="native",
        help="openai: HTTP, a request per turn")  # fmt: skip
    add("--warmup", type=bounded(float, 0), help="seconds at the start not to measure")
    add("--workload", default="agent", help="'agent', 'whole' (texts at once), or 'file:PATH'")
    add("--tokens-per-s", type=bounded(float, 0.1), default=30, help="of the LLM")
    add("--jitter", type=bounded(float, 0), default=0.5,
        help="of the waits between tokens: deviation/mean")  # fmt: skip
    add("--barge-in", default="25%", help="share of turns that are cut off")
    add("--think-s", type=bounded(float, 0), default=2, help="mean pause between turns, seconds")
    add("--max-lead-ms", type=bounded(int, 1), default=2_000, help="audio ahead of playback")
    add("--report-every-s", type=bounded(float, 0), default=0.5,
        help="seconds between playback reports; 0: none")  # fmt: skip
    add("--pid", type=bounded(int, 1), help="the server's process, to meter it")
    add("--serve", action="store_true", help="start 'talkwire serve' for this run")
    add("--fake", action="store_true", help="start a gateway with fake engines")
    add("--fake-capacity", type=bounded(int, 1), default=16, help="with --fake: contexts it takes")
    add("--plots", action="store_true", help="draw PNGs into --out (needs matplotlib)")
    add("--raw", type=Path, help="write every turn's raw record (JSON lines)")
    return parser


def commands() -> argparse.ArgumentParser:
    """Make the whole command line."""
    about = "Load tests: open loop, with the figures a listener would give."
    parser = argparse.ArgumentParser(prog="loadtest", description=about)
    add_command = partial(
        parser.add_subparsers(required=True, metavar="COMMAND").add_parser,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    one = add_command("run", help=run.__doc__, parents=[options_of_loads()])
    one.add_argument("--rate", default="1/s", help="sessions, like 2/s or 90/min")
    one.add_argument("--sessions", type=bounded(int, 1), default=20_000, help="at most so many")
    one.add_argument("--remote", action="store_true", help="allow another machine")
    one.set_defaults(command=run, duration=60.0, warmup=10.0)

    many = add_command("sweep", help=sweep.__doc__, parents=[options_of_loads()])
    many.add_argument("--from", dest="lowest", default="10%", help="the lowest load")
    many.add_argument("--to", dest="highest", default="300%", help="the highest load")
    many.add_argument("--steps", type=bounded(int, 1, 50), default=6, help="how many loads")
    many.add_argument(
        "--capacity",
        type=bounded(float, 1),
        help="streams that are 100 %%; default: the server's limit",
    )
    many.set_defaults(command=sweep, duration=60.0, warmup=15.0)

    alone = add_command("gateway", help=gateway.__doc__, parents=[options_of_all()])
    alone.add_argument("--streams", default="100,500,1000", help="numbers of streams")
    alone.set_defaults(command=gateway, duration=45.0)

    two = add_command("compare", help=compare_files.__doc__)
    two.add_argument("a", type=Path, help="a report.json")
    two.add_argument("b", type=Path, help="another one")
    two.set_defaults(command=compare_files)
    return parser


def run(options: argparse.Namespace) -> None:
    """Run one load: sessions that arrive at a rate, whatever the server does."""
    plan = plan_of(options, rate_per_s=parse_rate(options.rate), max_sessions=options.sessions)

    async def measure(display: Display) -> tuple[list[RunRecords], None]:
        async with served(options) as (url, pid):
            target = msgspec.structs.replace(plan, url=url)
            check_address(target, remote=options.remote)
            result = await run_plan(
                target,
                pid=pid,
                remote=options.remote,
                slo_ttfa_ms=options.slo_ttfa_ms,
                on_progress=display.begin(options.rate, target),
            )
        row = Row(options.rate, target, result.figures, None, result.stopped)
        return [(row, result.records)], None

    report(options, server_name(options), measure)


def sweep(options: argparse.Namespace) -> None:
    """Run loads from a tenth of the capacity to three times it: one row per load."""
    loads = steps(parse_share(options.lowest), parse_share(options.highest), options.steps)
    plan = plan_of(options)

    async def measure(display: Display) -> tuple[list[RunRecords], float]:
        async with served(options) as (url, pid):
            target = msgspec.structs.replace(plan, url=url)
            check_address(target)
            capacity = options.capacity or servers.capacity(url, API_KEY)
            if not capacity:
                raise LoadTestError("the server does not tell its capacity; give --capacity")
            runs = await run_sweep(
                target,
                loads,
                capacity,
                pid=pid,
                slo_ttfa_ms=options.slo_ttfa_ms,
                announce=display.begin,
            )
        return runs, capacity

    report(options, server_name(options), measure)


def gateway(options: argparse.Namespace) -> None:
    """Compare the gateway alone with a bare WebSocket server that sends the same bytes."""
    try:
        counts = [int(each) for each in options.streams.split(",")]
    except ValueError:
        message = f"the numbers of streams are whole numbers with commas, not {options.streams!r}"
        raise LoadTestError(message) from None

    async def measure(display: Display) -> tuple[list[RunRecords], None]:
        rows = await gateway_against_bare(
            counts,
            options.duration,
            options.processes,
            seed=options.seed,
            slo_ttfa_ms=options.slo_ttfa_ms,
            announce=display.begin,
        )
        return [(row, []) for row in rows], None

    report(options, "gateway with fake engines, and a bare server", measure)


def compare_files(options: argparse.Namespace) -> None:
    """Print the ratios of two results, with a verdict only where the spread allows one."""
    first, second = read_json(options.a), read_json(options.b)
    print(as_markdown(compare(first, second), caveats(first, second)), end="", flush=True)


def report(
    options: argparse.Namespace,
    name: str,
    measure: Callable[[Display], Coroutine[Any, Any, tuple[list[RunRecords], float | None]]],
) -> None:
    """Measure, print the tables and write the requested files."""
    prepare_files(options.out, options.raw, options.plots)
    with Display() as display:
        runs, capacity = carry_out(measure(display))
    try:
        write_report(name, runs, capacity, options.out, options.raw)
    finally:
        if options.plots:
            draw_plots(runs, options.out)
    _judge([row for row, _ in runs])


def _judge(rows: Sequence[Row]) -> None:
    """Raise LoadTestError if the rows say nothing of the service but that it does not work."""
    if not any(row.figures.measured_turns or row.stopped for row in rows):
        raise LoadTestError("nothing was measured: no turn was due after the warm-up; run longer")
    if all(set(row.figures.outcomes) == {"failed"} for row in rows):
        raise LoadTestError("every turn failed")
    if all(2 * row.figures.outcomes.get("failed", 0) > row.figures.measured_turns for row in rows):
        raise LoadTestError("most turns failed")


def plan_of(options: argparse.Namespace, **more: Any) -> Plan:
    """Make the plan that the options describe. Raises ValueError or OSError."""
    return Plan(
        url=options.url,
        protocol=options.protocol,
        duration_s=options.duration,
        warmup_s=warmup_within(options.warmup, options.duration),
        workload=workload(options),
        max_lead_ms=options.max_lead_ms,
        report_every_s=options.report_every_s,
        processes=options.processes,
        seed=options.seed,
        **more,
    )


def workload(options: argparse.Namespace) -> Workload:
    """Return the workload that the options name. Raises ValueError or OSError."""
    name = options.workload
    share = parse_share(options.barge_in)
    if share > 1:
        raise ValueError("no more than 100 % of the turns can be cut off")
    if name == "whole":
        return Workload(
            turns=(1, 1), sentences=(1, 3), tokens_per_s=0, barge_in=share, think_s=options.think_s
        )
    if name != "agent" and not name.startswith("file:"):
        raise ValueError("the workload is 'agent', 'whole' or 'file:PATH'")
    return Workload(
        texts=read_texts(Path(name.removeprefix("file:"))) if name != "agent" else (),
        tokens_per_s=options.tokens_per_s,
        jitter=options.jitter,
        barge_in=share,
        think_s=options.think_s,
    )


@contextlib.asynccontextmanager
async def served(options: argparse.Namespace) -> AsyncIterator[tuple[str, int | None]]:
    """Start a server if requested. Yields the address and the process to measure."""
    if options.serve and options.fake:
        raise ValueError("--serve or --fake, not both")
    if not options.serve and not options.fake:
        yield options.url, options.pid
        return
    fake = ["--capacity", str(options.fake_capacity)]
    command = servers.real() if options.serve else servers.fake(fake)
    async with servers.started(command) as server:
        yield server.url, server.pid


def server_name(options: argparse.Namespace) -> str:
    """Name the measured server."""
    started = "gateway with fake engines" if options.fake else "talkwire serve"
    server = started if options.fake or options.serve else options.url
    over = f" over {options.protocol}'s HTTP API"
    return server if options.protocol == "native" else server + over


class Display:
    """Progress bars. Use it as a context manager; ``begin`` starts the next run's bar."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[turns]} turns"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, label: str, plan: Plan) -> OnProgress:
        """Begin a run of this plan. Returns the callback for its progress."""
        whole = plan.duration_s
        if not self._console.is_terminal:
            self._console.print(f"{label}: {whole:.0f} s, then up to {plan.grace_s:.0f} s more")
        task = self._bars.add_task(label, total=whole, turns=0)

        def update(elapsed_s: float, turns: int) -> None:
            self._bars.update(task, completed=min(elapsed_s, whole), turns=turns)

        return update


@failing("loadtest", LoadTestError, ValueError)
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    options = commands().parse_args(argv)
    options.command(options)
