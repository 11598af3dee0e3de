"""The manifests against the service: settings, ports, routes, probes, metrics, monitoring."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

import pytest
import yaml
from opentelemetry.sdk.trace import TracerProvider
from starlette.routing import BaseRoute

from service.access.rules import Access, Rule, rule_of
from service.admin import create_admin_app
from service.app import create_app
from service.auth.keys import Scope
from service.build import build_runtime
from service.runtime import Runtime
from service.settings import Settings
from tests.deploy.container import ROOT
from tests.deploy.manifests import (
    Objects,
    configured,
    pod,
)
from tests.deploy.render import Object


def rules_of(routes: Sequence[BaseRoute]) -> dict[tuple[str, str], Rule | None]:
    """The access rules of routes by method (``WS`` for WebSockets) and path."""
    return {
        (method, str(getattr(route, "path", route))): rule_of(route)
        for route in routes
        for method in sorted(getattr(route, "methods", None) or {"WS"})
    }


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return build_runtime(Settings(), lambda worker, phase, seconds: None)


def test_config_map_holds_valid_settings(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configured(objects, monkeypatch)
    assert settings.host == "0.0.0.0"
    assert settings.log_format == "json"


def label(who: list[Object]) -> str:
    """The label that grants a namespace this access."""
    (selector,) = who
    ((name, value),) = selector["namespaceSelector"]["matchLabels"].items()
    assert value == "true"
    return str(name)


def test_manifest_ports_equal_settings(
    everything: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = configured(everything, monkeypatch)
    (container,) = pod(everything)["containers"]
    port, admin = container["ports"]
    assert (port["containerPort"], admin["containerPort"]) == (settings.port, settings.admin_port)
    assert settings.admin_host == settings.host
    (served,) = everything["Service", "talkwire"]["spec"]["ports"]
    assert served["targetPort"] == port["name"], "no Service leads to the admin port"
    let_in = {
        label(rule["from"]): rule["ports"]
        for rule in everything["NetworkPolicy", "talkwire"]["spec"]["ingress"]
    }
    assert {who: [p["port"] for p in ports] for who, ports in let_in.items()} == {
        "talkwire-access-gateway": [port["name"]],
        "talkwire-access-metrics": [admin["name"]],
    }
    (endpoint,) = everything["PodMonitor", "talkwire"]["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == admin["name"]
    (routed,) = everything["HTTPRoute", "talkwire"]["spec"]["rules"]
    (backend,) = routed["backendRefs"]
    assert (backend["name"], backend["port"]) == ("talkwire", served["port"])


def test_manifest_references_resolve(everything: Objects) -> None:
    labels = everything["Deployment", "talkwire"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor"):
        wanted = everything[kind, "talkwire"]["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= labels.items(), kind
    assert everything["Service", "talkwire"]["spec"]["selector"].items() <= labels.items()
    policy = everything["NetworkPolicy", "talkwire"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    target = everything["ScaledObject", "talkwire"]["spec"]["scaleTargetRef"]["name"]
    assert ("Deployment", target) in everything
    assert ("ServiceAccount", pod(everything)["serviceAccountName"]) in everything
    assert {o["metadata"].get("namespace", "talkwire") for o in everything.values()} == {"talkwire"}


def test_probes_and_scrape_use_existing_paths(everything: Objects, runtime: Runtime) -> None:
    schema = create_app(runtime).openapi()["paths"]
    (container,) = pod(everything)["containers"]
    probes = {name: container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {
        "startup": "/health/startup",
        "readiness": "/health/ready",
        "liveness": "/health/live",
    }
    (endpoint,) = everything["PodMonitor", "talkwire"]["spec"]["podMetricsEndpoints"]
    assert set(paths.values()) <= set(schema)
    admin = rules_of(create_admin_app(runtime, lambda: None).routes)
    assert ("GET", endpoint["path"]) in admin
    for path in paths.values():
        rule = admin["GET", path]
        assert rule is not None
        assert rule.access is Access.PROBE


def test_public_route_carries_only_client_paths(everything: Objects, runtime: Runtime) -> None:
    (rule,) = everything["HTTPRoute", "talkwire"]["spec"]["rules"]
    assert {match["path"]["type"] for match in rule["matches"]} == {"PathPrefix"}
    prefixes = [match["path"]["value"] for match in rule["matches"]]

    def is_carried(path: str) -> bool:  # PathPrefix of the Gateway API matches whole elements
        return any(path == one or path.startswith(one + "/") for one in prefixes)

    public = rules_of(create_app(runtime).routes)
    admin = rules_of(create_admin_app(runtime, lambda: None).routes)
    speech = {path for (_, path), rule in public.items() if rule and isinstance(rule.access, Scope)}
    others = {path for _, path in {**public, **admin}} - speech
    assert {"/v1/tts/stream", "/tts/websocket", "/voices"} <= speech
    assert {"/", "/metrics", "/health/ready", "/openapi.json", "/admin/drain"} <= others
    assert {path for path in speech if not is_carried(path)} == set()
    assert {path for path in others if is_carried(path)} == set()
    for prefix in prefixes:
        assert any(path.startswith(prefix) for path in speech), f"{prefix} carries nothing"


def test_scaling_query_uses_existing_metrics(everything: Objects, runtime: Runtime) -> None:
    (trigger,) = everything["ScaledObject", "talkwire"]["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    asked = set(re.findall(r"\btts_\w+", query))
    assert asked == {"tts_contexts_active", "tts_capacity_contexts", "tts_ready"}
    there = set(re.findall(r"^(tts_\w+)", runtime.metrics.render().decode(), re.M))
    assert asked <= there
    assert "replicas" not in everything["Deployment", "talkwire"]["spec"]
    groups = everything["PrometheusRule", "talkwire"]["spec"]["groups"]
    (told,) = [
        rule["expr"]
        for group in groups
        for rule in group["rules"]
        if rule.get("record") == "tts:saturation:ratio"
    ]
    # The expression that the alert uses, for one namespace: pods that take no work add no capacity.
    assert query.replace('{namespace="talkwire"}', "", 1).split() == told.split()
    assert trigger["metadata"]["ignoreNullValues"] == "false", "without a ratio the number stays"


def test_traces_endpoint_is_allowed_by_network_policy(
    everything: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert configured(everything, monkeypatch).tracing
    variables = everything["ConfigMap", "talkwire"]["data"]
    address = urlsplit(variables["OTEL_EXPORTER_OTLP_ENDPOINT"])
    assert address.scheme == "http"
    policy = everything["NetworkPolicy", "talkwire-traces"]["spec"]
    assert policy["podSelector"] == everything["NetworkPolicy", "talkwire"]["spec"]["podSelector"]
    collectors, names = policy["egress"]
    assert label(collectors["to"]) == "talkwire-access-traces"
    assert [port["port"] for port in collectors["ports"]] == [address.port]
    assert {port["port"] for port in names["ports"]} == {53}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    share = variables["OTEL_TRACES_SAMPLER_ARG"]
    # OpenTelemetry only warns of an unknown sampler and then samples every trace.
    assert f"TraceIdRatioBased{{{share}}}" in TracerProvider().sampler.get_description()


def test_dashboard_and_rules_equal_their_sources(everything: Objects) -> None:
    monitoring = ROOT / "deploy" / "monitoring"
    found = everything["ConfigMap", "talkwire-dashboard"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"] == {"dashboard.json": (monitoring / "dashboard.json").read_text()}
    # kubectl apply keeps a copy in an annotation, whose size is limited
    assert len(found["data"]["dashboard.json"]) < 200_000
    rules = yaml.safe_load((monitoring / "rules.yml").read_text())
    assert everything["PrometheusRule", "talkwire"]["spec"] == rules
    done = [sys.executable, str(monitoring / "make_rule_object.py"), "--check"]
    assert subprocess.run(done, check=False, capture_output=True).returncode == 0
