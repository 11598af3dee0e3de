"""The little of Prometheus' HTTP API that the rehearsal needs."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import httpx

_PATIENCE_S = 20.0


class PrometheusError(Exception):
    """Prometheus did not answer, or refused the query."""


class Prometheus:
    """One server, by its address."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def until_ready(self) -> None:
        """Return once it answers. Raises PrometheusError."""
        until = time.monotonic() + _PATIENCE_S
        async with httpx.AsyncClient() as http:
            while time.monotonic() < until:
                try:
                    if (await http.get(f"{self._url}/-/ready")).is_success:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.1)
        raise PrometheusError("prometheus did not become ready")

    async def _get(self, path: str, **parameters: str) -> Any:
        async with httpx.AsyncClient() as http:
            try:
                response = await http.get(f"{self._url}/api/v1/{path}", params=parameters)
            except httpx.TransportError as error:
                raise PrometheusError(f"prometheus cannot be reached ({error!r})") from error
        body = response.json()
        if body["status"] != "success" or body.get("warnings"):
            raise PrometheusError(f"{body.get('error') or body.get('warnings')}")
        return body["data"]

    async def values(self, query: str, at: float) -> list[float]:
        """The series' values ``at`` that time (seconds since 1970), without NaN. Raises
        PrometheusError.
        """
        data = await self._get("query", query=query, time=str(at))
        values = [float(series["value"][1]) for series in data["result"]]
        return [value for value in values if not math.isnan(value)]

    async def curves(
        self, query: str, seconds: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Labels of each series, and its points (seconds ago, value) of the last ``seconds``."""
        now = time.time()
        span = {"start": str(now - seconds), "end": str(now), "step": "1"}
        data = await self._get("query_range", query=query, **span)
        return [
            (
                series["metric"],
                [(float(at) - now, float(value)) for at, value in series["values"]],
            )
            for series in data["result"]
        ]

    async def bad_rules(self) -> list[tuple[str, str]]:
        """Rules that could not be evaluated, or have not been: name and state."""
        groups = (await self._get("rules"))["groups"]
        return [
            (rule["name"], rule.get("lastError") or rule["health"])
            for group in groups
            for rule in group["rules"]
            if rule["health"] != "ok" and (group["interval"] <= 30 or rule["health"] != "unknown")
        ]
