"""Results of the stages, and their presentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from benchmarks.gpu_check.arithmetic import Range
from loadtest.program import markdown_table

Status = Literal["ok", "broken", "timed out", "skipped"]
#: Factor by which a measurement may be worse than expected before the table reports it.
_TOLERANCE = 1.25


class Figure(msgspec.Struct, frozen=True):
    """One measured number and the expected one. ``higher`` is better, or lower is."""

    name: str
    unit: str
    measured: float
    floor: float | None = None
    expected: float | None = None
    higher: bool = False

    @property
    def verdict(self) -> str:
        """Compare the measured number with the expected one."""
        if self.expected is None or self.expected <= 0 or self.measured <= 0:
            return ""
        ratio = self.measured / self.expected
        worse = 1 / ratio if self.higher else ratio
        if worse <= 1.0:
            return "as good"
        return "near" if worse <= _TOLERANCE else f"{worse:.1f} x worse"


class Result(msgspec.Struct, frozen=True):
    """One stage's outcome. ``problems`` list what is broken, ``notes`` what was left out and why;
    ``key`` identifies the machine and code.
    """

    stage: str
    status: Status
    seconds: float
    budget_s: float
    key: str
    problems: list[str] = []
    notes: list[str] = []
    figures: list[Figure] = []


class Report(msgspec.Struct, frozen=True):
    """All stages on one machine."""

    environment: dict[str, str]
    results: list[Result]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is broken; a skipped stage is sound."""
        return all(result.status in ("ok", "skipped") for result in self.results)


def figure(
    name: str, unit: str, measured: float, range_: Range | None = None, *, higher: bool = False
) -> Figure:
    """Make a figure with its expected range."""
    known = range_ or Range()
    return Figure(name, unit, measured, known.floor, known.expected, higher)


def verdict(result: Result) -> str:
    """Summarise a stage in a few lines, printed as soon as it is over."""
    took = f"{result.seconds:.0f} s of {result.budget_s:.0f} s"
    lines = [f"{result.stage}: {result.status} ({took})"]
    lines += [f"  BROKEN: {problem}" for problem in result.problems]
    lines += [f"  note: {note}" for note in result.notes]
    lines += [
        f"  {f.name}: {f.measured:.4g} {f.unit}"
        + (f" (expected {f.expected:.3g}, {f.verdict})" if f.expected is not None else "")
        for f in result.figures
    ]
    return "\n".join(lines)


def table(results: Sequence[Result]) -> str:
    """Format every figure as a line of a Markdown table, and every stage without one."""
    head = ["stage", "figure", "unit", "floor", "expected", "measured", "verdict"]
    rows: list[list[object]] = []
    for result in results:
        stage = result.stage if result.status == "ok" else f"{result.stage} ({result.status})"
        rows += [
            [stage, f.name, f.unit, _cell(f.floor), _cell(f.expected), f.measured, f.verdict]
            for f in result.figures
        ]
        if not result.figures:
            rows.append([stage, "", "", "", "", "", "; ".join(result.problems or result.notes)])
    return markdown_table(head, rows)


def _cell(value: float | None) -> object:
    return "" if value is None else value
