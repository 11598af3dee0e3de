"""Acknowledgement tracking: the audio that a socket's client has read, from its pongs.

TCP buffers a minute or more of audio for a client that does not read. Audio is therefore followed
by a WebSocket ping. Its pong means that the client's library has read everything before it,
whatever kernels and proxies buffer in between (RFC 6455, 5.5.2 and 5.5.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

from service.transport.websocket_protocol import PAYLOAD_BYTES, WebSocketProtocol

#: Maximum audio without a ping while more is waiting.
_PING_BYTES = 32 * 1024


class AckTracker:
    """Audio of one socket's contexts, written and read.

    Without ``protocol`` nothing is tracked, and no client counts as stuck. ``now`` is monotonic.
    """

    def __init__(self, protocol: WebSocketProtocol | None = None) -> None:
        self._protocol = protocol
        self._followers: dict[int, Callable[[int], None]] = {}
        self._written: dict[int, int] = {}
        self._unpinged: dict[int, int] = {}
        self._unpinged_bytes = 0
        #: For each unanswered ping, the samples written before it, by handle.
        self._pings: deque[dict[int, int]] = deque()
        #: By handle, seconds of audio: since the last ping, for each unanswered ping, and read
        #: since the last look; and the time until which it plays what it has read.
        self._unpinged_s: dict[int, float] = {}
        self._pinged_s: deque[dict[int, float]] = deque()
        self._read_s: dict[int, float] = {}
        self._plays_until: dict[int, float] = {}
        self._played_at = -inf
        self._count = 0
        self._waiting_since: float | None = None
        self._has_ponged = False
        #: When ``stuck_s`` last saw that the client had read something.
        self.read_at = -inf
        if protocol is not None:
            protocol.on_pong = self._on_pong

    def follow(self, handle: int, on_read: Callable[[int], None]) -> None:
        """Call ``on_read`` with the number of a context's samples, as sent, that have been read.
        The connection calls it, not a task of the caller.
        """
        if self._protocol is not None:
            self._followers[handle] = on_read
            self._written[handle] = 0
            on_read(0)

    def forget(self, handle: int) -> None:
        """Stop following a context that is over."""
        self._followers.pop(handle, None)
        self._written.pop(handle, None)

    def on_written(
        self,
        handle: int | None,
        samples: int,
        size: int,
        now: float,
        *,
        more: bool,
        audio_s: float = 0.0,
    ) -> None:
        """Record a written message, which is audio if it has ``samples``, played for ``audio_s``.
        ``more``: other messages are waiting. A ping follows audio, at the latest after the last
        waiting message.
        """
        if self._protocol is None:
            return
        if handle in self._written:
            self._written[handle] += samples
            self._unpinged[handle] = self._written[handle]
        if handle is not None and audio_s:
            self._unpinged_s[handle] = self._unpinged_s.get(handle, 0.0) + audio_s
        if samples or self._unpinged_bytes:
            self._unpinged_bytes += size
        if not self._unpinged_bytes or (more and self._unpinged_bytes < _PING_BYTES):
            return
        self._count += 1
        self._pings.append(self._unpinged)
        self._pinged_s.append(self._unpinged_s)
        self._unpinged, self._unpinged_s, self._unpinged_bytes = {}, {}, 0
        if self._waiting_since is None:
            self._waiting_since = now
        self._protocol.ping(self._count.to_bytes(PAYLOAD_BYTES, "big"))

    def _on_pong(self, payload: bytes) -> bool:
        """Handle a pong, which also answers all earlier pings. Unknown ones are ignored. Returns
        whether the client has read more than before.
        """
        later_pings = self._count - int.from_bytes(payload, "big")
        if not 0 <= later_pings < len(self._pings):
            return False
        self._has_ponged = True
        read: dict[int, int] = {}
        while len(self._pings) > later_pings:
            read |= self._pings.popleft()
            for handle, audio_s in self._pinged_s.popleft().items():
                self._read_s[handle] = self._read_s.get(handle, 0.0) + audio_s
        for handle, count in read.items():
            if on_read := self._followers.get(handle):
                on_read(count)
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether a ping, and so perhaps the audio before it, is not answered yet."""
        return bool(self._pings)

    def stuck_s(self, now: float) -> float:
        """Return for how many seconds the client has not read although messages were waiting."""
        if self._has_ponged:
            self.read_at, self._has_ponged = now, False
            self._waiting_since = now if self._pings else None
        return 0.0 if self._waiting_since is None else now - self._waiting_since

    def played_at(self, now: float) -> float:
        """Return when the client has played all that it has read, if it plays without a pause and
        all contexts at the same time; -inf before it has read anything.
        """
        self._plays_until = {
            handle: until for handle, until in self._plays_until.items() if until > now
        }
        while self._read_s:
            handle, audio_s = self._read_s.popitem()
            self._plays_until[handle] = self._plays_until.get(handle, now) + audio_s
        self._played_at = max(self._played_at, *self._plays_until.values(), -inf)
        return self._played_at

    def restart_wait(self, now: float) -> None:
        """Restart the time of ``stuck_s`` at ``now``, since earlier pongs may not be seen yet."""
        if self._waiting_since is not None:
            self._waiting_since = now
