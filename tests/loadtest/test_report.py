from __future__ import annotations

import re

import msgspec
import pytest

from loadtest.compare import as_markdown, caveats, compare, judge, pairs
from loadtest.figures import figures
from loadtest.plan import Plan
from loadtest.plots import goodput, ttfa_against_load, ttfa_cdf, typical, waterfall
from loadtest.records import Outcome, TurnRecord
from loadtest.report import Report, Row, make_report, markdown, read_json, write_json
from loadtest.stats import Interval

PLAN = Plan(url="ws://127.0.0.1:1/", duration_s=100, warmup_s=0, rate_per_s=1)


def records(slower_ms: float = 0, count: int = 200) -> list[TurnRecord]:
    made = []
    for index in range(count):
        at = index / 4
        heard = at + 0.2 + (37 * index % 200) / 10_000 + slower_ms / 1000
        made.append(
            TurnRecord(index, 0, 9, at, at, at, "complete", opened_s=at, silence=0,
                       arrivals=[(heard, 24_000), (heard + 0.5, 12_000)], ended_s=heard + 1)
        )  # fmt: skip
    return made


def report(slower_ms: float = 0, label: str = "50 %", load: float | None = 0.5) -> Report:
    made = figures(PLAN, records(slower_ms), slo_ttfa_ms=500)
    return make_report("test", [Row(label, PLAN, made, load)], 16)


def test_read_json_round_trips_and_refuses_other_files(tmp_path) -> None:
    path = tmp_path / "report.json"
    write_json(path, report())
    back = read_json(path)
    assert back.machine["cores"]
    before, after = (each.rows[0].figures.ttfa.p50 for each in (report(), back))
    assert before is not None
    assert after is not None
    assert after.value == pytest.approx(before.value)
    path.write_bytes(path.read_bytes().replace(b"talkwire.loadtest/1", b"talkwire.loadtest/0"))
    with pytest.raises(ValueError, match="of schema"):
        read_json(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="no load test's result"):
        read_json(path)


def test_markdown_rows_have_cell_for_every_column() -> None:
    for table in markdown(report()).split("\n\n")[1:3]:
        widths = {line.count("|") for line in table.splitlines()}
        assert len(widths) == 1
    assert "| 210 / " in markdown(report())


def test_judge_needs_disjoint_intervals() -> None:
    low, high, wide = Interval(1, 0.9, 1.1), Interval(2, 1.8, 2.2), Interval(1.5, 1.0, 2.0)
    assert judge(low, high, more_is_better=False) == "worse"
    assert judge(low, high, more_is_better=True) == "better"
    assert judge(high, low, more_is_better=False) == "better"
    assert judge(low, wide, more_is_better=False) == "no difference shown"


def test_compare_calls_slower_run_worse() -> None:
    by_name = {c.figure: c for c in compare(report(), report(slower_ms=100))}
    assert by_name["TTFA p50"].verdict == "worse"
    assert by_name["TTFA p50"].ratio == pytest.approx(310 / 210, abs=0.02)
    assert by_name["gap-free, no prebuffer"].verdict == "no difference shown"
    assert {c.verdict for c in compare(report(), report(slower_ms=1))} == {"no difference shown"}
    assert "worse" in as_markdown(list(by_name.values()), ["cpu: a against b"])


def test_pairs_need_equal_labels_unless_runs_are_single() -> None:
    assert compare(report(label="50 %"), report(label="other"))
    both = msgspec.structs.replace(report(), rows=[*report().rows, *report(label="80 %").rows])
    assert {c.run for c in compare(both, report(label="80 %"))} == {"80 %"}


def test_caveats_list_machine_seed_and_load_differences() -> None:
    other = report()
    other.machine["cpu"] = "another"
    row = other.rows[0]
    busy = msgspec.structs.replace(row.figures, load_average=(9.0, 9.0))
    plan = msgspec.structs.replace(PLAN, seed=2)
    other = msgspec.structs.replace(
        other, rows=[msgspec.structs.replace(row, plan=plan, figures=busy)]
    )
    said = "\n".join(caveats(report(), other))
    assert "cpu: " in said
    assert "another workload or seed" in said
    assert "load average differed" in said
    assert caveats(report(), report()) == []


