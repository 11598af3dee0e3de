"""What the manifests say of the service is true of the service."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from opentelemetry.sdk.trace import TracerProvider

from ipc.supervisor import Watch
from service import serve
from service.app import create_app
from service.auth.keys import Scope
from service.build import build_runtime
from service.exposure import exposure_fault
from service.gate import ADMIN, PUBLIC, Access
from service.runtime import Runtime
from service.settings import PREFIX, Settings, SettingsError, load_settings
from talker.engine import START_TIMEOUT_S
from tests.deploy.container import ROOT
from tests.deploy.render import Object, Unsupported, identity, merge, render

K8S = ROOT / "deploy" / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())
GPU_OVERLAYS = [name for name in OVERLAYS if name.startswith("gpu")]
Objects = dict[tuple[str, str], Object]


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> Objects:
    return _rendered(request.param)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """An overlay of an operator's own, with every component."""
    folder = _with_components(tmp_path_factory.mktemp("own"), "cpu-embedded")
    return {identity(o): o for o in render(folder)}


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return build_runtime(Settings(), lambda worker, phase, seconds: None)


def _rendered(overlay: str) -> Objects:
    return {identity(o): o for o in render(K8S / "overlays" / overlay)}


def _with_components(folder: Path, overlay: str) -> Path:
    folder = folder.resolve()
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(K8S / "overlays" / overlay, folder)],
        "components": [
            os.path.relpath(path, folder) for path in sorted((K8S / "components").iterdir())
        ],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


def _pod(objects: Objects) -> Object:
    return objects["Deployment", "talkwire"]["spec"]["template"]["spec"]


def _containers(objects: Objects) -> list[Object]:
    pod = _pod(objects)
    return [*pod["containers"], *pod.get("initContainers", [])]


