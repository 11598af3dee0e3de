"""Checks keys against the file of them, which is read again when it changes."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from service.auth import key_file
from service.auth.accounts import Accounts
from service.auth.caller import ANYBODY, Caller
from service.auth.failures import Failures
from service.auth.keys import ApiKey, KeyRing, Scope
from streaming.errors import CapacityError, ErrorCode, RequestError

log = logging.getLogger(__name__)
#: A changed file is noticed after so long at the latest; SIGHUP does not wait.
RELOAD_S = 2.0
#: What tells a file from another: of a Kubernetes volume the inode changes, of others the time.
_State = tuple[int, int, int]


class Authority:
    """All methods belong to one event loop. Without ``path`` no keys are asked for.

    Raises KeyFileError if the file cannot be used at the start. Later such a file changes nothing:
    the keys that were read last go on to hold, and the log tells.
    """

    def __init__(
        self, path: Path | None, failures_per_minute: int = 30, reload_s: float = RELOAD_S
    ) -> None:
        self._path, self._reload_s = path, reload_s
        self._state = None if path is None else _state(path)
        self._ring = KeyRing() if path is None else key_file.read(path).ring()
        self._failures = Failures(failures_per_minute)
        self._asked = asyncio.Event()
        #: Whether the file could be used when it was read last.
        self.is_current = True
        self.accounts = Accounts(lambda: self._ring)

    @property
    def is_on(self) -> bool:
        """Whether keys are asked for."""
        return self._path is not None

    @property
    def key_count(self) -> int:
        """Keys that open something now."""
        return sum(key.is_valid(time.time()) for key in self._ring.keys.values())

    def admit(self, secret: str | None, needed: Scope | None, address: str) -> Caller:
        """Who brings ``secret``, and may do what ``needed`` says.

        Raises RequestError (``unauthorized``, ``forbidden``), CapacityError (``rate_limited``).
        """
        if not self.is_on:
            return ANYBODY
        if not secret:
            raise RequestError(ErrorCode.UNAUTHORIZED, "An API key is needed.")
        key = self._ring.find(secret)
        if key is None or not key.is_valid(time.time()):
            self._count_failure(key, address)
            raise RequestError(ErrorCode.UNAUTHORIZED, "This API key is not valid.")
        if needed is not None and needed not in key.scopes:
            raise RequestError(ErrorCode.FORBIDDEN, f"This API key has not the scope {needed}.")
        return Caller(key.id, key.tenant, key.scopes)

    def is_welcome(self, caller: Caller) -> bool:
        """Whether a caller that was admitted once would still be."""
        if caller.key_id is None:
            return True
        key = self._ring.get(caller.key_id)
        return key is not None and key.tenant == caller.tenant and key.is_valid(time.time())

    def _count_failure(self, key: ApiKey | None, address: str) -> None:
        wait_s = self._failures.add(address, time.monotonic())
        if wait_s:
            raise CapacityError(
                ErrorCode.RATE_LIMITED,
                "Too many API keys were wrong.",
                retry_after_ms=max(1000, round(1000 * wait_s)),
            )
        log.info("key refused", extra={"key": key.id if key else "unknown", "address": address})

    # -- the file

    def reload_soon(self) -> None:
        """Read the file again, changed or not."""
        self._asked.set()

    async def watch(self) -> None:
        """Read the file again whenever it changes, for ever."""
        while self._path is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), self._reload_s)
            was_asked = self._asked.is_set()
            self._asked.clear()
            state = await asyncio.to_thread(_state, self._path)
            if was_asked or state != self._state:
                self._state = state
                await self._reload(self._path)

    async def _reload(self, path: Path) -> None:
        try:
            content = await asyncio.to_thread(key_file.read, path)
        except key_file.KeyFileError as error:
            self.is_current = False
            log.error("the file of keys was not taken: %s", error)
            return
        self._ring, self.is_current = content.ring(), True
        self.accounts.forget_strangers()
        log.info("keys read", extra={"keys": self.key_count, "tenants": len(self._ring.tenants)})


def _state(path: Path) -> _State | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
