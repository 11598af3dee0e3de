"""Writes dashboard.json from panels.py, for Grafana 10 or newer.

python deploy/monitoring/make_dashboard.py          writes it
python deploy/monitoring/make_dashboard.py --check  says whether it is up to date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from panels import ROWS, Panel

TARGET = Path(__file__).with_name("dashboard.json")
_WIDTH = 24
_STAT_HEIGHT = 4
_HEIGHT = 8
#: Filled in at an import by hand; a variable of that name does it where files are provided.
_SOURCE = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}


def dashboard() -> dict[str, Any]:
    """The whole dashboard, as Grafana exports one to be shared."""
    return {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS",
                "label": "Prometheus",
                "description": "Where Talkwire's metrics are",
                "type": "datasource",
                "pluginId": "prometheus",
                "pluginName": "Prometheus",
            }
        ],
        "__requires": _requires(),
        "uid": "talkwire",
        "title": "Talkwire",
        "description": "By deploy/monitoring/make_dashboard.py; see docs/reference/metrics.md.",
        "tags": ["talkwire", "tts"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "links": [],
        "panels": _panels(),
    }


def _requires() -> list[dict[str, str]]:
    kinds = sorted({panel.kind for row in ROWS for panel in row.panels})
    return [
        {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.0.0"},
        {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
        *({"type": "panel", "id": kind, "name": kind, "version": ""} for kind in kinds),
    ]


def _variables() -> list[dict[str, Any]]:
    source = {
        "name": "DS_PROMETHEUS",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
    }
    return [
        source,
        _variable("namespace", "tts_build_info"),
        _variable("model", 'tts_build_info{namespace=~"$namespace"}'),
        _variable("pod", 'tts_build_info{namespace=~"$namespace",model=~"$model"}'),
    ]


def _variable(label: str, series: str) -> dict[str, Any]:
    """Its values are a label's; "all" of ``pod`` is then all pods of the chosen models."""
    query = f"label_values({series}, {label})"
    return {
        "name": label,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels() -> list[dict[str, Any]]:
    """All panels, laid out from left to right and top to bottom."""
    panels: list[dict[str, Any]] = []
    x = 0
    y = 0
    height = 0

    def place(width: int, tall: int) -> dict[str, int]:
        nonlocal x, y, height
        if x + width > _WIDTH or tall != height:
            x, y, height = 0, y + height, tall
        at = {"x": x, "y": y, "w": width, "h": tall}
        x += width
        return at

    for row in ROWS:
        head = {"type": "row", "title": row.title, "collapsed": False, "panels": []}
        panels.append({"id": len(panels) + 1, "gridPos": place(_WIDTH, 1), **head})
        for panel in row.panels:
            tall = _STAT_HEIGHT if panel.kind == "stat" else _HEIGHT
            panels.append(
                {"id": len(panels) + 1, "gridPos": place(panel.width, tall), **_body(panel)}
            )
    return panels


def _body(panel: Panel) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "targets": [
            _target(panel, number, query, legend)
            for number, (query, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }
    if panel.kind == "table":
        hidden = dict.fromkeys(("Time", "Value", "__name__"), True)
        body["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return body


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "yAxis": {"unit": "s"},
        "tooltip": {"mode": "single", "yHistogram": True},
    },
    "table": {"showHeader": True},
}


def _target(panel: Panel, number: int, query: str, legend: str) -> dict[str, Any]:
    target = {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query}
    if panel.kind == "heatmap":
        return {**target, "legendFormat": legend, "format": "heatmap"}
    if panel.kind == "table":
        return {**target, "format": "table", "instant": True}
    return {**target, "legendFormat": legend}


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "timeseries":
        defaults |= {"min": 0, "custom": {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}}
    if panel.red is not None:
        below, above = ("red", "green") if panel.low_is_bad else ("green", "red")
        steps = [{"color": below, "value": None}, {"color": above, "value": panel.red}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return defaults


def rendered() -> str:
    """What dashboard.json should hold."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the file, or check it."""
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(rendered())
    elif not TARGET.exists() or TARGET.read_text() != rendered():
        print("dashboard.json is not what panels.py says; run make_dashboard.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
