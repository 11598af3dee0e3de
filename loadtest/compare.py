"""Two results side by side: ratios, and a verdict only where the spread allows one.

The intervals know the spread within each run. What differs between two runs of the very same
thing (the machine's other work, say) they do not know: repeat a run before believing a small
difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.report import markdown_table
from loadtest.figures import Figures
from loadtest.output import Report
from loadtest.stats import Interval, Quantiles

_ROUNDING = 1e-6

#: A percentile's interval is one only with so many values beyond it.
_BEYOND = 4


def _mark(name: str) -> Callable[[Quantiles], Interval | None]:
    """A percentile, if there are values enough for its interval."""
    share = float(name[1:]) / 100

    def get(values: Quantiles) -> Interval | None:
        found: Interval | None = getattr(values, name)
        return found if values.n * (1 - share) >= _BEYOND else None

    return get


_P50, _P95, _P99 = map(_mark, ("p50", "p95", "p99"))

#: Name, whether more is better, and where it stands.
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
    """B against A in one figure of one run. ``verdict``: better, worse, or no difference shown."""

    run: str
    figure: str
    a: Interval
    b: Interval
    verdict: str

    @property
    def ratio(self) -> float | None:
        """B over A; None over 0."""
        return self.b.value / self.a.value if self.a.value else None


def judge(a: Interval, b: Interval, more_is_better: bool) -> str:
    """A verdict only if the intervals do not meet, nor miss each other by a rounding error."""
    hair = _ROUNDING * max(abs(a.value), abs(b.value))
    if a.low <= b.high + hair and b.low <= a.high + hair:
        return "no difference shown"
    return "better" if (b.value > a.value) is more_is_better else "worse"


def compare(a: Report, b: Report) -> list[Comparison]:
    """Every figure that both have, of the runs with the same label (or of the only two)."""
    theirs = {row.label: row for row in b.rows}
    if len(a.rows) == len(b.rows) == 1:
        theirs = {a.rows[0].label: b.rows[0]}
    made = []
    for row in a.rows:
        other = theirs.get(row.label)
        for name, more_is_better, get in _COMPARED if other else ():
            mine, its = get(row.figures), get(other.figures) if other else None
            if mine is not None and its is not None:
                verdict = judge(mine, its, more_is_better)
                made.append(Comparison(row.label, name, mine, its, verdict))
    return made


def caveats(a: Report, b: Report) -> list[str]:
    """Why the two may not be comparable at all."""
    said = [
        f"{name}: {a.machine.get(name)} against {b.machine.get(name)}"
        for name in sorted(a.machine.keys() | b.machine.keys())
        if a.machine.get(name) != b.machine.get(name)
    ]
    plans = {row.label: row.plan for row in b.rows}
    for row in a.rows:
        other = plans.get(row.label)
        if other is not None and (row.plan.workload, row.plan.seed) != (other.workload, other.seed):
            said.append(f"{row.label}: another workload or seed")
        if other is not None and row.plan.protocol != other.protocol:
            said.append(f"{row.label}: {row.plan.protocol} against {other.protocol}")
    busy = [max(row.figures.load_average) for row in (*a.rows, *b.rows)]
    if busy and max(busy) > 2 * max(0.5, min(busy)):
        said.append(f"the machine's load average differed: {min(busy):.1f} to {max(busy):.1f}")
    return said


def as_markdown(compared: Sequence[Comparison], warnings: Sequence[str]) -> str:
    """Caveats first, then the table."""
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
