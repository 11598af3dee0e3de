"""Rows that the talker sends together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.rows_together import rows_together

SECONDS = st.floats(0, 10)


@given(st.sampled_from([1, 4, 8]), SECONDS, SECONDS)
def test_what_is_waited_for_goes_into_the_nap(present: int, nap_s: float, row_s: float) -> None:
    rows = rows_together(present, nap_s, row_s)
    assert rows == 1 or 0 < rows * row_s <= nap_s
    assert rows <= present or 2 * rows * row_s <= nap_s
    assert rows_together(rows, nap_s, row_s) == rows, "once told, it stays"


def test_more_at_a_time_the_longer_the_nap() -> None:
    assert [rows_together(1, naps, 1.0) for naps in (0.0, 7.9, 8.0, 15.9, 16.0)] == [1, 1, 4, 4, 8]
    assert [rows_together(8, naps, 1.0) for naps in (8.0, 7.9, 4.0, 3.9)] == [8, 4, 4, 1]
    assert rows_together(1, 0.4, 0.0) == 1, "nobody knows how fast they come"
