"""How long the body of a response waits for a client that takes nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Response
from starlette.types import Message

from service.metrics import Metrics
from service.settings import Settings
from service.transport.http_response import ResponseBody
from streaming.errors import CapacityError, ErrorCode


@pytest.mark.parametrize(
    ("unplayed_s", "settings", "is_draining", "waits_s"),
    [
        (0.0, {}, False, 10.0),
        (7.5, {}, False, 17.5),
        (1000.0, {}, False, 60.0),  # six times slow_consumer_s
        (1000.0, {"drain_s": 30.0}, False, 40.0),  # a drain may begin meanwhile
        (1000.0, {}, True, 10.0),
    ],
)
async def test_body_waits_longer_for_client_that_has_audio_left(
    unplayed_s: float,
    settings: dict[str, Any],
    is_draining: bool,
    waits_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeout, waited = asyncio.timeout, list[float | None]()

    def expire(delay: float | None) -> asyncio.Timeout:
        waited.append(delay)
        return timeout(0)

    async def never(message: Message) -> None:
        await asyncio.Event().wait()

    runtime: Any = SimpleNamespace(
        settings=Settings(slow_consumer_s=10.0, **settings),
        lifecycle=SimpleNamespace(is_draining=is_draining),
        metrics=Metrics("test", "fake"),
    )
    body = ResponseBody(Response(), never, runtime, lambda now: unplayed_s)
    monkeypatch.setattr(asyncio, "timeout", expire)
    with pytest.raises(CapacityError) as slow:
        await body.put(b"audio")
    assert (slow.value.code, body.stuck) == (ErrorCode.SLOW_CONSUMER, True)
    assert waited == [waits_s]
