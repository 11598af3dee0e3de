"""Run the image's process in the environment of a pod, without an image or a cluster.

The files are those that .dockerignore lets into the image; the command, the environment and
the user come from the Dockerfile and the manifests. For root, the process is also process 1 of
its own PID namespace, without capabilities, on a file system that is read-only except for the
pod's volumes. The interpreter, the packages and the seccomp filter are this machine's.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
_HOME = "/opt/talkwire"
#: Writable folders of the image, and the folders beside the staged files that replace them: on
#: this machine the real ones may hold the interpreter or the repository.
_WRITABLE = {"/tmp": "tmp", "/var/cache/talkwire": "cache"}
_UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """The last stage's instructions as (word, argument), without comments and continuations."""
    text = (ROOT / "deploy" / "docker" / dockerfile).read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    parts = [line.partition(" ") for line in lines.replace("\\\n", " ").splitlines() if line]
    found = [(word, argument.strip()) for word, _, argument in parts]
    last = max(i for i, (word, _) in enumerate(found) if word == "FROM")
    return found[last:]


def image_environment(dockerfile: str) -> dict[str, str]:
    """The variables set by ENV in the last stage."""
    pairs = [
        pair
        for word, argument in instructions(dockerfile)
        if word == "ENV"
        for pair in shlex.split(argument)
    ]
    return dict(pair.split("=", 1) for pair in pairs)


def image_command(dockerfile: str) -> tuple[list[str], list[str]]:
    """ENTRYPOINT and CMD."""
    found = dict(instructions(dockerfile))
    return json.loads(found["ENTRYPOINT"]), json.loads(found["CMD"])


def stage(target: Path) -> None:
    """Copy the files that .dockerignore lets into the image."""
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert rules[0] == "*", "the list must begin by leaving everything out"
    never = [rule.removeprefix("**/") for rule in rules if rule.startswith("**/")]
    for name in (rule[1:] for rule in rules if rule.startswith("!")):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns(*never))
        else:
            shutil.copy(source, target / name)
    for rule in rules[1:]:
        if not rule.startswith(("!", "**/")):
            shutil.rmtree(target / rule)


def can_unshare() -> bool:
    """Whether this process may create namespaces."""
    if os.geteuid() or not (shutil.which("unshare") and shutil.which("setpriv")):
        return False
    attempt = "mount -o remount,ro,bind /"
    done = subprocess.run([*_UNSHARE, "sh", "-c", attempt], check=False, capture_output=True)
    return done.returncode == 0


class Container:
    """A running container. ``process`` exits with the code that the kubelet would see."""

    def __init__(
        self, process: subprocess.Popen[bytes], port: int, admin_port: int, inner: bool
    ) -> None:
        self.process, self.port, self.admin_port = process, port, admin_port
        self._inner = inner

    def terminate(self) -> None:
        """Send SIGTERM to the container's process 1."""
        if self._inner:
            (first,) = psutil.Process(self.process.pid).children()
            first.send_signal(signal.SIGTERM)
        else:
            self.process.terminate()