def _configured(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    for name, value in objects["ConfigMap", "talkwire"]["data"].items():
        monkeypatch.setenv(name, value)
    return load_settings()


def _in_any_order(thing: Any) -> Any:
    """The API merges named lists as sets; only their members count."""
    if isinstance(thing, dict):
        return {key: _in_any_order(value) for key, value in thing.items()}
    if isinstance(thing, list):
        members = [_in_any_order(item) for item in thing]
        return sorted(members, key=lambda member: json.dumps(member, sort_keys=True))
    return thing


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl to compare with")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_our_rendering_is_kustomizes(overlay: str, tmp_path: Path) -> None:
    for folder in (K8S / "overlays" / overlay, _with_components(tmp_path, overlay)):
        done = subprocess.run(
            ["kubectl", "kustomize", folder], capture_output=True, text=True, check=True
        )
        theirs = {identity(o): _in_any_order(o) for o in yaml.safe_load_all(done.stdout)}
        assert {identity(o): _in_any_order(o) for o in render(folder)} == theirs


def test_the_renderer_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("namePrefix: a-\n")
    with pytest.raises(Unsupported, match="namePrefix"):
        render(tmp_path)


def test_patches_merge_as_the_api_does() -> None:
    old = {"env": [{"name": "a", "value": 1}, {"name": "b"}], "args": ["x"], "gone": 1}
    new = {"env": [{"name": "a", "value": 2}], "args": ["y"], "gone": None}
    assert merge(old, new) == {"env": [{"name": "a", "value": 2}, {"name": "b"}], "args": ["y"]}


def test_the_config_map_holds_settings_that_the_service_takes(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _configured(objects, monkeypatch)
    assert settings.host == "0.0.0.0"
    assert settings.log_format == "json"


def test_ports_agree(everything: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _configured(everything, monkeypatch)
    (container,) = _pod(everything)["containers"]
    port, admin = container["ports"]
    assert (port["containerPort"], admin["containerPort"]) == (settings.port, settings.admin_port)
    assert settings.admin_host == settings.host
    (served,) = everything["Service", "talkwire"]["spec"]["ports"]
    assert served["targetPort"] == port["name"], "no Service leads to the admin port"
    let_in = {
        rule["from"][0]["namespaceSelector"]["matchLabels"]["talkwire-access"]: rule["ports"]
        for rule in everything["NetworkPolicy", "talkwire"]["spec"]["ingress"]
    }
    assert {who: [p["port"] for p in ports] for who, ports in let_in.items()} == {
        "gateway": [port["name"]],
        "metrics": [admin["name"]],
    }
    (endpoint,) = everything["PodMonitor", "talkwire"]["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == admin["name"]
    (routed,) = everything["HTTPRoute", "talkwire"]["spec"]["rules"]
    (backend,) = routed["backendRefs"]
    assert (backend["name"], backend["port"]) == ("talkwire", served["port"])


def test_names_that_point_somewhere_point_at_something(everything: Objects) -> None:
    labels = everything["Deployment", "talkwire"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor"):
        wanted = everything[kind, "talkwire"]["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= labels.items(), kind
    assert everything["Service", "talkwire"]["spec"]["selector"].items() <= labels.items()
    policy = everything["NetworkPolicy", "talkwire"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    target = everything["ScaledObject", "talkwire"]["spec"]["scaleTargetRef"]["name"]
    assert ("Deployment", target) in everything
    assert ("ServiceAccount", _pod(everything)["serviceAccountName"]) in everything
    assert {o["metadata"].get("namespace", "talkwire") for o in everything.values()} == {"talkwire"}


def test_probes_and_the_scrape_ask_for_what_there_is(everything: Objects, runtime: Runtime) -> None:
    schema = create_app(runtime).openapi()["paths"]
    (container,) = _pod(everything)["containers"]
    probes = {name: container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {
        "startup": "/health/startup",
        "readiness": "/health/ready",
        "liveness": "/health/live",
    }
    (endpoint,) = everything["PodMonitor", "talkwire"]["spec"]["podMetricsEndpoints"]
    assert set(paths.values()) <= set(schema)
    assert ("GET", endpoint["path"]) in ADMIN
    assert all(ADMIN["GET", path].access is Access.PROBE for path in paths.values())


def test_the_public_route_carries_what_clients_use_and_nothing_else(everything: Objects) -> None:
    (rule,) = everything["HTTPRoute", "talkwire"]["spec"]["rules"]
    assert {match["path"]["type"] for match in rule["matches"]} == {"PathPrefix"}
    prefixes = [match["path"]["value"] for match in rule["matches"]]

    def is_carried(path: str) -> bool:  # by whole elements of the path, as the Gateway API has it
        return any(path == one or path.startswith(one + "/") for one in prefixes)

    speech = {path for (_, path), made in PUBLIC.items() if isinstance(made.access, Scope)}
    others = {path for _, path in {**PUBLIC, **ADMIN}} - speech
    assert {"/v1/tts/stream", "/tts/websocket", "/voices"} <= speech
    assert {"/", "/metrics", "/health/ready", "/openapi.json", "/admin/drain"} <= others
    assert {path for path in speech if not is_carried(path)} == set()
    assert {path for path in others if is_carried(path)} == set()
    for prefix in prefixes:
        assert any(path.startswith(prefix) for path in speech), f"{prefix} carries nothing"


def test_the_keys_lie_in_a_secret_that_the_pod_only_reads(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _configured(objects, monkeypatch)
    assert exposure_fault(settings) is None
    pod = _pod(objects)
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "keys"]
    assert mount["readOnly"] is True
    assert "subPath" not in mount, "a changed Secret would not be seen"
    assert settings.api_keys_file is not None
    assert str(settings.api_keys_file.parent) == mount["mountPath"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "keys"]
    assert volume["secret"]["defaultMode"] == 0o440
    assert ("Secret", volume["secret"]["secretName"]) not in objects, "keys are the operator's"
    monkeypatch.delenv(f"{PREFIX}API_KEYS_FILE")
    assert exposure_fault(load_settings()) is not None


def test_a_worker_that_starts_again_is_given_up_before_the_startup_probe_gives_up(
    objects: Objects,
) -> None:
    probe = _pod(objects)["containers"][0]["startupProbe"]
    patience_s = max(Watch().start_timeout_s, START_TIMEOUT_S)
    assert probe["periodSeconds"] * probe["failureThreshold"] > patience_s


def test_the_grace_period_outlasts_the_drain(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = _pod(objects)
    waits_s = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    closing_s = serve._GRACE_S + Watch().stop_timeout_s
    drain_s = _configured(objects, monkeypatch).drain_s
    assert pod["terminationGracePeriodSeconds"] > waits_s + drain_s + closing_s


def test_without_service_links_no_stranger_sets_anything(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _pod(objects)["enableServiceLinks"] is False
    _configured(objects, monkeypatch)
    monkeypatch.setenv("TALKWIRE_SERVICE_HOST", "10.0.0.1")  # what such a link would add
    with pytest.raises(SettingsError):
        load_settings()


def test_no_container_may_do_more_than_it_must(objects: Objects) -> None:
    pod = _pod(objects)
    user = pod["securityContext"]
    assert user["runAsNonRoot"] is True
    assert user["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in _containers(objects):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
    for volume in pod["volumes"]:
        if "emptyDir" in volume:
            assert volume["emptyDir"]["sizeLimit"], volume["name"]
    everyone = objects["NetworkPolicy", "default-deny"]["spec"]
    assert everyone == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert "egress" not in objects["NetworkPolicy", "talkwire"]["spec"]


def test_scaling_asks_for_metrics_that_there_are(everything: Objects, runtime: Runtime) -> None:
    (trigger,) = everything["ScaledObject", "talkwire"]["spec"]["triggers"]
    asked = set(re.findall(r"\btts_\w+", trigger["metadata"]["query"]))
    assert asked == {"tts_contexts_active", "tts_capacity_contexts"}
    there = set(re.findall(r"^(tts_\w+)", runtime.metrics.render().decode(), re.M))
    assert asked <= there
    assert "replicas" not in everything["Deployment", "talkwire"]["spec"]


def test_traces_go_where_the_policy_lets_them(
    everything: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _configured(everything, monkeypatch).tracing
    variables = everything["ConfigMap", "talkwire"]["data"]
    address = urlsplit(variables["OTEL_EXPORTER_OTLP_ENDPOINT"])
    assert address.scheme == "http"
    policy = everything["NetworkPolicy", "talkwire-traces"]["spec"]
    assert policy["podSelector"] == everything["NetworkPolicy", "talkwire"]["spec"]["podSelector"]
    collectors, names = policy["egress"]
    assert [port["port"] for port in collectors["ports"]] == [address.port]
    assert {port["port"] for port in names["ports"]} == {53}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    share = variables["OTEL_TRACES_SAMPLER_ARG"]
    # It only warns of a sampler that it does not know, and takes every trace.
    assert f"TraceIdRatioBased{{{share}}}" in TracerProvider().sampler.get_description()


def test_dashboard_and_rules_come_as_they_are(everything: Objects) -> None:
    monitoring = ROOT / "deploy" / "monitoring"
    found = everything["ConfigMap", "talkwire-dashboard"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"] == {"dashboard.json": (monitoring / "dashboard.json").read_text()}
    # kubectl apply keeps a copy in an annotation, which has an end
    assert len(found["data"]["dashboard.json"]) < 200_000
    rules = yaml.safe_load((monitoring / "rules.yml").read_text())
    assert everything["PrometheusRule", "talkwire"]["spec"] == rules
    done = [sys.executable, monitoring / "make_rule_object.py", "--check"]
    assert subprocess.run(done, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("overlay", GPU_OVERLAYS)
def test_gpus_are_as_many_as_the_talker_uses(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = _rendered(overlay)
    settings = _configured(objects, monkeypatch)
    gpus = settings.talker_tensor_parallel_size * settings.talker_data_parallel_size
    (container,) = _pod(objects)["containers"]
    for which in ("requests", "limits"):
        assert container["resources"][which]["nvidia.com/gpu"] == str(gpus)
    assert settings.codec_device == "cuda"
    rolling = objects["Deployment", "talkwire"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}
    assert {c["image"] for c in _containers(objects)} == {"talkwire:cuda"}


@pytest.mark.parametrize("overlay", GPU_OVERLAYS)
def test_weights_are_read_only_and_lie_where_the_settings_say(
    overlay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = _rendered(overlay)
    model = _configured(objects, monkeypatch).model
    (check,) = _pod(objects)["initContainers"]
    folder = {e["name"]: e["value"] for e in check["env"]}["FOLDER"]
    assert folder == model
    for container in _containers(objects):
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "weights"]
        assert mount["readOnly"] is True
        assert model.startswith(mount["mountPath"] + "/")
    (volume,) = [v for v in _pod(objects)["volumes"] if v["name"] == "weights"]
    claim = volume["persistentVolumeClaim"]
    assert claim["readOnly"] is True
    wanted = objects["PersistentVolumeClaim", claim["claimName"]]["spec"]
    assert wanted["accessModes"] == ["ReadOnlyMany"]


@pytest.mark.parametrize(
    ("harm", "passes"), [("none", True), ("altered", False), ("missing", False), ("no sums", False)]
)
def test_weights_that_are_not_the_expected_ones_keep_the_pod_from_starting(
    harm: str, passes: bool, tmp_path: Path
) -> None:
    (check,) = _pod(_rendered("gpu-single"))["initContainers"]
    weights, sums = tmp_path / "voice", tmp_path / "SHA256SUMS"
    weights.mkdir()
    shard = weights / "model.safetensors"
    shard.write_bytes(b"weights")
    sums.write_text(f"{hashlib.sha256(b'weights').hexdigest()}  model.safetensors\n")
    if harm == "altered":
        shard.write_bytes(b"weightz")
    elif harm == "missing":
        shard.unlink()
    elif harm == "no sums":
        sums.write_text("")
    env = {**os.environ, "FOLDER": str(weights), "SUMS": str(sums)}
    done = subprocess.run(check["command"], env=env, capture_output=True, check=False)
    assert (done.returncode == 0) is passes
