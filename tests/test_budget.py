"""The budget of code: what counts as a statement, and which folders are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.budget import count_statements, find_excess, find_slack, measure


@pytest.mark.parametrize(
    ("source", "statements"),
    [
        ("", 0),
        ("# a comment\n", 0),
        ("x = 1\n", 1),
        ("x = f(\n    1,\n    2,\n)\n", 1),
        ("x: int = 1\nx += 1\n", 2),
        ("if a:\n    b()\nelif c:\n    d()\nelse:\n    e()\n", 5),
        ("try:\n    a()\nexcept E:\n    b()\nfinally:\n    c()\n", 4),
        ("match a:\n    case 1:\n        b()\n    case _:\n        pass\n", 3),
        ("x = [a for a in b if a]\n", 1),
        # Docstrings are free, other strings are not.
        ('"""A module."""\nimport a\n', 1),
        ('class A:\n    """A class."""\n', 1),
        ('async def f():\n    """A function."""\n    return 1\n', 2),
        ('def f():\n    pass\n    "a remark"\n', 3),
        # Packing saves nothing.
        ("a, b = 1, 2\n", 2),
        ("a = b = 1\n", 2),
        ("a, b = c, d = 1, 2\n", 4),
        # Taking apart one value is one statement.
        ("a, b = f()\n", 1),
        ("for a, b in c:\n    pass\n", 2),
    ],
)
def test_statements_are_counted_without_docstrings_and_packing(
    source: str, statements: int
) -> None:
    assert count_statements(source) == statements


def test_statements_of_all_files_of_a_folder_are_added(tmp_path: Path) -> None:
    for name, source in {
        "one/a.py": "x = 1\ny = 2\n",
        "one/deep/er/b.py": "x = 1\n",
        "two/c.py": "x = 1\n",
        "two/notes.txt": "x = 1\n",
        "two/js/node_modules/d.py": "x = 1\n",
        ".venv/e.py": "x = 1\n",
        "setup.py": "x = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    assert measure(tmp_path) == {"one": 3, "two": 1}


def test_folder_over_its_ceiling_is_reported_with_its_excess() -> None:
    counts = {"service": 1234, "text": 100, "codec": 7}
    assert find_excess(counts, {"service": 1200, "text": 100, "codec": 8}) == [
        "service: 1,234 statements, 34 over its ceiling of 1,200"
    ]


def test_folder_without_ceiling_and_ceiling_without_folder_are_reported() -> None:
    assert find_excess({"new": 5, "text": 1}, {"gone": 5, "text": 1}) == [
        "gone: a ceiling without code: remove it",
        "new: 5 statements without a ceiling: add one",
    ]


def test_lower_ceiling_is_suggested_once_code_has_shrunk() -> None:
    ceilings = {"text": 1000, "codec": 1000}
    assert find_slack({"text": 969, "codec": 971}, ceilings) == [
        "text: the ceiling of 1,000 can be lowered to 979"
    ]
