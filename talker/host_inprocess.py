"""Runs vLLM's engine in the talker process itself: one loop, no further process."""

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
from talker.stream_interval import StreamIntervals
from talker.takes import Take, Takes
from talker.vllm_requests import Refused, engine_input, read_outputs, sampling_params
from talker.vllm_stats import Totals, logger_factory

log = logging.getLogger(__name__)


class InProcessHost:
    """Steps an LLMEngine and looks into the inbox between steps.

    An exception out of a step cannot be laid at one request's door and leaves the engine in
    an unknown state, so it ends the process: the gateway tells everyone to try again and
    starts a new one. What can be known to be bad is refused before it gets that far.
    """

    def __init__(
        self, arguments: dict[str, Any], checkpoint: Checkpoint, stop_id: int, takes: Takes
    ) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._shape, self._stop = checkpoint.shape, stop_id
        self._max_positions = arguments["max_model_len"]
        self._totals = Totals()
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(**arguments), stat_loggers=[logger_factory(self._totals)]
        )
        self._takes = takes
        self._intervals = StreamIntervals(self._engine.output_processor)

    def warm_up(self, request: Generate) -> None:
        """Speak one request to its end, so that the first client does not pay for it."""
        take = self._takes.add(request)
        assert take is not None
        self._add(take)
        while self._takes.live:
            self._finish(read_outputs(self._engine.step(), self._shape, self._takes).rows)

    def run(self, link: ChildLink[FromGateway]) -> None:
        """Serve until the link closes (LinkClosed)."""
        while True:
            for message in link.receive(wait=not self._takes.live):
                self._handle(message, link)
            if self._takes.live:
                self._step(link)

    def _handle(self, message: FromGateway, link: ChildLink[FromGateway]) -> None:
        match message:
            case Generate():
                if take := self._takes.add(message):
                    self._try_add(take, link)
                else:
                    link.send(Failed(message.handle, "gone", self._takes.live))
            case Abort(handle):
                self._drop(handle)
                link.send(Step(self._takes.live, []))
            case Pause(handle):
                if take := self._takes.pause(handle):
                    self._engine.abort_request([take.engine_id])
                link.send(Step(self._takes.live, []))
            case Resume(handle):
                if take := self._takes.resume(handle):
                    self._try_add(take, link)
            case StreamInterval(handle, rows):
                if take := self._takes.gather(handle, rows):
                    self._intervals.set(take.engine_id, rows)
            case Forget(conversation):
                self._takes.forget(conversation)

    def _try_add(self, take: Take, link: ChildLink[FromGateway]) -> None:
        handle = take.request.handle
        try:
            self._add(take)
        except Exception as error:
            refused = isinstance(error, (Refused, ValueError))
            log.exception("request not taken", extra={"handle": handle})
            self._drop(handle)
            link.send(Failed(handle, "refused" if refused else "broken", self._takes.live))

    def _add(self, take: Take) -> None:
        prompt = engine_input(take, self._shape, self._max_positions)
        params = sampling_params(take, self._shape.num_codebooks, self._stop)
        self._engine.add_request(take.engine_id, prompt, params)
        self._intervals.set(take.engine_id, take.gathered)

    def _drop(self, handle: int) -> None:
        take = self._takes.drop(handle)
        if take is not None and not take.paused:
            self._engine.abort_request([take.engine_id])

    def _step(self, link: ChildLink[FromGateway]) -> None:
        outcome = read_outputs(self._engine.step(), self._shape, self._takes)
        self._intervals.settle()
        self._finish(outcome.rows)
        for handle in outcome.lost:
            self._fail(handle, "gone" if self._takes.lose(handle) else "lost", link)
        for handle in outcome.broken:
            self._fail(handle, "broken", link)
        totals = self._totals
        link.send(Step(self._takes.live, outcome.rows, totals.preempted, totals.cached))

    def _fail(self, handle: int, reason: Any, link: ChildLink[FromGateway]) -> None:
        self._drop(handle)
        link.send(Failed(handle, reason, self._takes.live))

    def _finish(self, rows: list[NewRows]) -> None:
        for new in rows:
            if new.finish:
                self._takes.end(new.handle, new.finish)
