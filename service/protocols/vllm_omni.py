"""vLLM-Omni's ``WS /v1/audio/speech/stream`` (docs/dialects.md): sessions in its words."""

from __future__ import annotations

import json
import math

from fastapi import FastAPI, Response, WebSocket
from fastapi.responses import JSONResponse

from service.handshake import serve_socket
from service.http_route import ACCESS_STATUS
from service.protocols.vllm_omni_socket import StreamDialect
from service.protocols.vllm_omni_units import error_message
from service.runtime import Runtime
from streaming.errors import ErrorCode, TalkwireError


def add_vllm_omni(app: FastAPI, runtime: Runtime) -> None:
    """Add the route of this dialect."""

    @app.websocket("/v1/audio/speech/stream")
    async def stream(websocket: WebSocket) -> None:
        await serve_socket(
            websocket,
            runtime,
            lambda socket, tasks: StreamDialect(runtime, socket.outbox, tasks),
            refusal,
        )


def refusal(error: TalkwireError, request_id: str = "") -> Response:
    """The answer to a handshake that cannot be served."""
    status = 429 if error.code is ErrorCode.OVERLOADED else ACCESS_STATUS.get(error.code, 503)
    headers = {"x-request-id": request_id} if request_id else {}
    if status in (429, 503):
        headers["retry-after"] = str(math.ceil((error.retry_after_ms or 1000) / 1000))
    return JSONResponse(json.loads(error_message(error)), status, headers)
