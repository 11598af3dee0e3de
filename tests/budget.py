"""The budget of code: statements in each folder, against the ceilings in pyproject.toml.

Run by ``make check`` as ``python -m tests.budget``. Statements are counted in the syntax tree, so
line breaks and comments are free. Docstrings are free too. A packed assignment (``a, b = 1, 2`` or
``a = b = 1``) counts as one statement per value, so packing saves nothing.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Share of a ceiling that may stay unused before lowering it is suggested.
_SLACK = 0.03
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def count_statements(source: str) -> int:
    """Return the number of statements in Python source."""
    count = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign):
            count += sum(_values(target, node.value) for target in node.targets)
        elif isinstance(node, ast.stmt):
            count += 1
        if isinstance(node, _Documented) and ast.get_docstring(node, clean=False) is not None:
            count -= 1
    return count


def _values(target: ast.expr, value: ast.expr) -> int:
    """The number of values that an assignment writes out for a target."""
    match target, value:
        case ast.Tuple(elts=elements), ast.Tuple():
            return len(elements)
    return 1


def measure(root: Path) -> dict[str, int]:
    """Return the statements in each folder of ``root``, by the folder's name."""
    counts: Counter[str] = Counter()
    for file in root.glob("[a-z]*/**/*.py"):
        path = file.relative_to(root)
        if "node_modules" not in path.parts:
            counts[path.parts[0]] += count_statements(file.read_text())
    return dict(counts)


def read_ceilings(root: Path) -> dict[str, int]:
    """Return the ceilings in ``root``'s pyproject.toml, by folder."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    return dict(project["tool"]["talkwire"]["budget"])


def find_excess(counts: Mapping[str, int], ceilings: Mapping[str, int]) -> list[str]:
    """Return a line for each folder that is over its ceiling, or that only one of the two has."""
    lines = []
    for folder in sorted({*counts, *ceilings}):
        if folder not in ceilings:
            lines.append(f"{folder}: {counts[folder]:,} statements without a ceiling: add one")
        elif folder not in counts:
            lines.append(f"{folder}: a ceiling without code: remove it")
        elif (excess := counts[folder] - ceilings[folder]) > 0:
            lines.append(
                f"{folder}: {counts[folder]:,} statements, {excess:,} over its ceiling of "
                f"{ceilings[folder]:,}"
            )
    return lines


def find_slack(counts: Mapping[str, int], ceilings: Mapping[str, int]) -> list[str]:
    """Return a line for each folder that has shrunk well below its ceiling."""
    return [
        f"{folder}: the ceiling of {ceilings[folder]:,} can be lowered to {round(count * 1.01):,}"
        for folder, count in sorted(counts.items())
        if count < ceilings.get(folder, 0) * (1 - _SLACK)
    ]


def main() -> int:
    """Check this repository. Returns the exit status."""
    counts, ceilings = measure(ROOT), read_ceilings(ROOT)
    excess = find_excess(counts, ceilings)
    for line in excess or find_slack(counts, ceilings):
        print(line)
    if excess:
        print(
            "Take out what is no longer needed. To raise a ceiling ([tool.talkwire.budget] in "
            "pyproject.toml),\nsay why, and what was taken out, in the body of the commit."
        )
        return 1
    print(f"Code is within its budget: {sum(counts.values()):,} statements.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
