"""The host that steps vLLM's engine core in the talker process itself."""

from __future__ import annotations

from typing import Any

from ipc.child import ChildLink
from talker.host import Host
from talker.messages import FromGateway, Generate
from talker.request_table import RequestState
from talker.vllm_core import RequestMaker, start_inprocess


class InProcessHost(Host):
    """Steps an engine core, and reads the inbox between steps.

    An exception in a step cannot be attributed to one request and leaves the engine in an unknown
    state, so it ends the process. The gateway then tells all clients to try again and starts a new
    process. Requests that are known to be bad are refused before they reach a step.
    """

    def _start_engine(self, arguments: dict[str, Any]) -> RequestMaker:
        self._core, requests = start_inprocess(arguments)
        return requests

    def warm_up(self, request: Generate) -> None:
        """Speak one request to its end, so that the first client does not wait for the warm-up."""
        state = self._requests.add(request)
        assert state is not None
        self._submit(self._engine_request(state, state.engine_id))
        while self._requests.live:
            self._read(self._core.get_output())

    def run(self, link: ChildLink[FromGateway]) -> None:
        """Serve until the link closes (LinkClosed)."""
        self._link = link
        while True:
            for message in link.receive(wait=not self._requests.live):
                self._handle(message)
            if self._requests.live:
                self._send_step(self._read(self._core.get_output()))

    def _submit(self, request: Any) -> None:
        self._core.add_request(request)

    def _abort(self, state: RequestState) -> None:
        self._core.abort_requests([state.engine_id])
