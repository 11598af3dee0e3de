"""Checks dashboard and rules against the metrics that the service really has.

Run as a program it also lets promtool check and test the rules, where there is a promtool
(Debian's package ``prometheus``). The tests use the functions.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from prometheus_client import Metric

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.auth.keys import Scope, issue
from service.build import assemble
from service.engines.contracts import Engines
from service.runtime_metrics import RuntimeCollector
from service.settings import Settings
from streaming.spec import CodecSpec

HERE = Path(__file__).resolve().parent
RUNBOOKS = HERE.parents[1] / "docs" / "guides" / "alerts.md"
#: Labels that Prometheus or Kubernetes adds to every series.
_ADDED = {"namespace", "pod", "instance", "job"}

_SELECTOR = re.compile(r"(?<![\w:$])((?:tts|process)[_:][\w:]+)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')

#: A metric's name, and of each of its labels all values.
Exported = dict[str, dict[str, set[str]]]


def exported() -> Exported:
    """Every sample that a started service with one tenant exports."""
    found: Exported = {}
    for family in asyncio.run(_families()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


async def _families() -> list[Metric]:
    codec = FakeCodecEngine(CodecSpec(24_000, 960, (1024,) * 8, 0, 0), 0.0)
    with TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.json"
        issue(keys, "tenant", [Scope.SPEAK])
        runtime = assemble(Settings(api_keys_file=keys), Engines(FakeTalker(), codec))
        metrics = runtime.metrics
        metrics.certificate_expiry = lambda: 0.0
        metrics.registry.register(RuntimeCollector(runtime))
        await runtime.start()
        try:
            return list(metrics.registry.collect())
        finally:
            await runtime.stop()


def rules() -> list[dict[str, Any]]:
    """Every recording and alert rule."""
    groups = yaml.safe_load((HERE / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_queries() -> list[tuple[str, str]]:
    """Title and PromQL of everything that the dashboard asks."""
    board = json.loads((HERE / "dashboard.json").read_text())
    queries = [
        (panel["title"], target["expr"])
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            series = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])
            assert series is not None, variable
            queries.append((variable["name"], series[1]))
    return queries


def faults(query: str, known: Exported, recorded: set[str]) -> Iterator[str]:
    """What a query asks for and will never get."""
    for name, matchers in _SELECTOR.findall(query):
        if name in recorded:
            continue
        if name not in known:
            yield f"there is no metric {name}"
            continue
        for label, operator, text in _MATCHER.findall(matchers):
            if "$" in text or label in _ADDED:
                continue
            values = known[name].get(label)
            if values is None:
                yield f"{name} has no label {label}"
                continue
            wanted = text.split("|") if "~" in operator else [text]
            yield from (
                f"{name} never has {label}={value!r}" for value in wanted if value not in values
            )


def all_faults() -> list[str]:
    """Everything that is wrong with dashboard and rules, one line each."""
    known = exported()
    every = rules()
    recorded = {rule["record"] for rule in every if "record" in rule}
    queries = [(rule.get("record") or rule["alert"], rule["expr"]) for rule in every]
    found = [
        f"{where}: {fault}"
        for where, query in queries + dashboard_queries()
        for fault in faults(query, known, recorded)
    ]
    anchors = {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", RUNBOOKS.read_text(), re.MULTILINE)
    }
    for rule in every:
        if "alert" in rule:
            found += [f"{rule['alert']}: {fault}" for fault in _alert_faults(rule, anchors)]
    return found


def _alert_faults(rule: dict[str, Any], anchors: set[str]) -> Iterator[str]:
    notes = rule.get("annotations", {})
    for name in ("summary", "description", "runbook"):
        if not notes.get(name):
            yield f"it has no {name}"
    page, _, anchor = notes.get("runbook", "").partition("#")
    if page != "docs/guides/alerts.md" or anchor not in anchors:
        yield f"its runbook {notes.get('runbook')} is not there"
    if rule.get("labels", {}).get("severity") not in ("page", "ticket"):
        yield "its severity is neither page nor ticket"


def main() -> int:
    """Check everything; 0 if all is well."""
    wrong = all_faults()
    for line in wrong:
        print(line, file=sys.stderr)
    failed = bool(wrong)
    failed |= bool(
        subprocess.run([sys.executable, HERE / "make_dashboard.py", "--check"]).returncode
    )
    promtool = shutil.which("promtool")
    if promtool is None:
        print("promtool is not installed (Debian: prometheus): the rules were not tested")
        return int(failed)
    tests = sorted(path.name for path in HERE.glob("rules*_test.yml"))
    for command in (["check", "rules", "rules.yml"], ["test", "rules", *tests]):
        failed |= bool(subprocess.run([promtool, *command], cwd=HERE).returncode)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
