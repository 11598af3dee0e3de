"""Helpers for rendered manifests and the settings they contain."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from service.settings import PREFIX, Settings, load_settings
from tests.deploy.container import ROOT
from tests.deploy.render import Object, identity, render

K8S = ROOT / "deploy" / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())
GPU_OVERLAYS = [name for name in OVERLAYS if name.startswith("gpu")]
Objects = dict[tuple[str, str], Object]


def rendered(overlay: str) -> Objects:
    return {identity(o): o for o in render(K8S / "overlays" / overlay)}


def with_components(folder: Path, overlay: str) -> Path:
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


def pod(objects: Objects) -> Object:
    return objects["Deployment", "talkwire"]["spec"]["template"]["spec"]


def containers(objects: Objects) -> list[Object]:
    spec = pod(objects)
    return [*spec["containers"], *spec.get("initContainers", [])]


def configured(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    for name, value in objects["ConfigMap", "talkwire"]["data"].items():
        monkeypatch.setenv(name, value)
    return load_settings()
