"""Admission that knows tenants: a place must be free on the server, and allowed to the caller."""

from __future__ import annotations

from service.admission import Admission
from service.auth.accounts import Accounts
from service.auth.caller import current_caller
from streaming.errors import CapacityError


class TenantAdmission(Admission):
    """See Admission. Whose place it is, is whom the task works for that asks."""

    def __init__(self, ceiling: int, accounts: Accounts) -> None:
        super().__init__(ceiling)
        self._accounts = accounts

    def enter(self, speed: float = 1.0) -> None:
        """See Admission. Raises CapacityError (``overloaded``, or ``rate_limited`` for this
        caller alone).
        """
        caller = current_caller()
        self._accounts.enter_context(caller, self.capacity)
        try:
            super().enter(speed)
        except CapacityError:
            self._accounts.leave_context(caller)
            raise

    def leave(self, lasted_s: float, speed: float = 1.0) -> None:
        """See Admission."""
        super().leave(lasted_s, speed)
        self._accounts.leave_context(current_caller())
