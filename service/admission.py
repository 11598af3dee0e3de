"""Admission control: limits on the open contexts of the server and of each client."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from typing import Protocol

from service.auth.caller import ANYBODY, Caller
from service.auth.limits import Accounts
from streaming.capacity import Capacity, RetryAfter
from streaming.errors import CapacityError, ErrorCode

#: Seconds after its retry hint for which a slot is kept for a refused client.
_GRACE_S = 2.0
#: Seconds after its last request for which a client counts as present; clients remembered.
_PRESENT_S, _CLIENTS = 600.0, 1024
#: With fewer slots than this, none is kept free for a client that might come.
_LEAST_SLOTS = 4


class SlotUser(Protocol):
    """The holder of a slot, such as a context."""

    def resting_s(self, now: float) -> float:
        """Return for how many seconds the slot has not been needed; 0 while it is."""


class Lease:
    """A slot that ``caller`` holds until ``release`` or the end of a ``with`` block, for audio
    played at ``speed``. It may be taken back while its ``user``, if set, does not need it.

    ``weight``: the number of ordinary streams that cost the codec as much. It counts for the
    caller's share of the slots, and for the number of slots.
    """

    __slots__ = ("_admission", "acquired_at", "caller", "speed", "user", "weight")

    def __init__(self, admission: Admission, caller: Caller, speed: float, now: float) -> None:
        self._admission: Admission | None = admission
        self.caller, self.speed, self.acquired_at = caller, speed, now
        self.user: SlotUser | None = None
        self.weight = 1.0

    @property
    def is_held(self) -> bool:
        """Whether the slot has been neither released nor taken back."""
        return self._admission is not None

    def resting_s(self, now: float) -> float:
        """Return for how many seconds the slot has been held without being needed."""
        if self.user is None:
            return 0.0
        return min(now - self.acquired_at, self.user.resting_s(now))

    def release(self) -> None:
        """Release the slot. A second call does nothing."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.on_released(self)
            self.user = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Admission:
    """Grants or refuses slots at once, without a queue.

    At most ``ceiling`` contexts are admitted. With ``measured``, a context is admitted only if it
    and all open ones are expected to get their audio faster than it is played. With ``accounts``,
    the limits of the caller's tenant and key apply too.

    No client may hold more than ``max_share`` of the slots. Free slots are left to clients that
    were refused while holding less than an equal share: by a client that holds its share to all of
    them, by another one to those that have waited longer than itself. So a client gets nothing by
    asking more often. One that holds its share also leaves the last free slot to others if any have
    asked recently. If no slot is free, one that has not been needed for ``rest_s`` is taken back.
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
        #: Time of each client's (``Caller.client``) last request for a slot, oldest first.
        self._asked_at: OrderedDict[str, float] = OrderedDict()
        #: For each refused client, since when it has waited, and until when a slot is kept for it.
        self._waiting: dict[str, tuple[float, float]] = {}
        self._retry_after = RetryAfter()

    @property
    def active(self) -> int:
        """Number of slots that are held."""
        return len(self._leases)

    @property
    def capacity(self) -> int:
        """Number of contexts that may be open now, including those that are."""
        return self._slots(time.monotonic())

    def limits(self) -> dict[str, float]:
        """Return the number of contexts that may be open by each limit, ``ceiling`` at most."""
        found = {} if self.measured is None else self.measured.limits(time.monotonic())
        found["ceiling"] = self.ceiling
        return {name: min(limit, self.ceiling) for name, limit in found.items()}

    def require(self, caller: Caller) -> None:
        """Raise what ``acquire`` would raise. Called first, it makes refusals cheap."""
        self._find(caller, 1.0, time.monotonic())

    def acquire(self, caller: Caller = ANYBODY, speed: float = 1.0) -> Lease:
        """Take a slot for audio played at ``speed``. Raises CapacityError: ``overloaded``, with a
        hint for when to retry, or ``rate_limited`` for this caller's own limits.
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
        """Take a released lease back; called by ``Lease.release``."""
        self._leases.remove(lease)
        self._held[lease.caller.client] -= 1
        self._held += Counter()  # drops clients that hold none
        self._retry_after.on_released(time.monotonic() - lease.acquired_at)
        if self._accounts is not None:
            self._accounts.count_contexts(lease.caller, -1)

    def _find(self, caller: Caller, speed: float, now: float) -> list[Lease]:
        """Return the leases to take back for another one, usually none. Raises CapacityError."""
        if self._accounts is not None:
            self._accounts.require_context(caller, self.capacity)
        client = caller.client
        self._note_asked(client, now)
        slots = self._slots(now, speed)
        # rounded because 0.55 * 100 is more than 55
        share = math.ceil(round(self._max_share * slots, 6))
        most = max(1, share) if self._max_share < 1 else math.inf
        own: list[Lease] = []
        mine = {lease for lease in self._leases if lease.caller.client == client}
        held = round(sum(lease.weight for lease in mine))
        if held >= most and not (own := self._resting(mine, int(held + 1 - most), now)):
            message = f"This client has {held} at once, which is all that one client may have."
            raise CapacityError(ErrorCode.RATE_LIMITED, message, retry_after_ms=1000)
        part = max(1, slots // len(self._asked_at))
        is_below = held < part
        kept = self._kept(part, slots, now, client if is_below else None)
        excess = self.active - len(own) + 1 + kept - slots
        if excess <= 0:
            return own
        if resting := self._resting(self._leases.difference(own), excess, now):
            return own + resting
        ages_s = [now - lease.acquired_at for lease in self._leases]
        hint_s = self._retry_after.estimate_s(ages_s, excess, now)
        if is_below:
            since, _ = self._waiting.get(client, (now, now))
            self._waiting[client] = since, now + hint_s + _GRACE_S
        hint_ms = round(1000 * hint_s)
        message = "The server is at its capacity."
        raise CapacityError(ErrorCode.OVERLOADED, message, retry_after_ms=hint_ms)

    def _note_asked(self, client: str, now: float) -> None:
        """Record a client's request, and forget clients that have not asked recently."""
        self._asked_at[client] = now
        self._asked_at.move_to_end(client)
        oldest = next(iter(self._asked_at))
        while len(self._asked_at) > _CLIENTS or self._asked_at[oldest] < now - _PRESENT_S:
            del self._asked_at[oldest]
            self._waiting.pop(oldest, None)
            oldest = next(iter(self._asked_at))

    def _kept(self, part: int, slots: int, now: float, client: str | None) -> int:
        """Number of free slots to keep for others than ``client``, which holds less than its share,
        ``part``; None: one that holds as much.
        """
        self._waiting = {one: times for one, times in self._waiting.items() if times[1] > now}
        since, _ = self._waiting.get(client, (now, now)) if client is not None else (math.inf, now)
        waiting = sum(
            self._held[one] < part and began < since and one != client
            for one, (began, _) in self._waiting.items()
        )
        if client is not None:
            return waiting
        return max(waiting, int(len(self._asked_at) > 1 and slots >= _LEAST_SLOTS))

    def _resting(self, leases: set[Lease], count: int, now: float) -> list[Lease]:
        """Return ``count`` resting slots of ``leases``, or none if there are fewer. Those of the
        client with most of ``leases`` come first, the longest resting before the others.
        """
        held = Counter(lease.caller.client for lease in leases)
        found = [
            (held[lease.caller.client], resting_s, id(lease), lease)
            for lease in leases
            if (resting_s := lease.resting_s(now)) >= self._rest_s
        ]
        found.sort(reverse=True)
        return [lease for *_, lease in found[:count]] if len(found) >= count else []

    def _slots(self, now: float, *more: float) -> int:
        """Number of slots now, with a stream more at each of these speeds."""
        if self.measured is None:
            return self.ceiling
        # Slow speech costs as much: the talker makes rows for all streams at the same pace.
        fastest = max((1.0, *more, *(lease.speed for lease in self._leases)))
        costs = [*more, *(lease.speed * lease.weight for lease in self._leases)]
        mean = max(1.0, sum(costs) / max(1, len(costs)))
        return min(self.ceiling, self.measured.slots(now, fastest, mean))
