"""Dashboard and rules against the service's metrics, and with promtool if it is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from service.errors import STATUS
from streaming.errors import ErrorCode
from talkwire_client import Client

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
RULE_TESTS = sorted(path.name for path in FOLDER.glob("rules*_test.yml"))


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """The module deploy/monitoring/check.py, which is not part of a package."""
    sys.path.insert(0, str(FOLDER))
    try:
        import check
    finally:
        sys.path.remove(str(FOLDER))
    return check


@pytest.fixture(scope="module")
def rehearse(check: ModuleType) -> ModuleType:
    """The module deploy/monitoring/rehearse.py, likewise."""
    sys.path.insert(0, str(FOLDER))
    try:
        import rehearse
    finally:
        sys.path.remove(str(FOLDER))
    return rehearse


def test_queries_have_no_faults(check: ModuleType) -> None:
    assert check.all_faults() == []


def test_dashboard_queries_every_metric(check: ModuleType) -> None:
    asked = " ".join(query for _, query in check.dashboard_queries())
    families = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for name in check.exported()
        if name.startswith("tts_")
    }
    assert {name for name in families if name not in asked} == set()


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("sum(rate(tts_context_total[5m]))", "no metric tts_context_total"),
        ("rate(tts_underrun_seconds[5m])", "no metric tts_underrun_seconds"),
        ('tts_contexts_total{outcome="failed"}', "never has outcome='failed'"),
        ('tts_contexts_total{outcome=~"error|failed"}', "never has outcome='failed'"),
        ('tts_errors_total{protocol="native"}', "has no label protocol"),
        ('tts_queue_seconds_bucket{le="0.3"}', "never has le='0.3'"),
        ("tts:nothing:ratio > 1", "no metric tts:nothing:ratio"),
    ],
)
def test_faults_name_misspelled_part_of_query(check: ModuleType, query: str, fault: str) -> None:
    found = list(check.faults(query, check.exported(), {"tts:gap_free:ratio_rate10m"}))
    assert len(found) == 1
    assert fault in found[0]


def test_faults_are_empty_for_query_with_known_names(check: ModuleType) -> None:
    query = (
        'tts:gap_free:ratio_rate10m{namespace="a"} < 1 and sum by (code) '
        '(tts_errors_total{code=~"internal|draining",pod=~"$pod"})'
    )
    known = check.exported()
    assert list(check.faults(query, known, {"tts:gap_free:ratio_rate10m"})) == []


def test_alerts_watch_every_error_that_is_the_services_own(check: ModuleType) -> None:
    own = {code for code, status in STATUS.items() if status >= 500}
    own -= {ErrorCode.NOT_READY, ErrorCode.DRAINING, ErrorCode.SLOW_CONSUMER}
    recorded = {rule["record"]: rule["expr"] for rule in check.rules() if "record" in rule}
    asked = [rule["expr"] for rule in check.rules() if "alert" in rule]
    asked += [expr for name, expr in recorded.items() if any(name in query for query in asked)]
    matchers = re.findall(r'tts_errors_total\{code=~?"([^"]+)"', " ".join(asked))
    watched = {code for matcher in matchers for code in matcher.split("|")}
    assert {code.value for code in own} - watched == set()


def test_alerts_all_have_rule_tests(check: ModuleType) -> None:
    tests = "".join((FOLDER / name).read_text() for name in RULE_TESTS)
    alerts = [rule["alert"] for rule in check.rules() if "alert" in rule]
    assert alerts
    for alert in alerts:
        cases = tests.split(f"alertname: {alert}\n")[1:]
        assert any("summary:" in case.split("alertname:")[0] for case in cases), alert


def test_dashboard_equals_output_of_make_dashboard() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "make_dashboard.py", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_dashboard_has_inputs_unique_ids_and_no_overlap() -> None:
    board = json.loads((FOLDER / "dashboard.json").read_text())
    assert [source["name"] for source in board["__inputs"]] == ["DS_PROMETHEUS"]
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names == ["DS_PROMETHEUS", "namespace", "model", "pod"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
@pytest.mark.parametrize(
    "command", [["check", "rules", "rules.yml"], ["test", "rules", *RULE_TESTS]]
)
def test_promtool_accepts_rules_and_rule_tests(command: list[str]) -> None:
    done = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Slow:
    """A Prometheus that answers, and notes for which moments it was asked."""

    def __init__(self) -> None:
        self.moments: list[float | None] = []

    async def values(self, query: str, at: float | None = None) -> list[float]:
        self.moments.append(at)
        return [1.0]

    async def bad_rules(self) -> list[tuple[str, str]]:
        return []


async def test_rehearsal_asks_for_the_moment_at_which_its_load_ended(
    check: ModuleType, rehearse: ModuleType
) -> None:
    """However long the questions take, their ranges then still hold the load."""
    server: Any = Slow()
    assert await rehearse.complaints(server, has_tenants=True) == []
    assert len(server.moments) > len(check.dashboard_queries())
    assert set(server.moments) != {None}
    assert len(set(server.moments)) == 1


async def test_rehearsal_makes_an_error_that_the_service_counts(
    rehearse: ModuleType, tmp_path: Path
) -> None:
    async with rehearse.gateway(tmp_path) as (url, key), httpx.AsyncClient() as http:
        async with Client(url.replace("http", "ws") + "/v1/tts/stream", api_key=key) as client:
            await rehearse._err(client)
        metrics = (await http.get(f"{url}/metrics")).text
    counts = re.findall(r'^tts_errors_total\{code="(\w+)"\} (\S+)$', metrics, re.M)
    assert {code: float(count) for code, count in counts if float(count)} == {"unknown_voice": 1}


def test_rehearsal_without_prometheus_reports_requirement() -> None:
    command = [sys.executable, str(FOLDER / "rehearse.py")]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no prometheus here" in done.stderr


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus")
def test_rehearsal_tells_in_one_line_that_no_service_answers() -> None:
    command = [sys.executable, str(FOLDER / "rehearse.py"), "--url", "ws://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("no server answers at ws://127.0.0.1:1/")
    assert "Traceback" not in done.stderr
