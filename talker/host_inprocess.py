"""Runs vLLM's engine in the talker process itself: one loop, no further process."""

from __future__ import annotations

import logging
from typing import Any

from ipc.child import ChildLink, LinkClosed
from talker.checkpoint import Checkpoint
from talker.messages import Abort, Failed, Generate, Step
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
        self, arguments: dict[str, Any], checkpoint: Checkpoint, stop_id: int, max_positions: int
    ) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._shape, self._stop = checkpoint.shape, stop_id
        self._max_positions = max_positions
        self._totals = Totals()
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(**arguments), stat_loggers=[logger_factory(self._totals)]
        )
        self._live: set[int] = set()

    def warm_up(self, request: Generate) -> None:
        """Speak one request to its end, so that the first client does not pay for it."""
        self._add(request)
        while self._live:
            self._finish(read_outputs(self._engine.step(), self._shape).rows)

    def run(self, link: ChildLink[Generate | Abort]) -> None:
        """Serve until the link closes (LinkClosed)."""
        while True:
            for message in link.receive(wait=not self._live):
                if isinstance(message, Generate):
                    self._take(message, link)
                else:
                    self._drop(message.handle)
                    link.send(Step(len(self._live), []))
            if self._live:
                self._step(link)

    def _take(self, request: Generate, link: ChildLink[Generate | Abort]) -> None:
        try:
            self._add(request)
        except LinkClosed:
            raise
        except Exception as error:
            refused = isinstance(error, (Refused, ValueError))
            log.exception("request not taken", extra={"handle": request.handle})
            self._drop(request.handle)
            link.send(Failed(request.handle, "refused" if refused else "broken", len(self._live)))

    def _add(self, request: Generate) -> None:
        params = sampling_params(request, self._shape.num_codebooks, self._stop)
        prompt = engine_input(request, self._shape, self._max_positions)
        self._engine.add_request(str(request.handle), prompt, params)
        self._live.add(request.handle)

    def _drop(self, handle: int) -> None:
        self._engine.abort_request([str(handle)])
        self._live.discard(handle)

    def _step(self, link: ChildLink[Generate | Abort]) -> None:
        outcome = read_outputs(self._engine.step(), self._shape)
        self._finish(outcome.rows)
        for handle in outcome.lost + outcome.broken:
            self._drop(handle)
        for handle in outcome.lost:
            link.send(Failed(handle, "lost", len(self._live)))
        for handle in outcome.broken:
            link.send(Failed(handle, "broken", len(self._live)))
        totals = self._totals
        link.send(Step(len(self._live), outcome.rows, totals.preempted, totals.cached))

    def _finish(self, rows: list[Any]) -> None:
        for new in rows:
            if new.finish:
                self._live.discard(new.handle)
