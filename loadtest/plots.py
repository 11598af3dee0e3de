"""Plots as PNG. matplotlib is an optional extra: ``pip install matplotlib``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.figures import measured_turns, stream_report
from loadtest.records import TurnRecord
from loadtest.report import Row, RunRecords
from loadtest.run import LoadTestError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (6.4, 3.8)
_FILES = ("ttfa_cdf.png", "ttfa_load.png", "goodput.png", "waterfall.png")
_MARKS = ("p50", "p95", "p99")


def _new(title: str, x: str, y: str) -> Axes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LoadTestError("plots need matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=_SIZE, dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return axes


def _save(axes: Axes, path: Path) -> Path:
    axes.figure.savefig(path)  # type: ignore[union-attr]
    return path


def draw_plots(runs: Sequence[RunRecords], out: Path) -> None:
    """Draw the plots that these runs allow into a folder, from the turns that the tables count.
    Those of earlier runs are removed, since the report is no longer theirs.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        (out / name).unlink(missing_ok=True)
    counted = [
        (row.label, measured_turns(row.plan, records, row.plan.warmup_s + row.figures.window_s))
        for row, records in runs
    ]
    ttfa_cdf(counted, out / "ttfa_cdf.png")
    if len(runs) > 1:
        rows = [row for row, _ in runs]
        ttfa_against_load(rows, out / "ttfa_load.png")
        goodput(rows, out / "goodput.png")
    stream = typical(counted[0][1])
    if stream is not None:
        waterfall(stream, out / "waterfall.png")


def ttfa_against_load(rows: Sequence[Row], path: Path) -> Path:
    """Plot TTFA from the sentence over the offered load, with the 95 % interval of p95 shaded."""
    axes = _new("TTFA against load", "offered load, % of capacity", "TTFA from sentence, ms")
    for mark in _MARKS:
        points = [
            (100 * row.load, interval)
            for row in rows
            if row.load and (interval := getattr(row.figures.ttfa_sentence, mark)) is not None
        ]
        xs = [x for x, _ in points]
        axes.plot(xs, [i.value for _, i in points], marker="o", label=mark)
        if mark == "p95":
            axes.fill_between(
                xs, [i.low for _, i in points], [i.high for _, i in points], alpha=0.2
            )
    if any(row.load and row.figures.ttfa_sentence.p50 for row in rows):  # or matplotlib refuses
        axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.legend()
    return _save(axes, path)


def goodput(rows: Sequence[Row], path: Path) -> Path:
    """Plot good turns per second over offered ones; the diagonal is ideal."""
    axes = _new("Goodput", "offered turns/s", "turns/s")
    offered = [row.figures.offered_per_s for row in rows]
    axes.plot(offered, offered, linestyle=":", color="grey", label="offered")
    axes.plot(offered, [row.figures.goodput_per_s for row in rows], marker="o", label="good")
    refused = [row.figures.outcomes.get("refused", 0) / row.figures.window_s for row in rows]
    axes.plot(offered, refused, marker="x", label="refused")
    axes.set_ylim(bottom=0)
    axes.legend()
    return _save(axes, path)


def ttfa_cdf(named: Sequence[tuple[str, Sequence[TurnRecord]]], path: Path) -> Path:
    """Plot the share of turns that were heard within a time, one line per run."""
    axes = _new("TTFA", "from the turn's intended start, ms", "share of turns")
    for name, records in named:
        values = sorted(
            ttfa
            for record in records
            if record.outcome in ("complete", "cancelled")
            and (ttfa := stream_report(record).ttfa_ms) is not None
        )
        if values:
            axes.step(values, [(i + 1) / len(values) for i in range(len(values))], label=name)
    axes.set_ylim(0, 1.01)
    if axes.get_lines():
        axes.legend()
    return _save(axes, path)


def waterfall(record: TurnRecord, path: Path) -> Path:
    """Plot one stream: audio received, in steps, and audio played. The distance is the lead."""
    axes = _new(
        f"One stream ({record.context_id}, {record.outcome})",
        "after the turn's intended start, s",
        "audio, s",
    )
    times = [0.0]
    received = [0.0]
    total = 0.0
    play_x: list[float] = []
    play_y: list[float] = []
    dry = 0.0
    for at, samples in record.arrivals:
        at -= record.intended_s
        if not play_x or at > dry:  # playback begins or resumes
            play_x += [at] if not play_x else [dry, at]
            play_y += [total] if not play_y else [total, total]
            dry = at
        length = samples / record.sample_rate
        total += length
        dry += length
        times.append(at)
        received.append(total)
    axes.step(times, received, where="post", marker=".", label="received")
    axes.plot([*play_x, dry], [*play_y, total], label="played")
    marks = (("first sentence due", record.sentence_s), ("cancel", record.cancel_s))
    for number, (name, at_s) in enumerate(marks):
        if at_s is not None:
            axes.axvline(
                at_s - record.intended_s, linestyle="--", color=f"C{number + 2}", label=name
            )
    axes.legend()
    return _save(axes, path)


def typical(records: Sequence[TurnRecord]) -> TurnRecord | None:
    """Return the stream to draw: the median by TTFA among those with most chunks."""
    spoken = [r for r in records if r.outcome == "complete" and len(r.arrivals) > 1]
    if not spoken:
        return None
    long = sorted(spoken, key=lambda r: -len(r.arrivals))[: max(1, len(spoken) // 4)]
    return sorted(long, key=lambda r: stream_report(r).ttfb_ms or 0.0)[len(long) // 2]
