"""Docstrings: listed arguments are the function's, and errors of the client are named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "clients/python/src/talkwire_client"
PACKAGES = (
    "asr", "benchmarks", "clients", "codec", "examples", "ipc", "loadtest", "service",
    "streaming", "talker", "text", "training",
)  # fmt: skip
_SECTION = re.compile(r"^(\w+):\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\*{0,2}\w+(?:, \w+)*):", re.MULTILINE)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(folder: Path) -> Iterator[tuple[str, Function]]:
    """Yield functions with a docstring, with their places."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, Function) and ast.get_docstring(node):
                yield f"{file.relative_to(ROOT)}:{node.lineno} {node.name}", node


def _entries(function: Function | ast.ClassDef, section: str) -> list[str]:
    """The names in a section of the docstring."""
    text = f"{ast.get_docstring(function)}\n"
    found = dict(_SECTION.findall(text)).get(section, "")
    return [name.lstrip("*") for names in _ENTRY.findall(found) for name in names.split(", ")]


def _parameters(function: Function) -> list[str]:
    args = function.args
    rest = [one for one in (args.vararg, args.kwarg) if one is not None]
    names = [one.arg for one in (*args.posonlyargs, *args.args, *args.kwonlyargs, *rest)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _raised(node: ast.AST) -> Iterator[str]:
    """Yield the exception classes that a function itself raises, without inner functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call):
            name = ast.unparse(child.exc.func)
            if name[:1].isupper():
                yield name
        yield from _raised(child)


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_list_the_arguments_of_their_functions(package: str) -> None:
    wrong = [
        f"{place}: {listed}"
        for place, function in _functions(ROOT / package)
        if (listed := _entries(function, "Args")) and listed != _parameters(function)
    ]
    assert not wrong


def test_docstrings_of_client_classes_name_the_errors_of_their_making() -> None:
    missing = [
        f"{file.name}: {node.name}: {name}"
        for file in sorted(CLIENT.glob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for name in _raised(method)
        if name not in _entries(node, "Raises")
    ]
    assert not missing


def test_docstrings_of_client_name_the_errors_that_are_raised() -> None:
    public = [
        (place, function)
        for place, function in _functions(CLIENT)
        if function.name == function.name.lstrip("_") or function.name.endswith("__")
    ]
    missing = [
        f"{place}: {name}"
        for place, function in public
        if "Raises:" in (ast.get_docstring(function) or "")
        for name in _raised(function)
        if name not in _entries(function, "Raises")
    ]
    assert len(public) > 50
    assert not missing
