"""Acknowledgement tracking: how far a socket's client has read, from its pongs.

TCP takes a minute and more of audio for a client that does not read. So a WebSocket ping
follows the audio: its pong says that everything before it has been read, by the client's own
library, whatever kernels and proxies hold in between (RFC 6455, 5.5.2 and 5.5.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from service.transport.uvicorn_protocols import PAYLOAD_BYTES, WebSocketProtocol

#: So much audio may go out without a ping while more is waiting.
_PING_BYTES = 32 * 1024


class AckTracker:
    """One socket's audio: what was written of each context, and what has been read.

    Without ``protocol`` nothing is known, and nobody is ever stuck. ``now`` is monotonic seconds.
    """

    def __init__(self, protocol: WebSocketProtocol | None = None) -> None:
        self._protocol = protocol
        self._followers: dict[int, Callable[[int], None]] = {}
        self._written: dict[int, int] = {}
        self._unpinged: dict[int, int] = {}
        self._unpinged_bytes = 0
        #: By handle, the samples written before each ping that has not been answered.
        self._pings: deque[dict[int, int]] = deque()
        self._count = 0
        self._waiting_since: float | None = None
        self._has_ponged = False
        if protocol is not None:
            protocol.on_pong = self._on_pong

    def follow(self, handle: int, on_read: Callable[[int], None]) -> None:
        """Tell ``on_read`` how many samples of a context's audio, as sent, have been read; it is
        called by the connection, not by a task of the caller's.
        """
        if self._protocol is not None:
            self._followers[handle] = on_read
            self._written[handle] = 0
            on_read(0)

    def forget(self, handle: int) -> None:
        """The context is over."""
        self._followers.pop(handle, None)
        self._written.pop(handle, None)

    def on_written(
        self, handle: int | None, samples: int, size: int, now: float, *, more: bool
    ) -> None:
        """A message was written, audio if it has ``samples``; ``more`` waits already. A ping
        follows audio, at the latest behind the last message that is there.
        """
        if self._protocol is None:
            return
        if handle in self._written:
            self._written[handle] += samples
            self._unpinged[handle] = self._written[handle]
        if samples or self._unpinged_bytes:
            self._unpinged_bytes += size
        if not self._unpinged_bytes or (more and self._unpinged_bytes < _PING_BYTES):
            return
        self._count += 1
        self._pings.append(self._unpinged)
        self._unpinged, self._unpinged_bytes = {}, 0
        if self._waiting_since is None:
            self._waiting_since = now
        self._protocol.ping(self._count.to_bytes(PAYLOAD_BYTES, "big"))

    def _on_pong(self, payload: bytes) -> None:
        """Pongs may be left out for all but the last ping; unknown ones say nothing."""
        later_pings = self._count - int.from_bytes(payload, "big")
        if not 0 <= later_pings < len(self._pings):
            return
        self._has_ponged = True
        read: dict[int, int] = {}
        while len(self._pings) > later_pings:
            read |= self._pings.popleft()
        for handle, count in read.items():
            if on_read := self._followers.get(handle):
                on_read(count)

    def stuck_s(self, now: float) -> float:
        """For how long the client has not read on though there was something to read."""
        if self._has_ponged or not self._pings:
            self._has_ponged = False
            self._waiting_since = now if self._pings else None
        return 0.0 if self._waiting_since is None else now - self._waiting_since

    def pardon(self, now: float) -> None:
        """Count from ``now`` on how long the client has not read: nobody was there to see it."""
        if self._waiting_since is not None:
            self._waiting_since = now

    def give_up_in(self, seconds: float) -> None:
        """Drop a connection that is being closed then: its transport would wait for ever."""
        if self._protocol is not None:
            self._protocol.abort_in(seconds)
