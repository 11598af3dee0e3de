"""What a service behind a proxy is told of its clients."""

from __future__ import annotations

from typing import Any

import pytest

from service.auth.authenticator import Authority


def noted_addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every service in this process adds its clients' addresses."""
    admit = Authority.admit
    addresses: list[str] = []

    def noted(self: Authority, secret: str | None, needed: Any, address: str) -> Any:
        addresses.append(address)
        return admit(self, secret, needed, address)

    monkeypatch.setattr(Authority, "admit", noted)
    return addresses
