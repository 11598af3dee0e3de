"""What the Dockerfiles make is what the manifests run; no image is built for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.settings import PREFIX, Settings
from tests.deploy.container import ROOT, image_command, image_environment, instructions, stage
from tests.deploy.render import render

DOCKERFILES = ["Dockerfile.cpu", "Dockerfile.cuda"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_run_what_the_manifests_expect(dockerfile: str) -> None:
    objects = render(ROOT / "deploy" / "k8s" / "overlays" / "cpu-embedded")
    (deployment,) = [o for o in objects if o["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    entrypoint, command = image_command(dockerfile)
    assert entrypoint == ["talkwire"]
    assert command == pod["containers"][0]["args"] == ["serve"]
    user = pod["securityContext"]
    assert dict(instructions(dockerfile))["USER"] == f"{user['runAsUser']}:{user['runAsGroup']}"
    environment = image_environment(dockerfile)
    mounts = {m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
    assert mounts == {environment["HOME"], "/tmp", "/dev/shm"}
    ours = [n for n in environment if n.startswith(PREFIX)]
    assert {n.removeprefix(PREFIX).lower() for n in ours} <= set(Settings.model_fields)
    assert environment["TALKWIRE_HOST"] == "0.0.0.0"


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_are_built_from_named_versions_and_the_locked_list(dockerfile: str) -> None:
    text = (ROOT / "deploy" / "docker" / dockerfile).read_text()
    bases = set(re.findall(r"^FROM (\S+)", text, re.M))
    assert bases == {"python:3.11-slim-bookworm"}
    hardware = dockerfile.removeprefix("Dockerfile.")
    assert set(re.findall(r"HARDWARE=(\w+)", text)) == {hardware}
    locked = (ROOT / "requirements" / f"{hardware}.txt").read_text()
    assert "--hash=sha256:" in locked
    assert "--require-hashes" in (ROOT / "requirements" / "install.sh").read_text()


def test_images_get_the_service_and_the_voice_and_nothing_private(tmp_path: Path) -> None:
    stage(tmp_path)
    assert (tmp_path / "embedded" / "checkpoint" / "model.safetensors").is_file()
    assert {p.name for p in tmp_path.iterdir()} == {
        *("LICENSE", "README.md", "pyproject.toml", "requirements"),
        *("clients", "codec", "embedded", "ipc", "service", "streaming", "talker"),
    }