@contextmanager
def container(
    pod: dict[str, Any],
    settings: dict[str, str],
    port: int,
    admin_port: int,
    secrets: dict[str, dict[str, str]],
) -> Iterator[Container]:
    """Run the first container of a pod's spec on the given ports until the block ends.

    ``secrets``: the files of each Secret by name.
    """
    with tempfile.TemporaryDirectory(prefix="talkwire-image-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        image, here = folder / "image", {path: folder / key for path, key in _WRITABLE.items()}
        for path in (image, *here.values()):
            path.mkdir()
        stage(image)
        (image / ".venv").symlink_to(sys.prefix)
        for path in image.rglob("*"):
            if not path.is_symlink():
                path.chmod(0o555 if path.is_dir() else 0o444)
        image.chmod(0o555)
        inner = can_unshare()
        environment = _environment(image, here) | _with_secrets(pod, settings, secrets, folder)
        environment |= {"TALKWIRE_PORT": str(port), "TALKWIRE_ADMIN_PORT": str(admin_port)}
        entrypoint, _ = image_command("Dockerfile.cpu")
        command = [*entrypoint, *pod["containers"][0]["args"]]
        if inner:
            command = _confine(pod, here, command)
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                command, cwd=image, env=environment, stdin=subprocess.DEVNULL, stderr=log
            )
            try:
                yield Container(process, port, admin_port, inner)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
                print(os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace"))
                for path in [image, *(p for p in image.rglob("*") if p.is_dir())]:
                    if not path.is_symlink():
                        path.chmod(0o755)


def _environment(image: Path, here: dict[str, Path]) -> dict[str, str]:
    """The image's environment, with its folders replaced; sources are the staged files."""
    own = {
        name: value.replace(_HOME, str(image)).replace("$PATH", os.environ["PATH"])
        for name, value in image_environment("Dockerfile.cpu").items()
    }
    own["HOME"] = str(here[own["HOME"]])
    return own | {"TMPDIR": str(here["/tmp"]), "PYTHONPATH": str(image)}


def _with_secrets(
    pod: dict[str, Any], settings: dict[str, str], secrets: dict[str, dict[str, str]], folder: Path
) -> dict[str, str]:
    """Write the Secrets' files and adapt the paths in the settings."""
    named = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    for mount in pod["containers"][0]["volumeMounts"]:
        if mount["name"] in named:
            target = folder / f"secret-{mount['name']}"
            target.mkdir()
            for name, text in secrets[named[mount["name"]]].items():
                (target / name).write_text(text)
                (target / name).chmod(0o444)
            path = mount["mountPath"]
            settings = {k: v.replace(path, str(target)) for k, v in settings.items()}
    return settings


def _reveal(hold: Path) -> list[str]:
    """Commands that make the interpreter readable for the pod's user if it is in a private home.

    The home is hidden by a tmpfs, and only the interpreter is mounted again. ``hold`` is an empty
    folder.
    """
    closed: dict[Path, Path] = {}
    for path in (Path(sys.base_prefix), Path(sys.prefix)):
        shut = [folder for folder in path.parents if not folder.stat().st_mode & 0o001]
        if shut:
            closed[path] = shut[-1]
    script = [f"mount -t tmpfs tmpfs {hold}"] if closed else []
    for number, path in enumerate(closed):
        script += [f"mkdir {hold}/{number}", f"mount --bind {path} {hold}/{number}"]
    script += [f"mount -t tmpfs -o mode=755 tmpfs {folder}" for folder in set(closed.values())]
    for number, path in enumerate(closed):
        script += [f"mkdir -p {path}", f"mount --bind {hold}/{number} {path}"]
    script += [f"mount -o remount,ro {folder}" for folder in set(closed.values())]
    return script


def _confine(pod: dict[str, Any], here: dict[str, Path], command: list[str]) -> list[str]:
    """The command, in namespaces with only the pod's volumes and its user."""
    user = pod["securityContext"]
    volumes = {v["name"]: v["emptyDir"] for v in pod["volumes"] if "emptyDir" in v}
    main = pod["containers"][0]
    assert main["securityContext"]["readOnlyRootFilesystem"] is True
    script = ["set -e", *_reveal(here["/tmp"]), "mount -o remount,ro,bind /"]
    for mount in main["volumeMounts"]:
        if mount["name"] in volumes:
            size = re.sub("i$", "", volumes[mount["name"]]["sizeLimit"]).lower()
            path = here.get(mount["mountPath"], mount["mountPath"])
            script.append(
                f"mount -t tmpfs -o size={size},mode=2770,gid={user['fsGroup']} tmpfs {path}"
            )
    drop = (
        f"setpriv --reuid {user['runAsUser']} --regid {user['runAsGroup']}"
        f" --groups {user['fsGroup']} --no-new-privs --bounding-set -all --inh-caps -all --"
    )
    # `exec` makes the service itself process 1
    script.append(f"exec {drop} {shlex.join(command)}")
    return [*_UNSHARE, "sh", "-c", "\n".join(script)]
