"""``python -m loadtest``: run, sweep, gateway, compare. Tables go to stdout, the rest to stderr."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Self

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from loadtest import servers
from loadtest.compare import as_markdown, caveats, compare
from loadtest.plan import Plan, Protocol, parse_rate, parse_share, steps, warmup_within
from loadtest.plots import draw_plots
from loadtest.report import Row, RunRecords, prepare_files, read_json, write_report
from loadtest.run import LoadTestError, OnProgress, carry_out, port_of, run_plan
from loadtest.session import API_KEY
from loadtest.sweep import gateway_against_bare
from loadtest.sweep import sweep as run_sweep
from loadtest.workload import Workload, read_texts

app = typer.Typer(
    name="loadtest",
    help="Load tests: open loop, with the figures a listener would give.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_MOST_S = 3600.0

Url = Annotated[
    str, typer.Option(help="The service's WebSocket, or (openai) its API.", envvar="TALKWIRE_URL")
]
Serve = Annotated[bool, typer.Option("--serve", help="Start 'talkwire serve' for this run.")]
Fake = Annotated[bool, typer.Option("--fake", help="Start a gateway with fake engines.")]
FakeCapacity = Annotated[int, typer.Option(help="With --fake: contexts it takes.", min=1)]
Seconds = Annotated[float, typer.Option(help="Seconds.", min=1, max=_MOST_S)]
WarmUp = Annotated[float, typer.Option(help="Seconds at the start not to measure.", min=0)]
Work = Annotated[
    str, typer.Option("--workload", help="'agent', 'whole' (texts at once), or 'file:PATH'.")
]
Pace = Annotated[float, typer.Option(help="The LLM's tokens per second.", min=0.1)]
Jitter = Annotated[float, typer.Option(help="Of the waits between tokens: deviation/mean.", min=0)]
BargeIn = Annotated[str, typer.Option(help="Share of turns that are cut off.")]
Think = Annotated[float, typer.Option(help="Mean pause between turns, seconds.", min=0)]
Lead = Annotated[int, typer.Option(help="Audio ahead of playback, ms.", min=1)]
Reports = Annotated[float, typer.Option(help="Seconds between playback reports; 0: none.", min=0)]
Processes = Annotated[int, typer.Option(help="Worker processes.", min=1, max=64)]
Seed = Annotated[int, typer.Option(help="The same seed draws the same load.")]
Slo = Annotated[float, typer.Option(help="TTFA from the sentence that counts as good, ms.")]
Pid = Annotated[int | None, typer.Option(help="The server's process, to meter it.")]
Out = Annotated[Path | None, typer.Option(help="Folder for report.json, report.md and plots.")]
Plots = Annotated[bool, typer.Option("--plots", help="Draw PNGs into --out (needs matplotlib).")]
Raw = Annotated[Path | None, typer.Option(help="Write every turn's raw record (JSON lines).")]
Spoken = Annotated[
    Protocol, typer.Option("--protocol", help="'native', or 'openai' (HTTP, a request per turn).")
]
_DEFAULT_URL = "ws://127.0.0.1:8000/v1/tts/stream"


@app.command()
def run(
    url: Url = _DEFAULT_URL,
    protocol: Spoken = "native",
    rate: Annotated[str, typer.Option(help="Sessions, like 2/s or 90/min.")] = "1/s",
    duration: Seconds = 60,
    warmup: WarmUp = 10,
    sessions: Annotated[int, typer.Option(help="At most so many.", min=1)] = 20_000,
    work: Work = "agent",
    tokens_per_s: Pace = 30,
    jitter: Jitter = 0.5,
    barge_in: BargeIn = "25%",
    think_s: Think = 2,
    max_lead_ms: Lead = 2_000,
    report_every_s: Reports = 0.5,
    processes: Processes = 1,
    seed: Seed = 1,
    slo_ttfa_ms: Slo = 500,
    pid: Pid = None,
    serve: Serve = False,
    fake: Fake = False,
    fake_capacity: FakeCapacity = 16,
    remote: Annotated[bool, typer.Option("--remote", help="Allow another machine.")] = False,
    out: Out = None,
    plots: Plots = False,
    raw: Raw = None,
) -> None:
    """One load: sessions that arrive at a rate, whatever the server makes of them."""
    with reported_errors():
        prepare_files(out, raw, plots)
        plan = Plan(
            url=url,
            protocol=protocol,
            rate_per_s=parse_rate(rate),
            duration_s=duration,
            warmup_s=warmup_within(warmup, duration),
            max_sessions=sessions,
            workload=workload(work, tokens_per_s, jitter, barge_in, think_s),
            max_lead_ms=max_lead_ms,
            report_every_s=report_every_s,
            processes=processes,
            seed=seed,
        )

        async def measure() -> RunRecords:
            async with served(url, pid, serve, fake, fake_capacity) as (where, which):
                mine = msgspec.structs.replace(plan, url=where)
                result = await run_plan(
                    mine,
                    pid=which,
                    remote=remote,
                    slo_ttfa_ms=slo_ttfa_ms,
                    on_progress=display.begin(f"{rate}", mine),
                )
            return Row(rate, mine, result.figures, None, result.stopped), result.records

        with Display() as display:
            made = carry_out(measure())
        write_report(server_name(url, serve, fake, protocol), [made], None, out, raw)
        if plots and out:
            draw_plots([made], out)


@app.command()
def sweep(
    url: Url = _DEFAULT_URL,
    protocol: Spoken = "native",
    lowest: Annotated[str, typer.Option("--from", help="The lowest load.")] = "10%",
    highest: Annotated[str, typer.Option("--to", help="The highest load.")] = "300%",
    count: Annotated[int, typer.Option("--steps", help="How many loads.", min=1, max=50)] = 6,
    capacity: Annotated[
        float | None, typer.Option(help="Streams that are 100 %; default: the server's limit.")
    ] = None,
    duration: Seconds = 60,
    warmup: WarmUp = 15,
    work: Work = "agent",
    tokens_per_s: Pace = 30,
    jitter: Jitter = 0.5,
    barge_in: BargeIn = "25%",
    think_s: Think = 2,
    max_lead_ms: Lead = 2_000,
    report_every_s: Reports = 0.5,
    processes: Processes = 1,
    seed: Seed = 1,
    slo_ttfa_ms: Slo = 500,
    pid: Pid = None,
    serve: Serve = False,
    fake: Fake = False,
    fake_capacity: FakeCapacity = 16,
    out: Out = None,
    plots: Plots = False,
    raw: Raw = None,
) -> None:
    """Loads from a tenth of the capacity to three times it: one row per load."""
    with reported_errors():
        prepare_files(out, raw, plots)
        loads = steps(parse_share(lowest), parse_share(highest), count)
        plan = Plan(
            url=url,
            protocol=protocol,
            duration_s=duration,
            warmup_s=warmup_within(warmup, duration),
            workload=workload(work, tokens_per_s, jitter, barge_in, think_s),
            max_lead_ms=max_lead_ms,
            report_every_s=report_every_s,
            processes=processes,
            seed=seed,
        )

        async def measure() -> tuple[list[RunRecords], float]:
            async with served(url, pid, serve, fake, fake_capacity) as (where, which):
                port_of(where, protocol)
                most = capacity or servers.capacity(where, API_KEY)
                if not most:
                    raise LoadTestError("the server does not tell its capacity; give --capacity")
                made = await run_sweep(
                    msgspec.structs.replace(plan, url=where),
                    loads,
                    most,
                    pid=which,
                    slo_ttfa_ms=slo_ttfa_ms,
                    announce=display.begin,
                )
            return made, most

        with Display() as display:
            made, most = carry_out(measure())
        write_report(server_name(url, serve, fake, protocol), made, most, out, raw)
        if plots and out:
            draw_plots(made, out)


@app.command()
def gateway(
    streams: Annotated[str, typer.Option(help="Numbers of streams.")] = "100,500,1000",
    duration: Seconds = 45,
    processes: Processes = 1,
    seed: Seed = 1,
    slo_ttfa_ms: Slo = 500,
    out: Out = None,
) -> None:
    """The gateway alone against a bare WebSocket server that sends the same bytes."""
    with reported_errors():
        prepare_files(out, None)
        counts = [int(each) for each in streams.split(",")]
        with Display() as display:
            rows = carry_out(
                gateway_against_bare(
                    counts,
                    duration,
                    processes,
                    seed=seed,
                    slo_ttfa_ms=slo_ttfa_ms,
                    announce=display.begin,
                )
            )
        write_report(
            "gateway with fake engines, and a bare server",
            [(row, []) for row in rows],
            None,
            out,
            None,
        )


@app.command(name="compare")
def compare_files(
    a: Annotated[Path, typer.Argument(help="A report.json.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
) -> None:
    """Ratios of two results, with a verdict only where the spread allows one."""
    with reported_errors():
        first, second = read_json(a), read_json(b)
        typer.echo(as_markdown(compare(first, second), caveats(first, second)), nl=False)


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Print errors of the user and of the machine in a line, and exit with 1."""
    try:
        yield
    except (LoadTestError, ValueError, OSError) as error:
        typer.echo(f"loadtest: {error}", err=True)
        raise typer.Exit(1) from error


