"""Writes a bill of materials of the environment that runs it: CycloneDX 1.6, JSON.

    python requirements/sbom.py > sbom.cdx.json

All Python packages that this interpreter can import, and Debian's packages where there are any.
Only the standard library, so that an image can make its own.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

_DPKG = Path("/var/lib/dpkg/status")
_OS = Path("/etc/os-release")
_OWN = frozenset({"talkwire", "talkwire-client"})
#: Names the documents; each is told from the others by what is in it.
_SPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org/talkwire")


def python_components() -> Iterator[dict[str, Any]]:
    """The packages on this interpreter's path; our own are the subject, not components."""
    for found in distributions():
        name = found.metadata["Name"]
        if name and name.lower() not in _OWN:
            yield _python(found, name)


def _python(found: Distribution, name: str) -> dict[str, Any]:
    normal = name.lower().replace("_", "-").replace(".", "-")
    component = _library(name, found.version, f"pkg:pypi/{quote(normal)}@{_version(found.version)}")
    if "License-Expression" in found.metadata:
        component["licenses"] = [{"expression": found.metadata["License-Expression"]}]
    return component


def debian_components(status: str, distribution: str) -> Iterator[dict[str, Any]]:
    """Installed packages by dpkg's status file; ``distribution`` as in ``debian-12``."""
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1)
            for line in paragraph.splitlines()
            if ": " in line and not line.startswith(" ")
        )
        if fields.get("Status", "").endswith(" installed"):
            name, version, kind = (fields[key] for key in ("Package", "Version", "Architecture"))
            query = f"arch={quote(kind)}&distro={quote(distribution)}"
            purl = f"pkg:deb/debian/{quote(name)}@{_version(version)}?{query}"
            yield _library(name, version, purl)


def _version(version: str) -> str:
    """As a package URL has it: a colon is never escaped."""
    return quote(version, safe=":")


def _library(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _distribution() -> str:
    lines = _OS.read_text().splitlines() if _OS.exists() else []
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    return "-".join(fields.get(key, "").strip('"') for key in ("ID", "VERSION_ID")).strip("-")


def document() -> dict[str, Any]:
    """The whole, the same for the same environment."""
    found = {c["bom-ref"]: c for c in python_components()}
    if _DPKG.exists():
        found |= {c["bom-ref"]: c for c in debian_components(_DPKG.read_text(), _distribution())}
    components = [found[key] for key in sorted(found)]
    own = next((d.version for d in distributions(name="talkwire")), "unknown")
    subject = {"type": "application", "bom-ref": "talkwire", "name": "talkwire", "version": own}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SPACE, json.dumps([subject, components]))}",
        "version": 1,
        "metadata": {"component": subject},
        "components": components,
    }


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=1)
    print()
