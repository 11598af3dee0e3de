"""The patches in docs/guides/kubernetes.md work in an operator's overlay."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import PREFIX
from tests.deploy.container import ROOT
from tests.deploy.manifests import K8S, Objects, pod
from tests.deploy.render import Object, identity

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl to patch with")


def documented(word: str) -> Object:
    """The page's only YAML example that contains ``word``."""
    page = (ROOT / "docs" / "guides" / "kubernetes.md").read_text()
    (found,) = [
        text for text in re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S) if word in text
    ]
    return dict(yaml.safe_load(found))


def own(folder: Path, overlay: str, **more: Any) -> Objects:
    """Render an operator's overlay on one of the project's, with ``more`` in it, by kustomize."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(K8S / "overlays" / overlay, folder.resolve())],
        **more,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=True
    )
    return {identity(o): o for o in yaml.safe_load_all(done.stdout)}


@pytest.mark.parametrize("overlay", ["cpu-embedded", "gpu-single", "multi-node"])
def test_api_keys_can_be_removed_by_patch(overlay: str, tmp_path: Path) -> None:
    objects = own(tmp_path, overlay, **documented("$patch: delete"))
    settings = objects["ConfigMap", "talkwire"]["data"]
    assert not [name for name, value in settings.items() if value.startswith("/etc/talkwire/keys")]
    assert settings[f"{PREFIX}AUTH"] == "off"
    spec = pod(objects)
    volumes = {volume["name"] for volume in spec["volumes"]}
    (container,) = spec["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert "keys" not in volumes
    assert {"tmp", "cache", "shm"} <= mounted <= volumes


def test_password_of_a_private_registry_reaches_the_pods(tmp_path: Path) -> None:
    objects = own(tmp_path, "cpu-embedded", **documented("imagePullSecrets"))
    account = objects["ServiceAccount", "talkwire"]
    assert account["imagePullSecrets"] == [{"name": "registry"}]
    assert pod(objects)["serviceAccountName"] == account["metadata"]["name"]


#: What the Pod Security level "restricted" lets pods mount.
RESTRICTED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}


@pytest.mark.parametrize("overlay", ["gpu-single", "multi-node"])
def test_cache_can_be_on_nodes_and_pods_stay_restricted(overlay: str, tmp_path: Path) -> None:
    objects = own(tmp_path, overlay, **documented("kind: PersistentVolumeClaim"))
    levels = objects["Namespace", "talkwire"]["metadata"]["labels"]
    assert levels["pod-security.kubernetes.io/enforce"] == "restricted"
    pods = [
        o["spec"]["template"]["spec"] for o in objects.values() if "template" in o.get("spec", {})
    ]
    kinds = {kind for one in pods for volume in one["volumes"] for kind in set(volume) - {"name"}}
    assert kinds <= RESTRICTED_VOLUMES
    claim = objects["PersistentVolumeClaim", "talkwire-cache"]["spec"]
    volume = documented("hostPath:")
    assert claim["volumeName"] == volume["metadata"]["name"]
    assert claim["storageClassName"] == volume["spec"]["storageClassName"] == ""
    assert claim["accessModes"] == volume["spec"]["accessModes"]
    assert claim["resources"]["requests"] == volume["spec"]["capacity"]


def test_autoscaler_query_uses_overlay_namespace(tmp_path: Path) -> None:
    scaler = os.path.relpath(K8S / "components" / "autoscale", tmp_path.resolve())
    more = documented("replacements:") | {"namespace": "speech", "components": [scaler]}
    objects = own(tmp_path, "cpu-embedded", **more)
    (trigger,) = objects["ScaledObject", "talkwire"]["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert re.findall(r'namespace="([^"]*)"', query) == ["speech"]
    assert trigger["metadata"]["serverAddress"] == "http://YOUR-PROMETHEUS:9090"
