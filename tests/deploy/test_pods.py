"""Pods: permissions, keys, probes, grace period, GPUs and weights."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from ipc.supervisor import Watch
from service import server as serve
from service import tracing
from service.listening import exposure_fault
from service.settings import PREFIX, SettingsError, load_settings
from talker.engine import START_TIMEOUT_S
from tests.deploy.container import ROOT
from tests.deploy.manifests import (
    GPU_OVERLAYS,
    Objects,
    configured,
    containers,
    pod,
    rendered,
)


def test_keys_are_mounted_read_only_from_operators_secret(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = configured(objects, monkeypatch)
    assert exposure_fault(settings) is None
    spec = pod(objects)
    (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "keys"]
    assert mount["readOnly"] is True
    assert "subPath" not in mount, "a changed Secret would not be seen"
    assert settings.api_keys_file is not None
    assert str(settings.api_keys_file.parent) == mount["mountPath"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == "keys"]
    assert volume["secret"]["defaultMode"] == 0o440
    assert ("Secret", volume["secret"]["secretName"]) not in objects, "keys are the operator's"
    monkeypatch.delenv(f"{PREFIX}API_KEYS_FILE")
    assert exposure_fault(load_settings()) is not None


def test_pods_share_secret_of_tokens_from_documented_secret(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = configured(objects, monkeypatch)
    (mount,) = [m for m in pod(objects)["containers"][0]["volumeMounts"] if m["name"] == "keys"]
    files = [settings.api_keys_file, settings.token_secret_file]
    assert None not in files, "each pod would refuse the tokens of the others"
    assert {str(file.parent) for file in files if file} == {mount["mountPath"]}
    page = (ROOT / "docs" / "guides" / "kubernetes.md").read_text()
    (made,) = re.findall(r"generic talkwire-api-keys ((?:.*\\\n)*.*)", page)
    assert {file.name for file in files if file} == set(re.findall(r"--from-\w+=([\w.]+)", made))


def test_startup_probe_outlasts_start_timeouts_of_workers(
    objects: Objects,
) -> None:
    probe = pod(objects)["containers"][0]["startupProbe"]
    patience_s = max(Watch().start_timeout_s, START_TIMEOUT_S)
    assert probe["periodSeconds"] * probe["failureThreshold"] > patience_s


def test_grace_period_outlasts_drain_and_shutdown(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = pod(objects)
    waits_s = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    settings = configured(objects, monkeypatch)
    listeners_s = 2 * serve._GRACE_S  # the public listener, then the admin listener
    workers_s = 2 * Watch().stop_timeout_s  # the recogniser, then both engines at once
    closing_s = settings.slow_consumer_s + listeners_s + workers_s + tracing._STOP_S
    assert spec["terminationGracePeriodSeconds"] > waits_s + settings.drain_s + closing_s


def test_service_links_are_off_and_would_break_settings(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pod(objects)["enableServiceLinks"] is False
    configured(objects, monkeypatch)
    monkeypatch.setenv("TALKWIRE_SERVICE_HOST", "10.0.0.1")  # added by a service link
    with pytest.raises(SettingsError):
        load_settings()


def test_containers_are_restricted_and_limited(objects: Objects) -> None:
    spec = pod(objects)
    user = spec["securityContext"]
    assert user["runAsNonRoot"] is True
    assert user["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in containers(objects):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
    for volume in spec["volumes"]:
        if "emptyDir" in volume:
            assert volume["emptyDir"]["sizeLimit"], volume["name"]
    everyone = objects["NetworkPolicy", "default-deny"]["spec"]
    assert everyone == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert "egress" not in objects["NetworkPolicy", "talkwire"]["spec"]


@pytest.mark.parametrize("overlay", GPU_OVERLAYS)
def test_gpu_count_equals_talker_parallelism(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = rendered(overlay)
    settings = configured(objects, monkeypatch)
    gpus = settings.talker_tensor_parallel_size * settings.talker_data_parallel_size
    (container,) = pod(objects)["containers"]
    for which in ("requests", "limits"):
        assert container["resources"][which]["nvidia.com/gpu"] == str(gpus)
    assert settings.codec_device == "cuda"
    rolling = objects["Deployment", "talkwire"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}
    assert {c["image"] for c in containers(objects)} == {"talkwire:cuda"}


@pytest.mark.parametrize("overlay", GPU_OVERLAYS)
def test_weights_are_mounted_read_only_at_model_path(
    overlay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = rendered(overlay)
    model = configured(objects, monkeypatch).model
    (check,) = pod(objects)["initContainers"]
    folder = {e["name"]: e["value"] for e in check["env"]}["FOLDER"]
    assert folder == model
    for container in containers(objects):
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "weights"]
        assert mount["readOnly"] is True
        assert model.startswith(mount["mountPath"] + "/")
    (volume,) = [v for v in pod(objects)["volumes"] if v["name"] == "weights"]
    claim = volume["persistentVolumeClaim"]
    assert claim["readOnly"] is True
    wanted = objects["PersistentVolumeClaim", claim["claimName"]]["spec"]
    assert wanted["accessModes"] == ["ReadOnlyMany"]


@pytest.mark.parametrize("overlay", GPU_OVERLAYS)
def test_compilation_cache_is_on_persistent_volume(overlay: str) -> None:
    objects = rendered(overlay)
    (volume,) = [v for v in pod(objects)["volumes"] if v["name"] == "cache"]
    assert set(volume) == {"name", "persistentVolumeClaim"}, "no emptyDir is left beside it"
    claim = objects["PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]]["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]
    (mount,) = [m for m in pod(objects)["containers"][0]["volumeMounts"] if m["name"] == "cache"]
    assert not mount.get("readOnly")


@pytest.mark.parametrize(
    ("harm", "passes"), [("none", True), ("altered", False), ("missing", False), ("no sums", False)]
)
def test_weights_check_fails_on_wrong_or_missing_files(
    harm: str, passes: bool, tmp_path: Path
) -> None:
    (check,) = pod(rendered("gpu-single"))["initContainers"]
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
