"""The base of both hosts of vLLM's engines: it begins, pauses and ends requests for the gateway."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ipc.child import ChildLink
from talker.checkpoint import Checkpoint
from talker.messages import (
    Abort,
    Failed,
    Forget,
    FromGateway,
    Generate,
    NewRows,
    Pause,
    Resume,
    Step,
    StreamInterval,
)
from talker.request_table import RequestState, RequestTable
from talker.vllm_requests import engine_input, read_outputs, sampling_params
from talker.vllm_setup import Totals


class Host(ABC):
    """Handles the gateway's messages with a vLLM engine, which a subclass starts and runs.

    Args:
        arguments: the engine's arguments.
        checkpoint: the checkpoint that the engine has loaded.
        stop_id: the token id that ends a request.
        requests: where requests are kept, from their first message to their last row.
    """

    def __init__(
        self,
        arguments: dict[str, Any],
        checkpoint: Checkpoint,
        stop_id: int,
        requests: RequestTable,
    ) -> None:
        self._shape, self._stop_id = checkpoint.shape, stop_id
        self._max_positions = arguments["max_model_len"]
        self._requests, self._totals = requests, Totals()
        self._link: ChildLink[FromGateway] | None = None
        self._start_engine(arguments)

    @abstractmethod
    def _start_engine(self, arguments: dict[str, Any]) -> None:
        """Start the engine; its statistics go to ``_totals``."""

    @abstractmethod
    def _begin(self, state: RequestState) -> None:
        """Submit a request's current stretch to the engine."""

    @abstractmethod
    def _abort(self, state: RequestState) -> None:
        """Abort a request's current stretch in the engine."""

    def _handle(self, message: FromGateway) -> None:
        match message:
            case Generate():
                if state := self._requests.add(message):
                    self._begin(state)
                else:
                    self._fail(message.handle, "gone")
            case Resume(handle):
                if state := self._requests.resume(handle):
                    self._begin(state)
            case Pause(handle):
                held = None
                if state := self._requests.pause(handle):
                    self._abort(state)
                    held = state.release()
                self._send_step([held] if held else [])
            case Abort(handle):
                self._drop(handle)
                self._send_step([])
            case StreamInterval(handle, rows):
                self._requests.gather(handle, rows)
            case Forget(conversation):
                self._requests.forget(conversation)

    def _inputs(self, state: RequestState) -> tuple[Any, Any]:
        """Return prompt and sampling parameters for the engine. Raises Refused."""
        prompt = engine_input(state, self._shape, self._max_positions)
        return prompt, sampling_params(state, self._shape.num_codebooks, self._stop_id)

    def _read(self, outputs: Sequence[Any]) -> list[NewRows]:
        """Return the rows to send from vLLM's outputs. Failed requests are dropped, and the gateway
        is told.
        """
        outcome = read_outputs(outputs, self._shape, self._requests)
        rows = [self._requests.collect(new) for new in outcome.rows]
        for handle in outcome.lost:
            self._fail(handle, "gone" if self._requests.lose(handle) else "lost")
        for handle in outcome.broken:
            self._break(handle)
        return [new for new in rows if new is not None]

    def _break(self, handle: int) -> None:
        """Handle a request that the engine gave up on."""
        self._fail(handle, "broken")

    def _fail(self, handle: int, reason: Any) -> None:
        state = self._drop(handle)
        if state is not None and (held := state.release()):
            self._send_step([held])
        self._send(Failed(handle, reason, self._requests.live))

    def _drop(self, handle: int) -> RequestState | None:
        state = self._requests.drop(handle)
        if state is not None and not state.paused:
            self._abort(state)
        return state

    def _send_step(self, rows: list[NewRows]) -> None:
        totals = self._totals
        self._send(Step(self._requests.live, rows, totals.preempted, totals.cached))

    def _send(self, message: Step | Failed) -> None:
        assert self._link is not None
        self._link.send(message)
