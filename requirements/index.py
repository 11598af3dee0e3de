"""What a package index publishes of a version: its files and their hashes.

Every file that CPython 3.11 to 3.13 on Linux or macOS may take counts, and not only the one that
this machine would take: a list locked here must install elsewhere.
"""

from __future__ import annotations

import html.parser
import re
import subprocess
import sys
import urllib.parse
import urllib.request

from pip._vendor.packaging.utils import canonicalize_name
from pip._vendor.packaging.version import InvalidVersion, Version

PYTHONS = ("3.11", "3.12", "3.13")


def index_url() -> str:
    """The index that pip is set to use, from pip's own help (which shows the setting in force)."""
    shown = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--help"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = re.search(r"--index-url <url>.*?\(default\s+(\S+?)\)", shown, re.S)
    if found is None:
        raise SystemExit("pip does not say which index it uses; set PIP_INDEX_URL")
    return found[1].rstrip("/")


class Page(html.parser.HTMLParser):
    """The links of one project's page on an index: [(file name, sha256)]."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.files: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the file name and the hash from an anchor's address."""
        address = urllib.parse.urlsplit(dict(attrs).get("href") or "")
        if tag == "a" and address.fragment.startswith("sha256="):
            filename = urllib.parse.unquote(address.path.rpartition("/")[2])
            self.files.append((filename, address.fragment.removeprefix("sha256=")))


def usable(filename: str, version: str) -> bool:
    """Whether a file is of `version`, and a source archive or a wheel for a supported platform."""
    if filename.endswith(".tar.gz"):
        return _same(filename.removesuffix(".tar.gz").rpartition("-")[2], version)
    if not filename.endswith(".whl"):
        return False
    parts = filename.removesuffix(".whl").split("-")
    python, abi, platform = parts[-3:]
    tags = {"py3", *(f"cp{p.replace('.', '')}" for p in PYTHONS)}
    stable = abi == "abi3" and any(int(m) <= 11 for m in re.findall(r"cp3(\d+)", python))
    fits = (tags & set(python.split(".")) and not abi.endswith("t")) or stable
    return bool(fits) and _same(parts[1], version) and bool(re.search("any|linux|macosx", platform))


def _same(text: str, version: str) -> bool:
    try:
        return Version(text) == Version(version)
    except InvalidVersion:
        return False


def hashes(name: str, version: str, index: str) -> list[str]:
    """The sha256 of every usable file of a version, sorted; SystemExit if the index shows none."""
    request = urllib.request.Request(
        f"{index}/{canonicalize_name(name)}/", headers={"Accept": "text/html"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = Page(answer.read().decode()).files
    found = sorted({digest for filename, digest in files if usable(filename, version)})
    if not found:
        raise SystemExit(f"the index shows no usable file of {name} {version}")
    return found
