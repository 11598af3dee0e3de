"""Imports of tests: of names that exist, and of helper modules, never of ``test_*.py``."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def _imports(file: Path) -> set[str]:
    """The dotted names that a file imports, including those of ``from`` imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module or ''}.{alias.name}" for alias in node.names}
    return found


def test_no_module_imports_a_test_module() -> None:
    modules = {
        ".".join(("tests", *file.relative_to(TESTS).with_suffix("").parts))
        for file in TESTS.rglob("test_*.py")
    }
    wrong = [
        f"{file.relative_to(TESTS)}: {name}"
        for file in TESTS.rglob("*.py")
        for name in _imports(file)
        if any(name == module or name.startswith(f"{module}.") for module in modules)
    ]
    assert not wrong


def _defined(body: list[ast.stmt]) -> set[str]:
    """The names that statements of a module define, also under conditions."""
    names: set[str] = set()
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            case ast.Assign() | ast.AnnAssign():
                stored = (part for part in ast.walk(node) if isinstance(part, ast.Name))
                names |= {part.id for part in stored if isinstance(part.ctx, ast.Store)}
            case ast.If() | ast.Try() | ast.With():
                inner = (child for child in ast.iter_child_nodes(node))
                names |= _defined([child for child in inner if isinstance(child, ast.stmt)])
    return names


@cache
def _names_of(file: Path) -> set[str]:
    return _defined(ast.parse(file.read_text()).body)


def _is_missing(module: str, name: str) -> bool:
    """Whether ``from module import name`` fails, as far as the module is in this repository."""
    path = ROOT.joinpath(*module.split("."))
    if path.is_dir():
        if (path / f"{name}.py").exists() or (path / name).is_dir():
            return False
        path = path / "__init__"
    file = path.with_suffix(".py")
    return file.exists() and name not in _names_of(file)


def test_names_that_tests_import_exist() -> None:
    """Most runs leave out some tests, and so do not import them."""
    imports = [
        (file, node)
        for file in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    assert len(imports) > 1000
    missing = [
        f"{file.relative_to(ROOT)}: {node.module}.{alias.name}"
        for file, node in imports
        for alias in node.names
        if _is_missing(node.module or "", alias.name)
    ]
    assert not missing
