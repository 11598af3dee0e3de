"""The work on a client's text grows no faster than the text, for all that its patterns repeat."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import text_work
from tests.fuzz.regex_steps import Steps, fragments, parse

#: Functions by name, and in how many parts their fragments are tried, each in some 20 s; all but
#: the first in the long tests.
GROUPS = [
    (6, ["english"]),
    (1, ["segmenter", "split", "turns", "words", "Higgs v2", "Higgs v2, speakers",
         "Higgs v3, tags", "Fish S2, speakers", "tokens of a body", "error"]),
    (1, ["english-sounds"]),
    (3, ["markup", "phonemes", "pronunciations"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "part", "parts"),
    [
        pytest.param(names, part, parts, marks=[pytest.mark.long] if part else [pytest.mark.slow])
        for parts, names in GROUPS
        for part in range(parts)
    ],
)
def test_work_is_linear_for_repeated_fragments(names: list[str], part: int, parts: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.text_work", str(part), str(parts), *names],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert found["patterns"] > 400
    assert found["fragments"] > 120 // parts


def test_every_function_is_in_a_group() -> None:
    names = [name for _, group in GROUPS for name in group]
    assert sorted(names) == sorted(text_work.functions())


#: A pattern whose search is not linear, and one that finds the same and is.
MENDED = [
    (r"\s*\n\s*", r"(?<!\s)\s*\n\s*"),
    (r"\[[^]]*\]", r"\[[^][]*\]"),
    (r"x*y*z", r"(?<![xy])x*+y*+z"),
    (r"(?:a|b)*c", r"(?<![ab])(?:a|b)*+c"),
]


def growth(pattern: str) -> float:
    """Return the largest growth of a search's steps at twice the length."""
    turns, growths = 8, []
    for fragment in fragments(parse(pattern, 0)):
        counts = []
        for count in (turns, 2 * turns):
            text, steps = fragment * count, Steps(pattern, 0)
            for start in range(len(text) + 1):
                steps.match(text, start, len(text))
            counts.append(steps.count)
        growths.append(counts[1] / counts[0])
    return max(growths)


@pytest.mark.parametrize(("bad", "good"), MENDED)
def test_generator_finds_search_that_is_not_linear(bad: str, good: str) -> None:
    assert growth(bad) > text_work.MOST_GROWTH > growth(good)


def test_generator_finds_exponential_pattern() -> None:
    assert growth(r"(?:a|a)*b") > 100
    assert growth(r"(a*)*b") > 100


@pytest.mark.parametrize(
    "pattern",
    [
        r"a+?b|a+c", r"(?:ab|a)(?:bc|c)?$", r"(a)(?:b\1)*", r"(?i)x[A-C]+(?<=c)", r"\b\w+\b(?!\.)",
        r"(?:a|ab)*+b", r"(?>a+)b|ab", r"^a.$", r"(?m)^b", r"(?s)a.b", r"(?P<n>a|b)+?(?P=n)",
        r"[^\W\d]+", r"\Z|b{2,3}?", r"(?:a?)*b", r"(?:a?b?)+?c", r"(?i:A)b",
    ],
)  # fmt: skip
def test_matcher_agrees_with_re(pattern: str) -> None:
    texts = ["", "a", "ab", "aab", "abab", "abbb", "bB.", "xABc", "a\nb", "abc1_", "aaac", "aba\n"]
    for text in texts:
        steps, real = Steps(pattern, 0), re.compile(pattern)
        for start in range(len(text) + 1):
            match = real.match(text, start)
            assert steps.match(text, start, len(text)) == (match.end() if match else -1), text
            match = real.fullmatch(text, start)
            found = steps.match(text, start, len(text), full=True)
            assert found == (match.end() if match else -1), text
