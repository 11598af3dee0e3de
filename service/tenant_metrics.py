"""What tenants use, read whenever the metrics are asked for.

The label ``tenant`` has the names in the file of keys and no others, so the number of series is
the operator's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.auth.accounts import Account
from service.auth.authority import Authority

_GAUGES: tuple[tuple[str, str, Callable[[Account], int]], ...] = (
    ("tts_tenant_contexts_active", "A tenant's open contexts.", lambda a: a.contexts),
    ("tts_tenant_connections_active", "A tenant's open WebSockets.", lambda a: a.connections),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Account], int]], ...] = (
    ("tts_tenant_characters", "A tenant's text taken.", lambda a: a.characters),
    ("tts_tenant_refusals", "Refusals by a tenant's limits.", lambda a: a.refusals),
)


class TenantCollector(Collector):
    """Exports an Authority's accounts, and how its file of keys does."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def describe(self) -> list[Metric]:
        """Nothing is read when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        yield GaugeMetricFamily(
            "tts_api_keys", "API keys that are valid now.", value=self._authority.key_count
        )
        yield GaugeMetricFamily(
            "tts_api_keys_current",
            "1 unless the file of keys could not be used when it was read last.",
            value=float(self._authority.is_current),
        )
        tenants = list(self._authority.accounts.tenants())
        for name, text, read in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["tenant"])
            for tenant, account in tenants:
                gauge.add_metric([tenant], read(account))
            yield gauge
        for name, text, read in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["tenant"])
            for tenant, account in tenants:
                counter.add_metric([tenant], read(account))
            yield counter
