"""Pipecat's contexts that are open on the server; no I/O.

A context is opened with its first text. It is forgotten when the server has closed or refused it,
or was told to cancel it. Later messages for it are then ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class OpenContext:
    """A context that the server has been asked to open.

    ``base_s`` is the zero of Pipecat's word clock in the context's own time: 0 unless Pipecat ended
    the context for a while because nothing arrived.
    """

    context_id: str
    handle: int | None = None
    ended: bool = False
    base_s: float = 0.0
    rebase: bool = False


class Contexts:
    """The open contexts of one connection. ``on_forgotten`` is called when some were forgotten."""

    def __init__(self, on_forgotten: Callable[[], None] = lambda: None) -> None:
        self._by_id: dict[str, OpenContext] = {}
        self._by_handle: dict[int, OpenContext] = {}
        self._on_forgotten = on_forgotten

    def __len__(self) -> int:
        return len(self._by_id)

    def ids(self) -> list[str]:
        """Return the ids of the open contexts."""
        return list(self._by_id)

    @property
    def wait_for_text(self) -> bool:
        """Whether one of them is open whose text has not ended."""
        return any(not context.ended for context in self._by_id.values())

    def is_full(self, max_contexts: float) -> bool:
        """Whether ``max_contexts`` contexts are open, and one of them ends without further text."""
        return len(self) >= max_contexts and any(context.ended for context in self._by_id.values())

    def get(self, context_id: str | None) -> OpenContext | None:
        """Return the context of this id, if it is open."""
        return None if context_id is None else self._by_id.get(context_id)

    def of_handle(self, handle: int) -> OpenContext | None:
        """Return the open context of a binary message; None if it was forgotten."""
        return self._by_handle.get(handle)

    def add(self, context_id: str) -> None:
        """Add a context that the server is being asked to open."""
        self._by_id[context_id] = OpenContext(context_id)

    def on_created(self, context_id: str, handle: int) -> None:
        """Record the handle of a context that the server has opened. Handles are reused."""
        self._by_handle.pop(handle, None)
        if context := self._by_id.get(context_id):
            context.handle = handle
            self._by_handle[handle] = context

    def forget(self, context_id: str) -> bool:
        """Forget a context. Returns whether it was open."""
        context = self._by_id.pop(context_id, None)
        if context is not None and context.handle is not None:
            self._by_handle.pop(context.handle, None)
        self._on_forgotten()
        return context is not None

    def clear(self) -> None:
        """Forget all contexts, since the connection is gone."""
        self._by_id.clear()
        self._by_handle.clear()
        self._on_forgotten()
