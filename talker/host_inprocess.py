"""The host that steps vLLM's engine in the talker process itself, without a further process."""

from __future__ import annotations

import logging
from typing import Any

from ipc.child import ChildLink
from talker.host import Host
from talker.messages import FromGateway, Generate
from talker.request_table import RequestState
from talker.vllm_requests import Refused
from talker.vllm_setup import logger_factory

log = logging.getLogger(__name__)


class InProcessHost(Host):
    """Steps an LLMEngine, and reads the inbox between steps.

    An exception in a step cannot be attributed to one request and leaves the engine in an unknown
    state, so it ends the process. The gateway then tells all clients to try again and starts a new
    process. Requests that are known to be bad are refused before they reach a step.
    """

    def _start_engine(self, arguments: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._engine = LLMEngine.from_engine_args(
            EngineArgs(**arguments), stat_loggers=[logger_factory(self._totals)]
        )

    def warm_up(self, request: Generate) -> None:
        """Speak one request to its end, so that the first client does not wait for the warm-up."""
        state = self._requests.add(request)
        assert state is not None
        self._add(state)
        while self._requests.live:
            self._read(self._engine.step())

    def run(self, link: ChildLink[FromGateway]) -> None:
        """Serve until the link closes (LinkClosed)."""
        self._link = link
        while True:
            for message in link.receive(wait=not self._requests.live):
                self._handle(message)
            if self._requests.live:
                self._send_step(self._read(self._engine.step()))

    def _begin(self, state: RequestState) -> None:
        handle = state.request.handle
        try:
            self._add(state)
        except Exception as error:
            refused = isinstance(error, (Refused, ValueError))
            log.exception("request %d not taken", handle)
            self._fail(handle, "refused" if refused else "broken")

    def _add(self, state: RequestState) -> None:
        self._engine.add_request(state.engine_id, *self._inputs(state))

    def _abort(self, state: RequestState) -> None:
        self._engine.abort_request([state.engine_id])
