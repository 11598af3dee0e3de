"""Who is being served.

Every request and every socket runs in tasks of its own, and tasks inherit what their maker's
context holds; so who the caller is need not be handed through each dialect, encoder and driver,
and cannot be forgotten on the way. The gate (service.gate) says it, once.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from service.auth.keys import Scope


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever holds a key. ``tenant`` and ``key_id`` are None where no keys are asked for."""

    key_id: str | None
    tenant: str | None
    scopes: frozenset[Scope]


#: Where no keys are asked for, everybody may do everything.
ANYBODY = Caller(None, None, frozenset(Scope))
#: Serves open addresses: it may do nothing that needs a key.
NOBODY = Caller(None, None, frozenset())

_caller: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


def current_caller() -> Caller:
    """Whom this task works for; the service's own tasks work for ANYBODY."""
    return _caller.get()


def serve_caller(caller: Caller) -> None:
    """From here on this task, and all that it starts, works for ``caller``."""
    _caller.set(caller)
