"""Accounts of tenants and keys: their use and limits. No I/O; ``now`` is an argument.

A tenant's limits apply to all its keys together, a key's own to it alone; both must be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import NamedTuple

from service.auth.caller import Caller
from service.auth.keys import UNLIMITED, KeyRing, Limits, least
from streaming.errors import CapacityError, ErrorCode

MINUTE_S = 60.0
_HINT_MS = 1000


class LeakyBucket:
    """A level that use raises, and that falls to 0 over time."""

    def __init__(self) -> None:
        self.level, self._at = 0.0, 0.0

    def leak(self, per_minute: float, now: float) -> float:
        """Lower the level by ``per_minute`` since the last call, and return it."""
        passed_s, self._at = max(0.0, now - self._at), now
        self.add(-passed_s * per_minute / MINUTE_S)
        return self.level

    def add(self, amount: float) -> None:
        """Raise the level or, if ``amount`` is negative, lower it."""
        self.level = max(0.0, self.level + amount)


class Account:
    """Use by one tenant or key."""

    def __init__(self) -> None:
        self.contexts = self.connections = 0
        self.characters = self.refusals = 0
        #: The characters that count towards the limit per minute.
        self.recent = LeakyBucket()


class _Held(NamedTuple):
    """An account, its limits, and its owner for messages."""

    account: Account
    limits: Limits
    whose: str

    def require(self, used: int, most: int | None, what: str) -> None:
        """Raise CapacityError (``rate_limited``) if ``used`` has reached ``most``."""
        if most is not None and used >= most:
            raise _refusal(f"{self.whose} may have {most} {what} at once.", _HINT_MS)


class Accounts:
    """All accounts. ``ring`` returns the current keys."""

    def __init__(self, ring: Callable[[], KeyRing]) -> None:
        self._ring = ring
        self._tenants: dict[str, Account] = {}
        self._keys: dict[str, Account] = {}

    def require_context(self, caller: Caller, capacity: int) -> None:
        """Raise CapacityError (``rate_limited``) if another context of ``capacity`` is too many."""
        for held in self._held(caller):
            held.require(held.account.contexts, held.limits.contexts(capacity), "contexts")

    def count_contexts(self, caller: Caller, more: int) -> None:
        """Add ``more`` contexts, which may be negative."""
        for held in self._held(caller):
            held.account.contexts += more

    def require_connection(self, caller: Caller) -> None:
        """Raise CapacityError (``rate_limited``) if one more connection is too many."""
        for held in self._held(caller):
            held.require(held.account.connections, held.limits.max_connections, "connections")

    @contextmanager
    def connection(self, caller: Caller) -> Iterator[None]:
        """Count one more connection during the block; ``require_connection`` has allowed it."""
        for held in self._held(caller):
            held.account.connections += 1
        try:
            yield
        finally:
            for held in self._held(caller):
                held.account.connections -= 1

    def take_text(self, caller: Caller, characters: int, now: float) -> None:
        """Count a text, or raise CapacityError (``rate_limited``)."""
        self.require_text(caller, characters, now)
        self._spend(caller, characters)

    def require_text(self, caller: Caller, characters: int, now: float) -> None:
        """Raise CapacityError (``rate_limited``) if a text is not accepted now. It has the limit
        for which the text must wait longest.
        """
        waits = []
        for held in self._held(caller):
            per_minute = held.limits.characters_per_minute
            if per_minute is None or not characters:
                continue
            # a text is accepted if any character is, so that long ones can be served
            excess = held.account.recent.leak(per_minute, now) - per_minute
            if excess >= 0:
                waits.append(((excess + 1) * MINUTE_S / per_minute, per_minute, held.whose))
        if waits:
            wait_s, per_minute, whose = max(waits)
            message = f"{whose} may speak {per_minute} characters per minute."
            raise _refusal(message, ceil(1000 * wait_s))

    def give_text_back(self, caller: Caller, characters: int) -> None:
        """Undo ``take_text`` for a text that was not spoken."""
        self._spend(caller, -characters)

    def _spend(self, caller: Caller, characters: int) -> None:
        for held in self._held(caller):
            # unlimited text must not become a debt if a limit is set later
            if held.limits.characters_per_minute is None:
                held.account.recent = LeakyBucket()
            else:
                held.account.recent.add(characters)
            held.account.characters += characters

    def on_refusal(self, caller: Caller) -> None:
        """Count a refusal due to a limit of the caller's tenant or key."""
        if caller.tenant is not None:
            self._tenants.setdefault(caller.tenant, Account()).refusals += 1

    def limits(self, caller: Caller) -> Limits:
        """Return the lowest of the limits that apply to a caller."""
        every = [held.limits for held in self._held(caller)]
        names = Limits.model_fields
        return Limits(**{name: least(*(getattr(one, name) for one in every)) for name in names})

    def tenants(self) -> Iterator[tuple[str, Account]]:
        """Yield the accounts of configured tenants, by name. Others are omitted, as a bound."""
        for name in sorted(self._ring().tenants):
            yield name, self._tenants.setdefault(name, Account())

    def forget_unknown(self) -> None:
        """Drop unused accounts of tenants and keys that are no longer configured."""
        ring = self._ring()
        for accounts, known in ((self._tenants, ring.tenants), (self._keys, ring.keys)):
            for name, account in list(accounts.items()):
                if name not in known and not (account.contexts or account.connections):
                    del accounts[name]

    def _held(self, caller: Caller) -> Iterator[_Held]:
        if caller.tenant is None or caller.key_id is None:
            return
        ring = self._ring()
        limits = ring.tenants.get(caller.tenant, UNLIMITED)
        yield _Held(self._tenants.setdefault(caller.tenant, Account()), limits, "This tenant")
        key = ring.keys.get(caller.key_id)
        limits = UNLIMITED if key is None else key.limits
        yield _Held(self._keys.setdefault(caller.key_id, Account()), limits, "This key")


def _refusal(message: str, retry_after_ms: int) -> CapacityError:
    return CapacityError(ErrorCode.RATE_LIMITED, message, retry_after_ms=retry_after_ms)
