"""The base of both hosts of vLLM's engines: it begins, pauses and ends requests for the gateway."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any

from ipc.child import ChildLink
from talker.checkpoint import Checkpoint
from talker.messages import (
    Abort,
    AppendText,
    Failed,
    FailureReason,
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
from talker.vllm_core import RequestMaker, count_events
from talker.vllm_requests import Refused, engine_input, read_outputs, sampling_params
from talker.vllm_setup import Totals

log = logging.getLogger(__name__)
#: Requests that fail one after another by logits that are not finite, without a row of any between,
#: until the process ends.
_MAX_UNSOUND = 3


class EngineUnsound(Exception):
    """Every request's logits are broken, so the cause is this process: in vLLM's attention on a
    CPU, what is not a number once spoils all later requests, also those of other texts.
    """


class Host(ABC):
    """Handles the gateway's messages with engine cores of vLLM, which a subclass starts and runs.

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
        self._shape = checkpoint.shape
        self._stop_id = stop_id
        self._max_positions = arguments["max_model_len"]
        self._requests = requests
        self._totals = Totals()
        #: Requests that failed by their logits since the last row.
        self._unsound = 0
        self._link: ChildLink[FromGateway] | None = None
        self._cores = arguments.get("data_parallel_size", 1)
        self._make_request = self._start_engine(arguments)

    @abstractmethod
    def _start_engine(self, arguments: dict[str, Any]) -> RequestMaker:
        """Start the engine. Returns what makes its requests."""

    @abstractmethod
    def _submit(self, request: Any) -> None:
        """Hand a request to the engine."""

    @abstractmethod
    def _abort(self, state: RequestState) -> None:
        """Abort a request's current stretch in the engine."""

    def _handle(self, message: FromGateway) -> None:
        match message:
            case Generate():
                if (state := self._requests.add(message)) is None:
                    self._fail(message.handle, "gone")
                elif state.is_working:
                    self._begin(state)
                else:
                    self._send_step([state.release_waiting()])
            case AppendText():
                if state := self._requests.append(message):
                    self._begin(state)
            case Resume(handle, deadline_s):
                if state := self._requests.resume(handle, deadline_s):
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

    def _begin(self, state: RequestState) -> None:
        """Submit a request's current stretch to the engine."""
        handle = state.request.handle
        try:
            self._submit(self._engine_request(state, state.engine_id))
        except (Refused, ValueError):
            log.exception("request %d not taken", handle)
            self._fail(handle, "refused")
        except Exception:
            log.exception("request %d not taken", handle)
            self._break(handle)

    def _engine_request(self, state: RequestState, engine_id: str) -> Any:
        """Return vLLM's request. Raises Refused, or vLLM's ValueError."""
        prompt = engine_input(state, self._shape, self._max_positions)
        params = sampling_params(state, self._shape.num_codebooks, self._stop_id)
        rank = state.core if self._cores > 1 else None
        priority = int(1000 * state.deadline_s)
        return self._make_request(engine_id, prompt, params, rank, priority)

    def _read(self, outputs: Any) -> list[NewRows]:
        """Return the rows to send from the ``EngineCoreOutputs`` of a step, and count its events.
        Failed requests are dropped, and the gateway is told. An exception about one request's rows
        breaks that request alone. Raises EngineUnsound.
        """
        preempted, cached = count_events(outputs)
        self._totals.preempted += preempted
        self._totals.cached += cached
        outcome = read_outputs(outputs.outputs, self._shape, self._requests)
        rows = []
        for new in outcome.rows:
            try:
                ready = self._requests.collect(new)
            except Exception:
                log.exception("the rows of request %d cannot be kept", new.handle)
                outcome.failed[new.handle] = "broken"
            else:
                rows += [ready] if ready is not None else []
        for state in outcome.ended:
            if self._requests.end_stretch(state):
                self._begin(state)
            else:
                rows.append(state.release_waiting())
        for handle, reason in outcome.failed.items():
            if reason != "lost":
                self._break(handle, reason)
            else:
                self._fail(handle, "gone" if self._requests.lose(handle) else "lost")
        broken = sum(reason == "logits" for reason in outcome.failed.values())
        self._unsound = 0 if outcome.rows else self._unsound + broken
        if self._unsound >= _MAX_UNSOUND:
            raise EngineUnsound(f"the logits of {self._unsound} requests in a row are not finite")
        return rows

    def _break(self, handle: int, reason: FailureReason = "broken") -> None:
        """Handle a request that the engine gave up on."""
        self._fail(handle, reason)

    def _fail(self, handle: int, reason: FailureReason) -> None:
        state = self._drop(handle)
        if state is not None and (held := state.release()):
            self._send_step([held])
        self._send(Failed(handle, reason, self._requests.live))

    def _drop(self, handle: int) -> RequestState | None:
        state = self._requests.drop(handle)
        if state is not None and state.is_working:
            self._abort(state)
        return state

    def _send_step(self, rows: list[NewRows]) -> None:
        totals = self._totals
        self._send(Step(self._requests.live, rows, totals.preempted, totals.cached))

    def _send(self, message: Step | Failed) -> None:
        if self._link is None:  # only the warm-up comes before it
            raise ValueError(f"the model cannot speak the warm-up's text: {message}")
        self._link.send(message)
