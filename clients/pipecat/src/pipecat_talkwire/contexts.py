"""Which of Pipecat's contexts are open on the server; no I/O.

A context is opened with its first text. It is forgotten when the server has closed it, refused
it, or was told to cancel it: what still comes for it then is nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class OpenContext:
    """A context that the server has been asked to open.

    ``base_s`` is where Pipecat's clock of words began, in the context's own time: 0 unless
    Pipecat gave the context up for a while because nothing came.
    """

    context_id: str
    handle: int | None = None
    ended: bool = False
    base_s: float = 0.0
    rebase: bool = False


class Contexts:
    """The open contexts of one connection."""

    def __init__(self) -> None:
        self._by_id: dict[str, OpenContext] = {}
        self._by_handle: dict[int, OpenContext] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, context_id: str | None) -> OpenContext | None:
        """The context of this id, if it is open."""
        return None if context_id is None else self._by_id.get(context_id)

    def of_handle(self, handle: int) -> OpenContext | None:
        """The open context that a binary message is for; None if it is of a forgotten one."""
        return self._by_handle.get(handle)

    def add(self, context_id: str) -> None:
        """The server is being asked to open a context."""
        self._by_id[context_id] = OpenContext(context_id)

    def on_created(self, context_id: str, handle: int) -> None:
        """The server has opened it. A handle may have been another context's before."""
        self._by_handle.pop(handle, None)
        if context := self._by_id.get(context_id):
            context.handle = handle
            self._by_handle[handle] = context

    def forget(self, context_id: str) -> bool:
        """Expect nothing more for this context; whether anything was expected."""
        context = self._by_id.pop(context_id, None)
        if context is not None and context.handle is not None:
            self._by_handle.pop(context.handle, None)
        return context is not None

    def clear(self) -> None:
        """The connection is gone, and all its contexts with it."""
        self._by_id.clear()
        self._by_handle.clear()
