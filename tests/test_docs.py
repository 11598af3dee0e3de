"""Documentation: links, paths and commands lead somewhere, and the architecture is the code's."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from service.cli import app

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_CODE_SPAN = re.compile(r"`([^`\n]+)`")
_SKIPPED = {".venv", ".git", "node_modules"}


def _pages() -> list[Path]:
    found = ROOT.rglob("*.md")
    return sorted(
        p
        for p in found
        if not any(
            part.startswith(".venv") or part in _SKIPPED for part in p.relative_to(ROOT).parts
        )
    )


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub derives from a page's headings."""
    headings = re.findall(r"^#+ (.+)$", _CODE.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_docs_links_resolve(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_CODE_SPAN.sub("", _CODE.sub("", page.read_text()))):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
            broken.append(link)
    assert not broken


#: Records of measurements keep the names of their time.
_RECORDS = ROOT / "benchmarks" / "results"
_PATH = re.compile(
    r"(?<![\w/.<*>])([\w.-]+(?:/[\w.-]+)*\.(?:py|sh|md|json|toml|txt|js|html|yml))(?![\w.*])"
)


def _living_pages() -> list[Path]:
    return [page for page in _pages() if _RECORDS not in page.parents]


def test_docs_name_existing_files() -> None:
    """Paths have folders, and names of tests may stand alone. Both may omit leading folders."""
    tree = {
        str(file.relative_to(ROOT))
        for folder in ROOT.iterdir()
        if folder.is_dir() and not folder.name.startswith(".")
        for file in folder.rglob("*")
    }
    ends = {"/".join(path.split("/")[at:]) for path in tree for at in range(path.count("/") + 1)}
    named = [
        (page.name, path)
        for page in _living_pages()
        for span in _CODE_SPAN.findall(_CODE.sub("", page.read_text()))
        for path in _PATH.findall(span)
        if "/" in path or path.startswith("test_")
    ]
    assert len(named) > 50
    assert not [one for one in named if one[1] not in ends]


def _commands(start: str) -> Iterator[tuple[str, str]]:
    """Yield the pages' commands that begin with ``start``, each with its page."""
    for page in _living_pages():
        text = page.read_text().replace("\\\n", " ")
        for block in (*_CODE.findall(text), *_CODE_SPAN.findall(_CODE.sub("", text))):
            for line in block.split("\n"):
                command = line.split("#")[0]
                for found in re.findall(rf"(?<!-n )(?<![\w-]){start} +(.*)", command):
                    yield str(page.relative_to(ROOT)), found


def test_docs_make_existing_targets() -> None:
    targets = set(re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)[0].split())
    asked = [(page, rest.split()[0]) for page, rest in _commands("make")]
    assert len(asked) > 30
    assert not [one for one in asked if one[1].strip(")") not in targets]


def test_docs_run_existing_modules() -> None:
    asked = [(page, rest.split()[0].replace(".", "/")) for page, rest in _commands("python -m")]
    own = [one for one in asked if (ROOT / one[1].split("/")[0]).is_dir() and "…" not in one[1]]
    assert len(own) > 10
    assert not [
        one
        for one in own
        if not ((ROOT / f"{one[1]}.py").exists() or (ROOT / one[1] / "__main__.py").exists())
    ]


def test_docs_use_existing_commands_and_options_of_talkwire() -> None:
    wrong, count = [], 0
    for page, rest in _commands("talkwire"):
        command: Any = typer.main.get_command(app)
        words = rest.split()
        while words and (commands := getattr(command, "commands", None)):
            command = commands.get(words[0])
            if command is None:
                break
            words.pop(0)
        if command is None:
            wrong.append(f"{page}: talkwire {rest}")
            continue
        options = {option for one in command.params for option in one.opts} | {"--help", "-h"}
        wrong += [f"{page}: {word}" for word in words if word[:2] == "--" and word not in options]
        count += 1
    assert count > 10
    assert not wrong


#: Packages of the diagram of layers whose folders have other names.
_PACKAGES = {"clients/python": "talkwire_client"}


def _diagram() -> list[list[list[str]]]:
    """The lines of the diagram of layers, each as groups of packages from top to bottom."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    (block,) = re.findall(r"## Layers\n\n```\n(.*?)```", page, re.DOTALL)
    lines = [[group.split("│") for group in line.split("─▶")] for line in block.splitlines()]
    return [[[_PACKAGES.get(n.strip(), n.strip()) for n in g] for g in line] for line in lines]


def _imported(package: str) -> set[str]:
    """The modules that a package imports."""
    names: set[str] = set()
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module or "")
    return names


def test_architecture_diagram_has_the_imports_between_packages() -> None:
    lines = _diagram()
    upper = {name for line in lines for group in line[:-1] for name in group}
    every = {name for line in lines for group in line for name in group}
    for package in upper:
        drawn = tuple(
            lower
            for line in lines
            for at, group in enumerate(line)
            if package in group
            for lowers in line[at + 1 :]
            for lower in lowers
        )
        tops = {name.split(".")[0] for name in every} - {package}
        found = {name for name in _imported(package) if name.split(".")[0] in tops}
        assert not [name for name in found if not name.startswith(drawn)], package
    for (package,), lowers in lines[1:]:
        found = _imported(package)
        assert all(any(name.startswith(lower) for name in found) for lower in lowers), package


def test_architecture_diagram_has_the_enforced_layers() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [layer.split(" | ") for layer in contract["contracts"][0]["layers"]]
    assert _diagram()[0] == layers


def test_architecture_table_has_every_folder() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    listed = set(re.findall(r"`(\w+)/`", page))
    own = (*ROOT.glob("[a-z]*/__init__.py"), *ROOT.glob("[a-z]*/README.md"))
    assert {file.parent.name for file in own} - listed == {"docs"}
