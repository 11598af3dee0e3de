"""What the commands share: choosing a server and a workload, and handing over the results."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec
import typer

from loadtest import servers
from loadtest.arrivals import parse_share
from loadtest.figures import measured_turns
from loadtest.output import Report, Row, make_report, markdown, write_json
from loadtest.records import Protocol, TurnRecord, write_records
from loadtest.run import LoadTestError
from loadtest.script import Workload
from loadtest.texts import read_texts

#: A row, and the raw records that it was made from.
Made = tuple[Row, list[TurnRecord]]


@contextlib.contextmanager
def told() -> Iterator[None]:
    """What the user did wrong, or the machine denied, in a line on stderr."""
    try:
        yield
    except (LoadTestError, ValueError, OSError) as error:
        typer.echo(f"loadtest: {error}", err=True)
        raise typer.Exit(1) from error


def workload(
    name: str, tokens_per_s: float, jitter: float, barge_in: str, think_s: float
) -> Workload:
    """The sessions by name. Raises ValueError or OSError."""
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
    """The address to load and the process to meter; starts a server if one is asked for."""
    if serve and fake:
        raise ValueError("--serve or --fake, not both")
    if not serve and not fake:
        yield url, pid
        return
    command = servers.real() if serve else servers.fake(["--capacity", str(fake_capacity)])
    async with servers.started(command) as server:
        yield server.url, server.pid


def server_name(url: str, serve: bool, fake: bool, protocol: Protocol) -> str:
    """What was measured, in words."""
    server = "gateway with fake engines" if fake else "talkwire serve" if serve else url
    return server if protocol == "native" else f"{server} over {protocol}'s HTTP API"


def prepare(out: Path | None, raw: Path | None, plots: bool = False) -> None:
    """Make the folders for the results before the run that they come of. Raises ValueError or
    OSError where they could not be written, LoadTestError for plots without matplotlib.
    """
    if plots and out is None:
        raise ValueError("--plots draws into a folder: name it with --out")
    if plots and importlib.util.find_spec("matplotlib") is None:
        raise LoadTestError("plots need matplotlib: pip install 'talkwire[loadtest]'")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    if raw is not None:
        if raw.is_dir():
            raise ValueError(f"--raw writes a file, and {raw} is a folder")
        raw.parent.mkdir(parents=True, exist_ok=True)


def deliver(
    name: str, made: Sequence[Made], capacity: float | None, out: Path | None, raw: Path | None
) -> Report:
    """Print the tables; write what was asked for, the report first. Raises OSError, ValueError."""
    result = make_report(name, [row for row, _ in made], capacity)
    text = markdown(result)
    typer.echo(text, nl=False)
    if out is not None:
        prepare(out, None)
        write_json(out / "report.json", result)
        (out / "report.md").write_text(text, encoding="utf-8")
    if raw is not None:
        prepare(None, raw)
        write_records(raw, *([_labelled(r, row.label) for r in records] for row, records in made))
    return result


def _labelled(record: TurnRecord, run: str) -> TurnRecord:
    return msgspec.structs.replace(record, run=run)


def draw(made: Sequence[Made], out: Path) -> None:
    """The plots that these runs allow, into a folder: of the turns that the tables count."""
    from loadtest import plots

    out.mkdir(parents=True, exist_ok=True)
    counted = [
        (row.label, measured_turns(row.plan, records, row.plan.warmup_s + row.figures.window_s))
        for row, records in made
    ]
    plots.ttfa_cdf(counted, out / "ttfa_cdf.png")
    if len(made) > 1:
        rows = [row for row, _ in made]
        plots.ttfa_against_load(rows, out / "ttfa_load.png")
        plots.goodput(rows, out / "goodput.png")
    stream = plots.typical(counted[0][1])
    if stream is not None:
        plots.waterfall(stream, out / "waterfall.png")
