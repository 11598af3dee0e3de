"""The Dockerfiles against the manifests, the lists of packages and the sources, without a build."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import grimp
import pytest
from packaging.utils import canonicalize_name

from service.page.routes import PAGES
from service.settings import PREFIX, Settings
from tests.deploy.container import ROOT, image_command, image_environment, instructions, stage
from tests.deploy.render import render

PACKAGES = ["asr", "codec", "ipc", "service", "streaming", "talker", "text"]
#: Entry points in a container: the command and the processes it starts.
PROCESSES = ["service.cli", "talker.process", "codec.worker", "asr.worker", "talker.plugin"]
DOCKERFILES = ["Dockerfile.cpu", "Dockerfile.cuda"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_match_command_user_and_volumes_of_manifests(dockerfile: str) -> None:
    objects = render(ROOT / "deploy" / "k8s" / "overlays" / "cpu-embedded")
    (deployment,) = [o for o in objects if o["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    entrypoint, command = image_command(dockerfile)
    assert entrypoint == ["talkwire"]
    assert command == pod["containers"][0]["args"] == ["serve"]
    user = pod["securityContext"]
    assert dict(instructions(dockerfile))["USER"] == f"{user['runAsUser']}:{user['runAsGroup']}"
    environment = image_environment(dockerfile)
    mounted = pod["containers"][0]["volumeMounts"]
    written_to = {m["mountPath"] for m in mounted if not m.get("readOnly")}
    assert written_to == {environment["HOME"], "/tmp", "/dev/shm"}
    ours = [n for n in environment if n.startswith(PREFIX)]
    assert {n.removeprefix(PREFIX).lower() for n in ours} <= set(Settings.model_fields)
    assert environment["TALKWIRE_HOST"] == "0.0.0.0"


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_use_pinned_base_and_hashed_packages(dockerfile: str) -> None:
    text = (ROOT / "deploy" / "docker" / dockerfile).read_text()
    bases = set(re.findall(r"^FROM (\S+)", text, re.M))
    assert bases == {"python:3.11-slim-bookworm"}
    hardware = dockerfile.removeprefix("Dockerfile.")
    assert set(re.findall(r"HARDWARE=(\w+)", text)) == {hardware}
    locked = (ROOT / "requirements" / f"{hardware}.txt").read_text()
    assert "--hash=sha256:" in locked
    assert "--require-hashes" in (ROOT / "requirements" / "install.sh").read_text()


def test_images_contain_only_listed_files_and_voice(tmp_path: Path) -> None:
    stage(tmp_path)
    assert (tmp_path / "embedded" / "checkpoint" / "model.safetensors").is_file()
    assert all((tmp_path / folder / name).is_file() for folder, name, _ in PAGES.values())
    assert {p.name for p in tmp_path.iterdir()} == {
        *("LICENSE", "README.md", "pyproject.toml", "requirements", "setup.py"),
        *("asr", "clients", "codec", "embedded", "ipc", "service", "streaming", "talker"),
        *("text", "voices"),
    }


def test_images_contain_all_modules_their_processes_import(tmp_path: Path) -> None:
    """The import graph is used, since the repository on the path would hide missing modules."""
    stage(tmp_path)
    folders = {p.name for p in tmp_path.iterdir() if (p / "__init__.py").is_file()}
    graph = grimp.build_graph(*PACKAGES, include_external_packages=False)
    needed: set[str] = set()
    for start in PROCESSES:
        needed |= {start, *graph.find_upstream_modules(start)}
    assert {name.partition(".")[0] for name in needed} <= folders
    for name in needed:
        path = tmp_path.joinpath(*name.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), name


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_compile_all_their_packages(dockerfile: str, tmp_path: Path) -> None:
    stage(tmp_path)
    folders = {p.name for p in tmp_path.iterdir() if (p / "__init__.py").is_file()}
    text = (ROOT / "deploy" / "docker" / dockerfile).read_text()
    (compiled,) = re.findall(r"compileall -q ([a-z/ ]+?) \\", text)
    assert set(compiled.split()) == folders | {"clients/python"}


def test_gpu_image_has_compilers_and_requires_cuda_driver() -> None:
    text = (ROOT / "deploy" / "docker" / "Dockerfile.cuda").read_text()
    (installed,) = re.findall(r"--no-install-recommends ([a-z0-9+ -]+)", text)
    assert {"gcc", "g++", "libc6-dev"} <= set(installed.split())
    locked = (ROOT / "requirements" / "cuda.txt").read_text()
    (major,) = set(re.findall(r"^nvidia-cuda-runtime==(\d+)\.", locked, re.M))
    assert f"NVIDIA_REQUIRE_CUDA=cuda>={major}.0" in text


class Answers(BaseHTTPRequestHandler):
    """Answers like a live service whose engines are restarting."""

    def do_GET(self) -> None:
        self.send_response({"/health/live": 200, "/health/startup": 200}.get(self.path, 503))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def answering(certificate: Path | None) -> Iterator[int]:
    """Serve ``Answers``, over TLS if ``certificate`` (with its key) is given; yield the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
@pytest.mark.parametrize("is_tls", [False, True])
def test_images_healthcheck_follows_port_and_tls_settings(
    dockerfile: str, is_tls: bool, tmp_path: Path
) -> None:
    _, _, command = dict(instructions(dockerfile))["HEALTHCHECK"].partition(" CMD ")
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    both = tmp_path / "both.pem"
    if is_tls:
        environment["TALKWIRE_TLS_CERTIFICATE"] = str(both)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=speech.example.org", "-out", both, "-keyout", tmp_path / "key.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
        both.write_text((tmp_path / "key.pem").read_text() + both.read_text())
    with answering(both if is_tls else None) as port:
        environment["TALKWIRE_PORT"] = str(port)
        assert subprocess.run(["sh", "-c", command], env=environment, check=False).returncode == 0
    gone = subprocess.run(["sh", "-c", command], env=environment, check=False, capture_output=True)
    assert gone.returncode == 1


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_sbom_lists_installed_packages(dockerfile: str) -> None:
    steps = [argument for word, argument in instructions(dockerfile) if word == "RUN"]
    assert "python requirements/sbom.py > sbom.cdx.json" in steps
    made = subprocess.run(
        [sys.executable, "requirements/sbom.py"], cwd=ROOT, capture_output=True, check=True
    )
    found = json.loads(made.stdout)
    assert found["metadata"]["component"]["name"] == "talkwire"
    purls = {component["purl"] for component in found["components"]}
    # asked of pip: imports of the tests can extend this process's path (setuptools does)
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    here = {
        f"pkg:pypi/{canonicalize_name(package['name'])}@{quote(package['version'])}"
        for package in json.loads(listed.stdout)
        if package["name"] not in ("talkwire", "talkwire-client")
    }
    assert {purl for purl in purls if purl.startswith("pkg:pypi/")} == here
    if dpkg := shutil.which("dpkg-query"):
        packages = subprocess.run(
            [dpkg, "-W", "-f", "${Status}\t${Package}\t${Version}\n"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        installed = {
            tuple(line.split("\t")[1:])
            for line in packages.stdout.splitlines()
            if line.startswith("install ok installed")
        }
        debian = {
            (c["name"], c["version"])
            for c in found["components"]
            if c["purl"].startswith("pkg:deb/")
        }
        assert debian == installed
