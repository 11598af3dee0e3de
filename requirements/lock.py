"""Make the locked lists from the .in files: ``python requirements/lock.py cpu dev cuda``.

Needs Python 3.11 (the oldest supported, so that each version it picks admits the newer ones too),
a recent pip and a package index; nothing else. ``NAME.in`` holds ordinary requirement lines, and:

- ``#: omit NAME: reason`` leaves NAME, and what only NAME needs, out of the closure. The reason is
  copied into the list: whoever reads ``pip check``'s complaints finds each one answered.
- ``#: as pip resolves`` leaves the closure to pip, extras and all; ``omit`` has no effect then.
- ``#: beside LIST`` takes the versions of LIST.txt as given, and leaves its packages out: the two
  lists go into one environment.

Otherwise the closure is made here, because pip has no way to leave a dependency out: pip picks
versions without looking at dependencies, and what they require is put back into the question
until nothing changes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from index import PYTHONS, hashes, index_url
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.specifiers import SpecifierSet
from pip._vendor.packaging.utils import canonicalize_name

HERE = Path(__file__).resolve().parent
PLATFORMS = (
    ("linux", "Linux", "x86_64"),
    ("linux", "Linux", "aarch64"),
    ("darwin", "Darwin", "arm64"),
)
MAX_ROUNDS = 20


@dataclass
class Wanted:
    """What a .in file asks for."""

    top: list[Requirement] = field(default_factory=list)
    omitted: dict[str, str] = field(default_factory=dict)  # canonical name -> reason
    given: dict[str, str] = field(
        default_factory=dict
    )  # canonical name -> version, from the list beside
    by_pip: bool = False


@dataclass(frozen=True)
class Picked:
    """One version that pip picked, and what it requires on any supported platform."""

    name: str
    version: str
    needs: tuple[Requirement, ...]


def environments() -> list[dict[str, str]]:
    """Every environment that a list must serve, as marker variables."""
    return [
        {
            "python_version": python,
            "python_full_version": f"{python}.0",
            "sys_platform": sys_platform,
            "platform_system": system,
            "platform_machine": machine,
            "os_name": "posix",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "extra": "",
        }
        for python in PYTHONS
        for sys_platform, system, machine in PLATFORMS
    ]


def applies(requirement: Requirement) -> bool:
    """Whether a requirement holds in any supported environment (extras are never followed)."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate(environment) for environment in environments())


def read_in(name: str) -> Wanted:
    """Parse ``NAME.in``; raise SystemExit at a directive that does not exist."""
    wanted = Wanted()
    for line in (HERE / f"{name}.in").read_text().splitlines():
        if directive := re.fullmatch(r"#: omit ([\w.-]+): (.+)", line):
            wanted.omitted[canonicalize_name(directive[1])] = directive[2]
        elif directive := re.fullmatch(r"#: beside (\w+)", line):
            wanted.given |= read_pins(directive[1])
        elif line == "#: as pip resolves":
            wanted.by_pip = True
        elif line.startswith("#:"):
            raise SystemExit(f"{name}.in: no such directive: {line}")
        elif (text := line.partition(" #")[0].strip()) and not text.startswith("#"):
            wanted.top.append(Requirement(text))
    return wanted


def read_pins(name: str) -> dict[str, str]:
    """The versions that ``NAME.txt`` pins, by canonical name."""
    text = (HERE / f"{name}.txt").read_text()
    return {
        canonicalize_name(m[1]): m[2] for m in re.finditer(r"^([\w.-]+)==([^\s;]+)", text, re.M)
    }


