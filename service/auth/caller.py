"""The caller of a request: its key, tenant and scopes.

The gate (service.access.gate) sets the caller once in the task of a request or socket. The tasks
that it starts inherit it, so every log line names the key. Objects that outlive a call (a context,
a lease) store their caller, and other callbacks run inside ``serving`` or a copy of the context.
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
    """The holder of a key or, with ``by_token``, of one of its tokens. ``tenant`` and ``key_id``
    are None if no keys are needed. ``network``: see ``network_of``.
    """

    key_id: str | None
    tenant: str | None
    scopes: frozenset[Scope]
    by_token: bool = False
    network: str = ""

    @property
    def client(self) -> str:
        """The unit among which slots are shared: the tenant or, without keys, the network."""
        return self.network if self.tenant is None else f"tenant {self.tenant}"


#: The caller if no keys are needed; it has all scopes.
ANYBODY = Caller(None, None, frozenset(Scope))
#: The caller of open routes; it has no scopes.
NOBODY = Caller(None, None, frozenset())

#: Prefix length of the smallest usual IPv6 network: one client can use all of its addresses.
_IPV6_BITS = 64


def network_of(address: str) -> str:
    """Return the part of an address that a client cannot change at will: for IPv6, its /64."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address  # of a Unix socket, or a name set by a proxy
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found.packed, _IPV6_BITS), strict=False))


_caller: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


def current_caller() -> Caller:
    """Return the caller of the current task; ANYBODY in the service's own tasks."""
    return _caller.get()


def serve_caller(caller: Caller) -> None:
    """Set the caller of this task and of the tasks that it starts from now on."""
    _caller.set(caller)


@contextmanager
def serving(caller: Caller) -> Iterator[None]:
    """Set the caller during the block, in a callback outside the caller's tasks."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)
