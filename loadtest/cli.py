"""``python -m loadtest``: run, sweep, gateway, compare. Tables go to stdout, the rest to stderr."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from loadtest import servers
from loadtest.arrivals import parse_rate, parse_share, steps
from loadtest.compare import as_markdown, caveats, compare
from loadtest.deliver import (
    Made,
    deliver,
    draw,
    prepare,
    served,
    server_name,
    told,
    workload,
)
from loadtest.output import Row, read_json
from loadtest.progress import Display
from loadtest.records import Plan, Protocol, warmup_within
from loadtest.run import LoadTestError, carry_out, port_of, run_plan
from loadtest.sweep import gateway_against_bare
from loadtest.sweep import sweep as run_sweep
from loadtest.talk import API_KEY

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
    with told():
        prepare(out, raw, plots)
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

        async def measure() -> Made:
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
        deliver(server_name(url, serve, fake, protocol), [made], None, out, raw)
        if plots and out:
            draw([made], out)


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
    with told():
        prepare(out, raw, plots)
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

        async def measure() -> tuple[list[Made], float]:
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
        deliver(server_name(url, serve, fake, protocol), made, most, out, raw)
        if plots and out:
            draw(made, out)


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
    with told():
        prepare(out, None)
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
        deliver(
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
    with told():
        first, second = read_json(a), read_json(b)
        typer.echo(as_markdown(compare(first, second), caveats(first, second)), nl=False)


def main() -> None:
    """The program's entry."""
    app()
