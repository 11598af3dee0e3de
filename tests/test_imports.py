"""Imports between tests: shared helpers live in helper modules, never in ``test_*.py``."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent


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
