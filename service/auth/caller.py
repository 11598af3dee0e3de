"""The caller of a request: its key, tenant and scopes.

The gate (service.access.gate) identifies the caller once, for the task that serves the request or
the socket; the tasks that it starts inherit it, so every log line names the key. What outlives a
call (a socket, a context, a lease) keeps its caller, and other callbacks run inside ``serving``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from service.auth.keys import Scope


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a key or, with ``by_token``, of a token of it. ``tenant`` and ``key_id`` are
    None where no keys are asked for. ``network``: see ``network_of``.
    """

    key_id: str | None
    tenant: str | None
    scopes: frozenset[Scope]
    by_token: bool = False
    network: str = ""

    @property
    def client(self) -> str:
        """With whom it shares what is shared out: its tenant or, without keys, its network."""
        return self.network if self.tenant is None else f"tenant {self.tenant}"


#: Where no keys are asked for, everybody may do everything.
ANYBODY = Caller(None, None, frozenset(Scope))
#: Serves open addresses: it may do nothing that needs a key.
NOBODY = Caller(None, None, frozenset())

#: Of an IPv6 address so many bits are one network's: whoever has one address has all of these.
_IPV6_BITS = 64


def network_of(address: str) -> str:
    """The part of an address that a client cannot change at will: of IPv6 the first half."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address  # a Unix socket's, or a name that a proxy gave
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found.packed, _IPV6_BITS), strict=False))


_caller: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


def current_caller() -> Caller:
    """The caller that this task serves; the service's own tasks serve ANYBODY."""
    return _caller.get()


def serve_caller(caller: Caller) -> None:
    """Serve ``caller`` from here on, in this task and all that it starts."""
    _caller.set(caller)


@contextmanager
def serving(caller: Caller) -> Iterator[None]:
    """Serve ``caller`` while the block runs, in a callback that is not of the caller's tasks."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)
