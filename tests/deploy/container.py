"""Runs what the image would run, in what a pod gives it, without an image or a cluster.

The files are those that .dockerignore lets into the image; the command, the environment and
the user are the Dockerfile's and the manifests'. Where we are root, the process is also number 1
of its own process namespace, without capabilities, on a file system that is read-only but for
the pod's volumes. The interpreter, the packages and the kernel's seccomp filter are this machine's.
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
#: Folders of the image that a pod may write to, and what they are called beside the staged files:
#: the real ones may be what this machine keeps its interpreter and this tree in.
_WRITABLE = {"/tmp": "tmp", "/var/cache/talkwire": "cache"}
_UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """The last stage's instructions as (word, argument), comments and continuations resolved."""
    text = (ROOT / "deploy" / "docker" / dockerfile).read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    parts = [line.partition(" ") for line in lines.replace("\\\n", " ").splitlines() if line]
    found = [(word, argument.strip()) for word, _, argument in parts]
    last = max(i for i, (word, _) in enumerate(found) if word == "FROM")
    return found[last:]


def image_environment(dockerfile: str) -> dict[str, str]:
    """What ENV sets in the last stage."""
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
    """Copy what .dockerignore lets into the image."""
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
    """Whether this machine lets us make namespaces."""
    if os.geteuid() or not (shutil.which("unshare") and shutil.which("setpriv")):
        return False
    attempt = "mount -o remount,ro,bind /"
    done = subprocess.run([*_UNSHARE, "sh", "-c", attempt], check=False, capture_output=True)
    return done.returncode == 0


class Container:
    """A running container. ``process`` ends with the exit code that the kubelet would see."""

    def __init__(
        self, process: subprocess.Popen[bytes], port: int, admin_port: int, inner: bool
    ) -> None:
        self.process, self.port, self.admin_port = process, port, admin_port
        self._inner = inner

    def terminate(self) -> None:
        """SIGTERM to the container's first process."""
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
    """Run the first container of a pod's spec, listening on the ports, until the block ends.
    ``secrets``: the files of each Secret by their names.
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
    """The image's, its folders put where they are here; sources come from the staged files."""
    own = {
        name: value.replace(_HOME, str(image)).replace("$PATH", os.environ["PATH"])
        for name, value in image_environment("Dockerfile.cpu").items()
    }
    own["HOME"] = str(here[own["HOME"]])
    return own | {"TMPDIR": str(here["/tmp"]), "PYTHONPATH": str(image)}


def _with_secrets(
    pod: dict[str, Any], settings: dict[str, str], secrets: dict[str, dict[str, str]], folder: Path
) -> dict[str, str]:
    """Write Secrets' files, and let the settings name them where they are here."""
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
    """Commands that let the pod's user reach our interpreter where it lies in a closed home:
    the home is covered, and only the interpreter put back. ``hold`` is an empty folder.
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
    """The command inside namespaces with the pod's volumes, its user and nothing more."""
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
    # `exec` all the way: the service itself is process 1
    script.append(f"exec {drop} {shlex.join(command)}")
    return [*_UNSHARE, "sh", "-c", "\n".join(script)]