def test_caveats_list_plan_differences_except_url() -> None:
    row = report().rows[0]
    work = msgspec.structs.replace(PLAN.workload, barge_in=0.0)
    plan = msgspec.structs.replace(
        PLAN, url="http://b/", rate_per_s=50.0, protocol="openai", max_lead_ms=200, workload=work
    )
    row = msgspec.structs.replace(row, label="50/s", plan=plan, load=None)
    other = msgspec.structs.replace(report(), rows=[row], server="another", capacity=64)
    said = "\n".join(caveats(report(), other))
    for part in (
        "what was measured: test against another",
        "what is 100 %: 16 against 64 streams",
        "50 %: the run of B is 50/s",
        "50 %: another workload or seed",
        "barge_in 0.25 against 0",
        "rate_per_s 1 against 50",
        "max_lead_ms 2000 against 200",
        "protocol native against openai",
    ):
        assert part in said
    assert "url" not in said


def with_loads(*loads: float) -> Report:
    row = report().rows[0]
    rows = [msgspec.structs.replace(row, label="99 %", load=load) for load in loads]
    return msgspec.structs.replace(report(), rows=rows)


def test_pairs_match_by_load_then_in_order() -> None:
    a, b = with_loads(0.99, 0.994, 0.99), with_loads(0.99, 0.99, 0.986)
    matched = [(x.load, a.rows.index(x), y.load) for x, y in pairs(a, b)]
    assert [(mine, its) for mine, _, its in matched] == [(0.99, 0.99), (0.99, 0.99)]
    assert all(y is b.rows[n] for n, (_, y) in enumerate(pairs(a, b)))
    said = caveats(a, b)
    assert {"only in A: 99 %", "only in B: 99 %"} <= set(said)


def test_caveats_ignore_small_rate_difference_of_sweeps() -> None:
    row = report().rows[0]
    near, far = (msgspec.structs.replace(PLAN, rate_per_s=rate) for rate in (1.03, 1.3))
    for plan, differs in ((near, False), (far, True)):
        other = msgspec.structs.replace(report(), rows=[msgspec.structs.replace(row, plan=plan)])
        assert any("rate_per_s" in each for each in caveats(report(), other)) is differs


def test_markdown_notes_errors_and_end_of_sessions() -> None:
    plan = msgspec.structs.replace(PLAN, warmup_s=1.0, max_sessions=5)
    ends: tuple[tuple[float, Outcome, str | None], ...] = (
        (0.5, "failed", "http_401"),
        (2.0, "refused", "overloaded"),
        (3.0, "unfinished", None),
    )
    bad = [
        TurnRecord(0, 0, 9, at, at, at, outcome, code=code, ended_s=at)
        for at, outcome, code in ends
    ]
    made = figures(plan, bad, slo_ttfa_ms=500)
    text = markdown(make_report("test", [Row("50 %", plan, made, 0.5)], 16))
    assert "50 %: what went wrong: `overloaded` 1" in text
    assert "50 %: what went wrong in the warm-up: `http_401` 1" in text
    assert re.search(r"no session came after \d+ of 100 s: 5 is the most", text)
    assert "| 0.0 of 8.0 |" in text
    head, _, line = text.split("\n\n")[2].splitlines()
    assert dict(zip(head.split(" | "), line.split(" | "), strict=True))["unfinished"] == "1"
    assert "what went wrong" not in markdown(report())


def test_plots_are_small_png_files(tmp_path) -> None:
    rows = [*report().rows, *report(50, "100 %", 1.0).rows]
    shown = typical(records())
    assert shown is not None
    paths = [
        ttfa_against_load(rows, tmp_path / "load.png"),
        goodput(rows, tmp_path / "goodput.png"),
        ttfa_cdf([("a", records()), ("none", [])], tmp_path / "cdf.png"),
        waterfall(shown, tmp_path / "waterfall.png"),
    ]
    for path in paths:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < 150_000
    assert typical([]) is None


@pytest.mark.filterwarnings("error")
def test_plot_of_runs_that_heard_nothing_has_no_legend(tmp_path) -> None:
    assert ttfa_cdf([("a", [])], tmp_path / "cdf.png").read_bytes().startswith(b"\x89PNG")


def test_waterfall_playback_waits_for_late_chunk(tmp_path, monkeypatch) -> None:
    """After a gap, playback continues when the next chunk arrives, as at a listener."""
    drawn = {}
    gap = TurnRecord(0, 0, 9, 10, 10, 10, "complete", arrivals=[(11, 24_000), (14, 24_000)])
    monkeypatch.setattr("loadtest.plots._save", lambda axes, path: drawn.update(axes=axes) or path)
    waterfall(gap, tmp_path / "x.png")
    played = next(line for line in drawn["axes"].get_lines() if line.get_label() == "played")
    assert list(played.get_xdata()) == [1, 2, 4, 5]
    assert list(played.get_ydata()) == [0, 1, 1, 2]
