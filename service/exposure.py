"""What may be reached from where: without keys the service serves this machine alone."""

from __future__ import annotations

from service.hosts import is_loopback
from service.settings import Settings


def exposure_fault(settings: Settings) -> str | None:
    """Why the service must not listen as it is told to; None if it may."""
    if settings.auth == "off":
        if settings.api_keys_file is not None:
            return "auth is off, so api_keys_file would be of no effect; leave one of them out"
        return None
    if settings.api_keys_file is not None:
        return None
    open_to_others = [
        f"{name} {host}"
        for name, host in (("host", settings.host), ("admin_host", settings.admin_host))
        if not is_loopback(host) and (name == "host" or settings.admin_port is not None)
    ]
    if not open_to_others:
        return None
    return (
        f"{' and '.join(open_to_others)} would let anybody who reaches this machine use the "
        "service: make keys with 'talkwire keys create' and name their file in api_keys_file, "
        'or say auth = "off" (TALKWIRE_AUTH=off) if something else asks who calls'
    )
