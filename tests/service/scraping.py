"""Reads the samples of ``/metrics``."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.service.live import Gateway

#: A series: a sample's name and its labels.
Series = tuple[str, frozenset[tuple[str, str]]]


async def scrape(server: Gateway) -> dict[Series, float]:
    async with httpx.AsyncClient(timeout=60) as http:
        text = (await http.get(f"{server.http}/metrics")).text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(scraped: dict[Series, float], name: str, **labels: str) -> float:
    return scraped[name, frozenset(labels.items())]
