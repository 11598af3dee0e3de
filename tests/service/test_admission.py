from __future__ import annotations

import pytest

from service.admission import Admission
from streaming.errors import CapacityError, ErrorCode


def test_places_are_counted_and_the_hint_follows_how_long_contexts_last() -> None:
    admission = Admission(2)
    admission.enter()
    admission.enter()
    with pytest.raises(CapacityError) as caught:
        admission.enter()
    assert caught.value.code is ErrorCode.OVERLOADED
    assert caught.value.retryable
    first_hint = caught.value.retry_after_ms
    admission.leave(60.0)
    admission.enter()
    with pytest.raises(CapacityError) as caught:
        admission.enter()
    assert first_hint is not None
    assert caught.value.retry_after_ms is not None
    assert caught.value.retry_after_ms > first_hint


def test_leaving_more_often_than_entering_is_a_mistake_of_ours() -> None:
    with pytest.raises(RuntimeError):
        Admission(1).leave(1.0)
