"""vLLM's ``stream_interval``, changed while a request runs.

An engine that hands out each row costs a message, a wake-up and a few objects for each. Whoever
listens to a stream that is seconds ahead does not need that. vLLM knows the interval as a
setting of the engine or of a request (``SamplingParams.stream_interval``) and has no public call
to change it. So this module writes to the ``RequestState`` of vLLM's output processor, which is
private to vLLM.
"""

from __future__ import annotations

from typing import Any


class StreamIntervals:
    """Sets the intervals of requests by the id that the engine was given for them.

    ``processor`` is the engine's ``OutputProcessor``.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._unsettled: set[str] = set()

    def set(self, engine_id: str, rows: int) -> None:
        """Rows come so many at a time from now on. One at a time is reached with the next rows
        if some are held back just now; until then :meth:`settle` must be called after each step.
        A request that is not known has just ended.
        """
        self._unsettled.discard(engine_id)
        for internal in self._processor.external_req_ids.get(engine_id, ()):
            if not _set(self._processor.request_states[internal], rows):
                self._unsettled.add(engine_id)

    def settle(self) -> None:
        """The engine has made a step."""
        for engine_id in tuple(self._unsettled):
            self.set(engine_id, 1)


def _set(state: Any, rows: int) -> bool:
    """False if that has to be asked for again.

    With an interval of 1 vLLM neither counts what it has sent nor sends what it held back. So
    the count is set right on the way up, and on the way down 2 has it send all with the next.
    """
    made = state.detokenizer.num_output_tokens()
    if state.stream_interval == 1:
        state.sent_tokens_offset = made
    is_held_back = made > state.sent_tokens_offset
    state.stream_interval = max(rows, 2) if is_held_back else rows
    return rows > 1 or not is_held_back
