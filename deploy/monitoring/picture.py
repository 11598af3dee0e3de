"""Draws some of the dashboard's panels from Prometheus' answers, where there is no Grafana."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from panels import ROWS, Panel
from prometheus_api import Prometheus

_SHOWN = (
    "Time to first audio",
    "Gap-free share",
    "Errors by code",
    "Contexts",
    "Audio",
    "Cancel to answer",
    "Real-time factor",
    "Codec: decoding",
    "Event loop's lag, p99",
)
_COLUMNS = 3


async def draw(
    server: Prometheus, filled: Callable[[str], str], seconds: float, target: Path
) -> None:
    """Write a PNG of the last ``seconds``."""
    panels = {panel.title: panel for row in ROWS for panel in row.panels}
    figure = Figure(figsize=(15, 9), layout="constrained")
    for number, title in enumerate(_SHOWN):
        panel = panels[title]
        axes = figure.add_subplot(len(_SHOWN) // _COLUMNS, _COLUMNS, number + 1)
        for query, legend in panel.queries:
            for labels, points in await server.curves(filled(query), seconds):
                axes.plot(*zip(*points, strict=True), label=_named(legend, labels))
        axes.set_title(title, fontsize=10)
        axes.set_ylabel(_unit(panel), fontsize=8)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.supxlabel("seconds, up to the last scrape at 0", fontsize=9)
    FigureCanvasAgg(figure).print_png(target)
    print(f"drawn: {target}")


def _named(legend: str, labels: dict[str, str]) -> str:
    for label, value in labels.items():
        legend = legend.replace("{{" + label + "}}", value)
    return legend


def _unit(panel: Panel) -> str:
    return {"s": "seconds", "percentunit": "share", "reqps": "per second"}.get(panel.unit, "")
