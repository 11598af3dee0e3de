"""Limits on the time and number of connections for which the server waits."""

from __future__ import annotations

import ssl
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

from service.auth.caller import network_of
from service.transport.intake import ParseTurns

#: Multiple of ``slow_consumer_s`` in which a client may take nothing while it has audio to play. If
#: it reads as fast as it plays, it makes room in the system's buffers in large steps, at 32 kbit/s
#: tens of seconds apart.
PATIENCE = 6
#: Seconds between a deadline and its consequence. After a pause of the process, timers may fire
#: before anything is read or written; what had arrived meanwhile is then handled first.
SECOND_LOOK_S = 0.05


def unmapped(client: tuple[str, int] | None) -> tuple[str, int] | None:
    """Return an address without IPv6's prefix for IPv4, as trusted proxies are named."""
    return client and (client[0].removeprefix("::ffff:"), client[1])


def network_of_client(client: tuple[str, int] | None) -> str:
    """Return the network of an address, among which connections and turns are shared."""
    return network_of(client[0]) if client else ""


class WaitingConnection(Protocol):
    """A connection that owes a handshake, a request or its rest."""

    #: See ``network_of_client``.
    network: str

    def turn_away(self) -> None:
        """Close for newer connections."""


#: Connections in the order in which they are given up.
_Queue = OrderedDict[WaitingConnection, None]


@dataclass
class ConnectionLimits:
    """Limits on connections for which the server waits, since they owe a handshake, a request or
    its rest. With ``tls``, each begins with a TLS handshake.
    """

    head_s: float
    most_waiting: int
    slow_consumer_s: float
    tls: ssl.SSLContext | None = None
    turns: ParseTurns = field(default_factory=ParseTurns)
    #: By network, those that have sent nothing of what they owe, and those that are sending it.
    _waiting: dict[str, tuple[_Queue, _Queue]] = field(default_factory=dict)
    _count: int = 0

    def wait_for(self, connection: WaitingConnection, *, is_sending: bool = False) -> None:
        """Add a connection, or note that it is sending what it owes. If there are too many, the
        network with the most gives up one: the oldest that has sent nothing or, without any, the
        one that has been silent for the longest time.
        """
        self.forget(connection)
        queues = self._waiting.setdefault(connection.network, (OrderedDict(), OrderedDict()))
        queues[is_sending][connection] = None
        self._count += 1
        if self._count > self.most_waiting:
            silent, sending = max(self._waiting.values(), key=lambda both: sum(map(len, both)))
            given_up = next(iter(silent or sending))
            self.forget(given_up)
            given_up.turn_away()

    def forget(self, connection: WaitingConnection) -> None:
        """Remove a connection that owes nothing any more, if it is there."""
        queues = self._waiting.get(connection.network, ())
        for queue in queues:
            if connection in queue:
                del queue[connection]
                self._count -= 1
                if not any(queues):
                    del self._waiting[connection.network]
                return
