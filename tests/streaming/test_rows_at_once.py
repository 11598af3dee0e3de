"""Number of rows that the talker sends together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streaming.utterance_queue import rows_at_once

SECONDS = st.floats(0, 10)


@given(st.sampled_from([1, 4, 8]), SECONDS, SECONDS)
def test_rows_at_once_are_generated_within_delay(
    present: int, delay_s: float, row_s: float
) -> None:
    rows = rows_at_once(present, delay_s, row_s)
    assert rows == 1 or 0 < rows * row_s <= delay_s
    assert rows <= present or 2 * rows * row_s <= delay_s
    assert rows_at_once(rows, delay_s, row_s) == rows, "once told, it stays"


def test_rows_at_once_grow_with_delay() -> None:
    assert [rows_at_once(1, s, 1.0) for s in (0.0, 7.9, 8.0, 15.9, 16.0)] == [1, 1, 4, 4, 8]
    assert [rows_at_once(8, s, 1.0) for s in (8.0, 7.9, 4.0, 3.9)] == [8, 4, 4, 1]
    assert rows_at_once(1, 0.4, 0.0) == 1, "nobody knows how fast they come"
