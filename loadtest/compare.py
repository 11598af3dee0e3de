"""Comparison of two results: ratios, and a verdict only where the spread allows one.

The intervals reflect the spread within each run, but not the differences between two runs of the
same thing, for example through other work on the machine. Repeat a run before you believe a small
difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from loadtest.figures import Figures
from loadtest.plan import Plan
from loadtest.program import markdown_table
from loadtest.report import Report, Row
from loadtest.stats import Interval, Quantiles
from loadtest.workload import Workload

_ROUNDING = 1e-6

#: Maximum relative difference of two sweeps' rates for one load that counts as none.
_SAME_RATE = 0.05

#: A row's label, its load, and the number of rows before it with the same two.
_Name = tuple[str, float, int]

#: A percentile has an interval only with this many values beyond it.
_BEYOND = 4


def _mark(name: str) -> Callable[[Quantiles], Interval | None]:
    """Return a percentile, if there are enough values for its interval."""
    share = float(name[1:]) / 100

    def get(values: Quantiles) -> Interval | None:
        found: Interval | None = getattr(values, name)
        return found if values.n * (1 - share) >= _BEYOND else None

    return get


_P50, _P95, _P99 = map(_mark, ("p50", "p95", "p99"))

#: Name, whether more is better, and where it is found.
_COMPARED: tuple[tuple[str, bool, Callable[[Figures], Interval | None]], ...] = (
    ("TTFB p50", False, lambda f: _P50(f.ttfb)),
    ("TTFB p95", False, lambda f: _P95(f.ttfb)),
    ("TTFA p50", False, lambda f: _P50(f.ttfa)),
    ("TTFA p95", False, lambda f: _P95(f.ttfa)),
    ("TTFA p99", False, lambda f: _P99(f.ttfa)),
    ("TTFA from sentence p50", False, lambda f: _P50(f.ttfa_sentence)),
    ("TTFA from sentence p95", False, lambda f: _P95(f.ttfa_sentence)),
    ("gap p99", False, lambda f: _P99(f.gap)),
    ("gap-free, no prebuffer", True, lambda f: f.gap_free.get("0")),
    ("gap-free, 100 ms", True, lambda f: f.gap_free.get("100")),
    ("RTF p50", False, lambda f: _P50(f.rtf)),
    ("cancel ack p95", False, lambda f: _P95(f.cancel_ack)),
)


class Comparison(NamedTuple):
    """B against A in one measure of one run. ``verdict``: better, worse, or no difference shown."""

    run: str
    figure: str
    a: Interval
    b: Interval
    verdict: str

    @property
    def ratio(self) -> float | None:
        """B over A; None if A is 0."""
        return self.b.value / self.a.value if self.a.value else None


def judge(a: Interval, b: Interval, more_is_better: bool) -> str:
    """Judge B against A; no verdict if the intervals overlap or nearly do."""
    hair = _ROUNDING * max(abs(a.value), abs(b.value))
    if a.low <= b.high + hair and b.low <= a.high + hair:
        return "no difference shown"
    return "better" if (b.value > a.value) is more_is_better else "worse"


def pairs(a: Report, b: Report) -> list[tuple[Row, Row]]:
    """Pair the runs of both reports by label and load, in order. Two single runs always form a
    pair.
    """
    if len(a.rows) == len(b.rows) == 1:
        return [(a.rows[0], b.rows[0])]
    theirs = dict(_numbered(b.rows))
    return [(row, theirs[name]) for name, row in _numbered(a.rows) if name in theirs]


def _numbered(rows: Sequence[Row]) -> list[tuple[_Name, Row]]:
    """Name each row by its label, its load, and the number of rows before it with the same two."""
    seen: Counter[tuple[str, float]] = Counter()
    named = []
    for row in rows:
        name = row.label, round(row.load or 0.0, 4)
        named.append(((*name, seen[name]), row))
        seen[name] += 1
    return named


def compare(a: Report, b: Report) -> list[Comparison]:
    """Compare all measures that both reports have, for each pair of runs."""
    comparisons = []
    for row, other in pairs(a, b):
        for name, more_is_better, get in _COMPARED:
            a_value, b_value = get(row.figures), get(other.figures)
            if a_value is not None and b_value is not None:
                verdict = judge(a_value, b_value, more_is_better)
                comparisons.append(Comparison(row.label, name, a_value, b_value, verdict))
    return comparisons


def caveats(a: Report, b: Report) -> list[str]:
    """List the differences that may make two reports incomparable."""
    said = [
        f"{name}: {a.machine.get(name)} against {b.machine.get(name)}"
        for name in sorted(a.machine.keys() | b.machine.keys())
        if a.machine.get(name) != b.machine.get(name)
    ]
    if a.server != b.server:
        said.append(f"what was measured: {a.server} against {b.server}")
    if a.capacity != b.capacity:
        said.append(f"what is 100 %: {_short(a.capacity)} against {_short(b.capacity)} streams")
    matched = pairs(a, b)
    for row, other in matched:
        if row.label != other.label:
            said.append(f"{row.label}: the run of B is {other.label}")
        said += _plan_differences(row, other)
    said += _alone("A", a.rows, [row for row, _ in matched])
    said += _alone("B", b.rows, [row for _, row in matched])
    busy = [max(row.figures.load_average) for row in (*a.rows, *b.rows)]
    if busy and max(busy) > 2 * max(0.5, min(busy)):
        said.append(f"the machine's load average differed: {min(busy):.1f} to {max(busy):.1f}")
    return said


def _alone(name: str, rows: Sequence[Row], matched: Sequence[Row]) -> list[str]:
    left = [row.label for row in rows if not any(row is each for each in matched)]
    return [f"only in {name}: {', '.join(left)}"] if left else []


def _plan_differences(row: Row, other: Row) -> list[str]:
    a, b = _settings(row.plan), _settings(other.plan)
    if row.load and other.load and _is_near(a["rate_per_s"], b["rate_per_s"]):
        a["rate_per_s"] = b["rate_per_s"]  # each sweep calibrates its own rate for a load
    unlike = {name: (value, b[name]) for name, value in a.items() if value != b[name]}
    drawn = [name for name in unlike if name == "seed" or name in Workload.__struct_fields__]
    said = [f"{row.label}: another workload or seed"] if drawn else []
    return said + [
        f"{row.label}: {name} {_short(ours)} against {_short(theirs)}"
        for name, (ours, theirs) in unlike.items()
    ]


def _settings(plan: Plan) -> dict[str, Any]:
    """Return all settings of a plan that affect the load, so not the address."""
    fields = msgspec.structs.asdict(plan)
    return {name: each for name, each in fields.items() if name not in ("url", "workload")} | (
        msgspec.structs.asdict(plan.workload)
    )


def _is_near(a: float, b: float) -> bool:
    return abs(a - b) <= _SAME_RATE * max(a, b)


def _short(value: object) -> str:
    """Format a value for a line: texts only by their number."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple) and any(isinstance(each, str) for each in value):
        return f"{len(value)} texts"
    return str(value)


def as_markdown(compared: Sequence[Comparison], warnings: Sequence[str]) -> str:
    """Format the caveats and then the table."""
    head = ("run", "figure", "A", "B", "B / A", "verdict on B")
    rows = [
        (
            c.run,
            c.figure,
            _with_spread(c.a),
            _with_spread(c.b),
            "-" if c.ratio is None else f"{c.ratio:.2f}",
            c.verdict,
        )
        for c in compared
    ]
    lines = [f"- differs: {warning}" for warning in warnings]
    return "\n".join([*lines, "", markdown_table(head, rows)]) + "\n"


def _with_spread(interval: Interval) -> str:
    return f"{interval.value:.4g} [{interval.low:.4g}..{interval.high:.4g}]"