def pick(requirements: list[str], index: str, *options: str) -> dict[str, Picked]:
    """Let pip pick a version for each requirement (and, without ``--no-deps``, for what it needs).

    A machine's own wheel folders and additional indexes are left out: what is locked must be what
    the index publishes.
    """
    hidden = {"PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"}
    env = {k: v for k, v in os.environ.items() if k not in hidden} | {"PIP_CONFIG_FILE": os.devnull}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
        ]
        command += ["--only-binary=:all:", "--index-url", index, "--report", str(report), *options]
        if subprocess.run([*command, *requirements], env=env, check=False).returncode:
            raise SystemExit("pip could not pick versions; see its message above")
        items = json.loads(report.read_text())["install"]
    picked: dict[str, Picked] = {}
    for meta in (item["metadata"] for item in items):
        admitted = SpecifierSet(meta.get("requires_python", ""))
        if not all(f"{python}.9" in admitted for python in PYTHONS):
            raise SystemExit(f"{meta['name']} {meta['version']} requires Python {admitted}")
        needs = tuple(r for r in map(Requirement, meta.get("requires_dist", ())) if applies(r))
        picked[canonicalize_name(meta["name"])] = Picked(meta["name"], meta["version"], needs)
    return picked


def reach(wanted: Wanted, picked: dict[str, Picked]) -> tuple[set[str], dict[str, set[str]]]:
    """The requirements (as text) reachable from the top ones, and for each name who requires it."""
    lines: set[str] = set()
    via: dict[str, set[str]] = {}
    todo = [(requirement, "") for requirement in wanted.top]
    while todo:
        requirement, parent = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in wanted.omitted:
            continue
        lines.add(f"{name}{requirement.specifier}")
        seen = name in via
        via.setdefault(name, set()).update({parent} - {""})
        if not seen and name in picked:
            todo += [(need, picked[name].name) for need in picked[name].needs]
    return lines, via


def close(wanted: Wanted, index: str) -> tuple[list[Picked], dict[str, set[str]]]:
    """All packages of the list, sorted, and who requires each."""
    if wanted.by_pip:
        picked = pick([str(requirement) for requirement in wanted.top], index)
        return [picked[name] for name in sorted(picked)], {}
    picked = {}
    asked: set[str] = set()
    for _ in range(MAX_ROUNDS):
        lines, via = reach(wanted, picked)
        if lines == asked:
            chosen = sorted(n for n in via if n not in wanted.given)
            return [picked[name] for name in chosen], via
        asked = lines
        pins = [f"{name}=={version}" for name, version in wanted.given.items() if name in via]
        print(f"  {len(via)} packages", file=sys.stderr)
        picked = pick(sorted(lines) + pins, index, "--no-deps")
    raise SystemExit(f"versions still change after {MAX_ROUNDS} rounds")


def write(
    name: str, wanted: Wanted, packages: list[Picked], via: dict[str, set[str]], index: str
) -> None:
    """Write ``NAME.txt``."""
    lines = [f"# Made from {name}.in by requirements/lock.py (`make lock`); do not edit.", "#"]
    lines += [
        "# Install with: pip install --no-deps --require-hashes -r " + f"requirements/{name}.txt"
    ]
    if wanted.omitted:
        lines += ["#", "# Left out on purpose, so `pip check` names them:"]
        lines += [f"#   {omitted}: {reason}" for omitted, reason in sorted(wanted.omitted.items())]
    lines.append("")
    for package in packages:
        lines.append(f"{canonicalize_name(package.name)}=={package.version} \\")
        lines += [
            f"    --hash=sha256:{digest} \\"
            for digest in hashes(package.name, package.version, index)
        ]
        lines[-1] = lines[-1].removesuffix(" \\")
        if via:
            parents = sorted(via[canonicalize_name(package.name)], key=str.lower)
            lines.append(f"    # via {', '.join(parents) or f'{name}.in'}")
    (HERE / f"{name}.txt").write_text("\n".join(lines) + "\n")
    print(f"{name}.txt: {len(packages)} packages", file=sys.stderr)


def main(names: list[str]) -> None:
    """Lock each named list in turn."""
    if not names or sys.version_info[:2] != (3, 11):
        raise SystemExit("usage: python3.11 requirements/lock.py NAME...")
    index = index_url()
    for name in names:
        wanted = read_in(name)
        packages, via = close(wanted, index)
        write(name, wanted, packages, via, index)


if __name__ == "__main__":
    main(sys.argv[1:])
