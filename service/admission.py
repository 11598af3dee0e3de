"""Admission control: how many contexts may speak at once, on the server and for a client."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from typing import Protocol

from service.auth.caller import ANYBODY, Caller
from service.auth.limits import Accounts
from streaming.capacity import Capacity, RetryAfter
from streaming.errors import CapacityError, ErrorCode

_LEAST_HINT_MS = 50
#: How long a client that was refused is waited for, beyond the time that it was told.
_GRACE_S = 2.0
#: A client counts as present for so long after it has asked; so many are remembered.
_PRESENT_S, _CLIENTS = 600.0, 1024
#: With fewer slots than these none is kept free for a client that may come.
_LEAST_SLOTS = 4


class SlotUser(Protocol):
    """The holder of a slot, a context say."""

    def resting_s(self, now: float) -> float:
        """Seconds since there was anything to do in the slot; 0 while there is."""


class Lease:
    """A slot that ``caller`` holds until ``release``, or for a ``with`` block, for audio heard
    ``speed`` times as fast. It may be taken back while its ``user``, if set, does not need it.
    """

    __slots__ = ("_admission", "acquired_at", "caller", "speed", "user")

    def __init__(self, admission: Admission, caller: Caller, speed: float, now: float) -> None:
        self._admission: Admission | None = admission
        self.caller, self.speed, self.acquired_at = caller, speed, now
        self.user: SlotUser | None = None

    @property
    def is_held(self) -> bool:
        """Whether the slot has not been given or taken back."""
        return self._admission is not None

    def resting_s(self, now: float) -> float:
        """Seconds for which the slot has been held and not been needed."""
        if self.user is None:
            return 0.0
        return min(now - self.acquired_at, self.user.resting_s(now))

    def release(self) -> None:
        """Give the slot back. A second call does nothing."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.on_released(self)
            self.user = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Admission:
    """Slots that are granted or refused at once; nothing is ever queued.

    ``ceiling`` is the most that is ever admitted. With ``measured`` a context is admitted only
    if it and all that are open are expected to get their audio faster than it is heard. With
    ``accounts`` the limits of the caller's tenant and key hold too.

    No client may hold more than ``max_share`` of the slots. A client that holds its equal part of
    them leaves the slots that come free to those who were refused with less, and the last one to
    whoever comes next, if others have been there of late. Whoever finds no slot free is given one
    that has been held for ``rest_s`` without need.
    """

    def __init__(
        self,
        ceiling: int,
        accounts: Accounts | None = None,
        *,
        max_share: float = 1.0,
        rest_s: float = math.inf,
    ) -> None:
        self.ceiling = ceiling
        self.measured: Capacity | None = None
        self._accounts, self._max_share, self._rest_s = accounts, max_share, rest_s
        self._leases: set[Lease] = set()
        self._held: Counter[str] = Counter()
        #: When clients (``Caller.client``) asked for slots last, the longest ago first.
        self._asked_at: OrderedDict[str, float] = OrderedDict()
        #: Clients that were refused, and until when they are waited for.
        self._waiting: dict[str, float] = {}
        self._retry_after = RetryAfter()

    @property
    def active(self) -> int:
        """Slots that are held."""
        return len(self._leases)

    @property
    def capacity(self) -> int:
        """How many contexts may be open just now, with those that are."""
        return self._slots([lease.speed for lease in self._leases] or [1.0], time.monotonic())

    def require(self, caller: Caller) -> None:
        """Raise what ``acquire`` would. Asked first, a refusal costs no more than this."""
        self._find(caller, 1.0, time.monotonic())

    def acquire(self, caller: Caller = ANYBODY, speed: float = 1.0) -> Lease:
        """Take a slot for audio heard ``speed`` times as fast. Raises CapacityError (``overloaded``
        with a hint when one comes free, ``rate_limited`` for this caller's own limits).
        """
        now = time.monotonic()
        for resting in self._find(caller, speed, now):
            resting.release()
        lease = Lease(self, caller, speed, now)
        self._leases.add(lease)
        self._held[caller.client] += 1
        self._waiting.pop(caller.client, None)
        if self._accounts is not None:
            self._accounts.count_contexts(caller, 1)
        return lease

    def on_released(self, lease: Lease) -> None:
        """The lease was given back; see ``Lease.release``."""
        self._leases.remove(lease)
        self._held[lease.caller.client] -= 1
        self._held += Counter()  # drops those who hold none
        self._retry_after.on_released(time.monotonic() - lease.acquired_at)
        if self._accounts is not None:
            self._accounts.count_contexts(lease.caller, -1)

    def _find(self, caller: Caller, speed: float, now: float) -> list[Lease]:
        """The slots to be taken back for one more; mostly none. Raises CapacityError."""
        if self._accounts is not None:
            self._accounts.require_context(caller, self.capacity)
        client = caller.client
        self._note_asked(client, now)
        if not self._leases:
            return []
        slots = self._slots([speed, *(lease.speed for lease in self._leases)], now)
        held = self._held[client]
        most = max(1, math.ceil(self._max_share * slots)) if self._max_share < 1 else math.inf
        own: list[Lease] = []
        if held >= most and not (own := self._resting(int(held + 1 - most), now, client)):
            message = f"This client has {held} at once, which is all that one client may have."
            raise CapacityError(ErrorCode.RATE_LIMITED, message, retry_after_ms=1000)
        part = max(1, slots // len(self._asked_at))
        kept = 0 if held < part else self._kept(client, part, slots, now)
        excess = self.active - len(own) + 1 + kept - slots
        if excess <= 0:
            return own
        if not own and (resting := self._resting(excess, now)):
            return resting
        ages_s = [now - lease.acquired_at for lease in self._leases]
        hint_s = self._retry_after.estimate_s(ages_s, excess, now)
        if held < part:
            self._waiting[client] = now + hint_s + _GRACE_S
        hint_ms = max(_LEAST_HINT_MS, round(1000 * hint_s))
        message = "The server is at its capacity."
        raise CapacityError(ErrorCode.OVERLOADED, message, retry_after_ms=hint_ms)

    def _note_asked(self, client: str, now: float) -> None:
        """Remember that a client is there, and forget those who have not asked of late."""
        self._asked_at[client] = now
        self._asked_at.move_to_end(client)
        oldest = next(iter(self._asked_at))
        while len(self._asked_at) > _CLIENTS or self._asked_at[oldest] < now - _PRESENT_S:
            del self._asked_at[oldest]
            self._waiting.pop(oldest, None)
            oldest = next(iter(self._asked_at))

    def _kept(self, client: str, part: int, slots: int, now: float) -> int:
        """How many free slots are for others than ``client``, which has its part."""
        self._waiting = {one: until for one, until in self._waiting.items() if until > now}
        waiting = sum(self._held[one] < part for one in self._waiting if one != client)
        return max(waiting, int(len(self._asked_at) > 1 and slots >= _LEAST_SLOTS))

    def _resting(self, count: int, now: float, client: str | None = None) -> list[Lease]:
        """``count`` resting slots (of ``client``), or none; of who has most, the longest first."""
        found = [
            (self._held[lease.caller.client], resting_s, id(lease), lease)
            for lease in self._leases
            if client in (None, lease.caller.client)
            and (resting_s := lease.resting_s(now)) >= self._rest_s
        ]
        found.sort(reverse=True)
        return [lease for *_, lease in found[:count]] if len(found) >= count else []

    def _slots(self, speeds: list[float], now: float) -> int:
        if self.measured is None:
            return self.ceiling
        # Slow speech is made no slower: the talker gives every stream the same.
        fastest, mean = max(1.0, *speeds), max(1.0, sum(speeds) / len(speeds))
        return min(self.ceiling, self.measured.slots(now, fastest, mean))
