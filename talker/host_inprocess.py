"""The host that steps vLLM's engine in the talker process itself, without a further process."""

from __future__ import annotations

import logging
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
from talker.stream_interval import StreamIntervals
from talker.vllm_requests import Refused, engine_input, read_outputs, sampling_params
from talker.vllm_setup import Totals, logger_factory

log = logging.getLogger(__name__)


class InProcessHost:
    """Steps an LLMEngine and looks into the inbox between steps.

    An exception out of a step cannot be laid at one request's door and leaves the engine in
    an unknown state, so it ends the process: the gateway tells everyone to try again and
    starts a new one. What can be known to be bad is refused before it gets that far.
    """

    def __init__(
        self,
        arguments: dict[str, Any],
        checkpoint: Checkpoint,
        stop_id: int,
        requests: RequestTable,
    ) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._shape, self._stop = checkpoint.shape, stop_id
        self._max_positions = arguments["max_model_len"]
        self._totals = Totals()
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(**arguments), stat_loggers=[logger_factory(self._totals)]
        )
        self._requests = requests
        self._intervals = StreamIntervals(self._engine.output_processor)

    def warm_up(self, request: Generate) -> None:
        """Speak one request to its end, so that the first client does not pay for it."""
        state = self._requests.add(request)
        assert state is not None
        self._add(state)
        while self._requests.live:
            self._finish(read_outputs(self._engine.step(), self._shape, self._requests).rows)

    def run(self, link: ChildLink[FromGateway]) -> None:
        """Serve until the link closes (LinkClosed)."""
        while True:
            for message in link.receive(wait=not self._requests.live):
                self._handle(message, link)
            if self._requests.live:
                self._step(link)

    def _handle(self, message: FromGateway, link: ChildLink[FromGateway]) -> None:
        match message:
            case Generate():
                if state := self._requests.add(message):
                    self._try_add(state, link)
                else:
                    link.send(Failed(message.handle, "gone", self._requests.live))
            case Abort(handle):
                self._drop(handle)
                link.send(Step(self._requests.live, []))
            case Pause(handle):
                if state := self._requests.pause(handle):
                    self._engine.abort_request([state.engine_id])
                link.send(Step(self._requests.live, []))
            case Resume(handle):
                if state := self._requests.resume(handle):
                    self._try_add(state, link)
            case StreamInterval(handle, rows):
                if state := self._requests.gather(handle, rows):
                    self._intervals.set(state.engine_id, rows)
            case Forget(conversation):
                self._requests.forget(conversation)

    def _try_add(self, state: RequestState, link: ChildLink[FromGateway]) -> None:
        handle = state.request.handle
        try:
            self._add(state)
        except Exception as error:
            refused = isinstance(error, (Refused, ValueError))
            log.exception("request not taken", extra={"handle": handle})
            self._drop(handle)
            link.send(Failed(handle, "refused" if refused else "broken", self._requests.live))

    def _add(self, state: RequestState) -> None:
        prompt = engine_input(state, self._shape, self._max_positions)
        params = sampling_params(state, self._shape.num_codebooks, self._stop)
        self._engine.add_request(state.engine_id, prompt, params)
        self._intervals.set(state.engine_id, state.gathered)

    def _drop(self, handle: int) -> None:
        state = self._requests.drop(handle)
        if state is not None and not state.paused:
            self._engine.abort_request([state.engine_id])

    def _step(self, link: ChildLink[FromGateway]) -> None:
        outcome = read_outputs(self._engine.step(), self._shape, self._requests)
        self._intervals.settle()
        self._finish(outcome.rows)
        for handle in outcome.lost:
            self._fail(handle, "gone" if self._requests.lose(handle) else "lost", link)
        for handle in outcome.broken:
            self._fail(handle, "broken", link)
        totals = self._totals
        link.send(Step(self._requests.live, outcome.rows, totals.preempted, totals.cached))

    def _fail(self, handle: int, reason: Any, link: ChildLink[FromGateway]) -> None:
        self._drop(handle)
        link.send(Failed(handle, reason, self._requests.live))

    def _finish(self, rows: list[NewRows]) -> None:
        for new in rows:
            if new.finish:
                self._requests.end(new.handle, new.finish)