def workload(
    name: str, tokens_per_s: float, jitter: float, barge_in: str, think_s: float
) -> Workload:
    """Make the workload of that name. Raises ValueError or OSError."""
    share = parse_share(barge_in)
    if share > 1:
        raise ValueError("no more than 100 % of the turns can be cut off")
    if name == "whole":
        return Workload(
            turns=(1, 1), sentences=(1, 3), tokens_per_s=0, barge_in=share, think_s=think_s
        )
    if name != "agent" and not name.startswith("file:"):
        raise ValueError("the workload is 'agent', 'whole' or 'file:PATH'")
    texts = read_texts(Path(name.removeprefix("file:"))) if name != "agent" else ()
    return Workload(
        texts=texts, tokens_per_s=tokens_per_s, jitter=jitter, barge_in=share, think_s=think_s
    )


@contextlib.asynccontextmanager
async def served(
    url: str, pid: int | None, serve: bool, fake: bool, fake_capacity: int
) -> AsyncIterator[tuple[str, int | None]]:
    """Start a server if one is asked for; yields its address and the process to meter."""
    if serve and fake:
        raise ValueError("--serve or --fake, not both")
    if not serve and not fake:
        yield url, pid
        return
    command = servers.real() if serve else servers.fake(["--capacity", str(fake_capacity)])
    async with servers.started(command) as server:
        yield server.url, server.pid


def server_name(url: str, serve: bool, fake: bool, protocol: Protocol) -> str:
    """Name what was measured."""
    server = "gateway with fake engines" if fake else "talkwire serve" if serve else url
    return server if protocol == "native" else f"{server} over {protocol}'s HTTP API"


class Display:
    """Use it as a context manager; ``begin`` starts the next run's bar."""

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
        """A run of this plan begins; call what is returned with its progress."""
        whole = plan.duration_s
        if not self._console.is_terminal:
            self._console.print(f"{label}: {whole:.0f} s, then up to {plan.grace_s:.0f} s more")
        task = self._bars.add_task(label, total=whole, turns=0)

        def update(elapsed_s: float, turns: int) -> None:
            self._bars.update(task, completed=min(elapsed_s, whole), turns=turns)

        return update


def main() -> None:
    """The program's entry."""
    app()
