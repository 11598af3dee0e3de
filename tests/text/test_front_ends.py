"""What every text front end promises for any text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.text_work import FIXED
from tests.text.front_ends import CASES, check
from tests.text.operations import operations
from tests.text.written import READING_CASES, UNIT, WRITTEN
from text.english.folding import fold

pytestmark = pytest.mark.parametrize("name", CASES)
_FRAGMENTS = st.tuples(st.sampled_from(FIXED), st.integers(40, 400)).map(
    lambda pair: pair[0] * (pair[1] // len(pair[0]))
)


@given(WRITTEN | _FRAGMENTS)
def test_front_end_keeps_its_promises_for_any_text(name: str, source: str) -> None:
    check(CASES[name], source)


def test_front_end_keeps_its_promises_for_reading_cases(name: str) -> None:
    for source, _ in READING_CASES:
        check(CASES[name], source)


@given(unit=UNIT)
@settings(max_examples=12, deadline=None)
def test_work_of_front_end_grows_linearly_with_length(name: str, unit: str) -> None:
    """Functions are counted here, and steps of patterns in tests/fuzz/test_linear_text.py."""

    def work(chars: int) -> int:
        text = (unit * chars)[:chars]
        return operations(lambda: CASES[name].read(text))

    work(100)  # fill caches
    long = work(1200)
    assert long < 5 * work(300) + 2000
    # "\u00bc" is folded to " 1/4 ", and "≥" is read as six words
    text = (unit * 1200)[:1200]
    assert long < 60 * (max(1200, len(fold(text).text)) + len(CASES[name].read(text).text))
