"""Imports of tests: of helper modules, never of ``test_*.py``."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = [
    file for name in ("tests", "training/tests") for file in sorted((ROOT / name).rglob("*.py"))
]


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
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in TESTS
        if file.name.startswith("test_")
    }
    wrong = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in TESTS
        for name in _imports(file)
        if any(name == module or name.startswith(f"{module}.") for module in modules)
    ]
    assert not wrong
