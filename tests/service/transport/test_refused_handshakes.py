"""Refused handshakes carry the request id of their log record, in every dialect."""

from __future__ import annotations

import logging

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.service.live import gateway

SOCKETS = [
    "/v1/tts/stream",
    "/v1/speak",
    "/tts/websocket?cartesia_version=2025-04-16",
    "/v1/text-to-speech/default/stream-input",
    "/v1/text-to-speech/default/multi-stream-input",
    "/v1/audio/speech/stream",
]


@pytest.mark.parametrize("path", SOCKETS)
async def test_refused_handshake_has_request_id_of_log_record(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with gateway() as server:
        server.runtime.begin_drain()
        with pytest.raises(InvalidStatus) as refused:
            async with connect(server.url.removesuffix(SOCKETS[0]) + path):
                pass
        assert refused.value.response.status_code == 503
        found = refused.value.response.headers["x-request-id"]
    told = [r for r in caplog.records if getattr(r, "request_id", None) == found]
    assert [getattr(r, "code", None) for r in told] == ["draining"]
