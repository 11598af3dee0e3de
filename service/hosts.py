"""By which names this service lets itself be called.

A web page can give its own name the address 127.0.0.1 (DNS rebinding); then a browser takes the
service for that page's own, and neither CORS nor ``Origin`` keeps it out. The ``Host`` that it
sends gives it away.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence

ANY = "*"
_WILDCARDS = ("0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches what listens on, or is called, ``host``."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def parse_hosts(value: object) -> object:
    """The setting as it comes from a file (a list) or the environment (commas between them).

    Raises ValueError; what is no list of texts is left to whoever checks the types.
    """
    entries = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, list | tuple):
        return entries
    found = []
    for entry in entries:
        if not isinstance(entry, str):
            return entries
        if entry.strip():
            name = host_name(entry)
            misplaced = name != ANY and ANY in name.removeprefix("*.")
            if not name or misplaced or "/" in entry or "@" in entry:
                raise ValueError(f"not a host name like speech.example.org: {entry!r}")
            found.append(name)
    return tuple(found)


def host_name(host: str) -> str:
    """The name in a ``Host`` header: without its port, in small letters."""
    text = host.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name = text if text.count(":") > 1 else text.partition(":")[0]
    return name.rstrip(".")


def called_by_address(hosts: Sequence[str]) -> bool:
    """Whether a request was sent to an address instead of a name, which no page can give itself."""
    try:
        return bool(hosts) and all(ipaddress.ip_address(host_name(host)) for host in hosts)
    except ValueError:
        return False


def is_known(hosts: Sequence[str], bound: str, allowed: Collection[str]) -> bool:
    """Whether a request with these ``Host`` headers may go on.

    Names of this machine itself are always known, and so is the address that the service is bound
    to; bound to all of them without an ``allowed`` list, it cannot know its names and takes any.
    """
    if ANY in allowed or (bound in _WILDCARDS and not allowed):
        return True
    return bool(hosts) and all(_is_one_known(host_name(host), bound, allowed) for host in hosts)


def _is_one_known(name: str, bound: str, allowed: Collection[str]) -> bool:
    if is_loopback(name) or name == bound.strip("[]").lower() or name in allowed:
        return True
    suffixes = (entry[1:] for entry in allowed if entry.startswith("*."))
    return any(name.endswith(suffix) for suffix in suffixes)
