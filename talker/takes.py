"""Requests in the talker process, across pauses.

A request whose consumer does not take its rows is *paused*: the engine lets go of it, and
what is kept is the prompt and the ids of the frames it has made. To resume, the same ids go
in as a prompt. The frame table still holds what they stand for, the noise depends on the
position alone, and the prefix cache has most of the blocks: so the rows go on as if nothing
had happened, at the cost of a short prefill. (If the table has gone round meanwhile, the
epoch check fails the request instead of letting it speak something else.)

To the engine each stretch between pauses is a request of its own, ``handle.stretch``, so
that a late output of an aborted one is recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from talker.frames import FRAME_BASE
from talker.messages import Generate


@dataclass(slots=True)
class Take:
    """One request: what was asked, the ids of its frames so far, and its present stretch."""

    request: Generate
    frame_ids: list[int] = field(default_factory=list)
    stretch: int = 0
    paused: bool = False

    @property
    def engine_id(self) -> str:
        """The request id of the present stretch."""
        return f"{self.request.handle}.{self.stretch}"

    @property
    def frames_left(self) -> int:
        """How many more frames may be made."""
        return self.request.max_frames - len(self.frame_ids)

    def note(self, ids: Sequence[int]) -> None:
        """The engine made these; the stop id among them is no frame."""
        self.frame_ids += [i for i in ids if i >= FRAME_BASE]

    def resume(self) -> None:
        """A new stretch begins."""
        self.stretch += 1
        self.paused = False


class Takes:
    """All requests that the gateway has not seen the end of, by handle."""

    def __init__(self) -> None:
        self._takes: dict[int, Take] = {}

    @property
    def live(self) -> int:
        """Those that the engine works on."""
        return sum(not take.paused for take in self._takes.values())

    def __contains__(self, handle: int) -> bool:
        return handle in self._takes

    def add(self, request: Generate) -> Take:
        """A request has come."""
        take = self._takes[request.handle] = Take(request)
        return take

    def drop(self, handle: int) -> Take | None:
        """A request has ended or is wanted no more; None if that was known."""
        return self._takes.pop(handle, None)

    def pause(self, handle: int) -> Take | None:
        """Mark as paused; None if there is nothing to pause."""
        take = self._takes.get(handle)
        if take is None or take.paused:
            return None
        take.paused = True
        return take

    def resume(self, handle: int) -> Take | None:
        """Begin a new stretch; None if there is nothing to resume."""
        take = self._takes.get(handle)
        if take is None or not take.paused:
            return None
        take.resume()
        return take

    def of(self, engine_id: str) -> Take | None:
        """The request whose present stretch has this id; None for what is out of date."""
        take = self._takes.get(int(engine_id.partition(".")[0]))
        return take if take is not None and take.engine_id == engine_id else None
