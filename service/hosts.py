"""Checks of the Host and Origin headers against the service's names and the allowed pages."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from streaming.errors import ErrorCode, RequestError

if TYPE_CHECKING:
    from fastapi import Request

ANY = "*"
_WILDCARDS = ("0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Whether ``host`` is a name or address of the loopback interface."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def parse_host(entry: str) -> str:
    """Parse an entry of the setting ``allowed_hosts``. Raises ValueError."""
    name = host_name(entry)
    # "*." is the beginning of something else than all names
    misplaced = "." in entry if name == ANY else ANY in name.removeprefix("*.")
    if not name or misplaced or "/" in entry or "@" in entry:
        raise ValueError(f"not a host name like speech.example.org: {entry!r}")
    return name


def host_name(host: str) -> str:
    """Return the name in a ``Host`` header, without its port and in lower case."""
    text = host.strip().lower()
    if text.startswith("["):
        address, _, rest = text[1:].partition("]")
        # anything but a port after the bracket makes it another name
        return address if re.fullmatch(r"(:\d*)?", rest) else text
    name = text if text.count(":") > 1 else text.partition(":")[0]
    return name.rstrip(".")


def called_by_address(hosts: Sequence[str]) -> bool:
    """Whether a request was sent to an IP address, which DNS rebinding cannot fake."""
    try:
        return bool(hosts) and all(ipaddress.ip_address(host_name(host)) for host in hosts)
    except ValueError:
        return False


def is_known(hosts: Sequence[str], bound: str, allowed: Collection[str]) -> bool:
    """Whether these ``Host`` headers name the service.

    Loopback names and the address ``bound`` to are always known. A service that is bound to all
    addresses and has no ``allowed`` list does not know its names, so it accepts all.
    """
    if ANY in allowed or (bound in _WILDCARDS and not allowed):
        return True
    names = {host_name(host) for host in hosts}
    known = {*allowed, bound.strip("[]").lower()}
    suffixes = tuple(entry[1:] for entry in allowed if entry.startswith("*."))
    return bool(names) and all(
        is_loopback(name) or name in known or name.endswith(suffixes) for name in names
    )


_PORTS = {"http": 80, "https": 443}
#: A name or an address, and a port; urlsplit accepts more, which no browser sends.
_PLACE = re.compile(r"(\[[0-9a-f:.]+\]|[^][@:/\s\x00-\x1f\x7f-\x9f]+)(:\d*)?")


def parse_origin(text: str) -> str:
    """Convert an entry of the allow-list to the form that browsers send. Raises ValueError."""
    origin = text.strip().lower()
    if origin in (ANY, "null"):
        return origin
    wrong = ValueError(f"not an origin like https://example.org: {text!r}")
    try:
        parts = urlsplit(origin)
        number = parts.port
    except ValueError as error:  # which does not show the origin
        raise wrong from error
    # urlsplit removes tabs and line ends, so they must be refused here
    place = _PLACE.fullmatch(parts.netloc) if origin.isprintable() else None
    if parts.scheme not in _PORTS or not parts.hostname or place is None:
        raise wrong
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"an origin has no path: {text!r}")
    if ANY in origin:
        raise ValueError(f"each origin is named whole, or {ANY} for all: {text!r}")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = "" if number in (None, _PORTS[parts.scheme]) else f":{number}"
    return f"{parts.scheme}://{name}{port}"


def is_allowed(origins: Sequence[str], host: str | None, allowed: Collection[str]) -> bool:
    """Whether a handshake with these ``Origin`` headers and this ``Host`` is allowed.

    The scheme is not compared with the service's, since a proxy may terminate TLS.
    """
    if ANY in allowed:
        return True
    try:
        return all(
            origin in allowed
            or (bool(host) and origin == parse_origin(f"{urlsplit(origin).scheme}://{host}"))
            for origin in map(parse_origin, origins)
        )
    except ValueError:
        return False


def require_own_page(request: Request, allowed: Collection[str]) -> None:
    """Raise RequestError for a request of a foreign page. Browsers let any page send forms to, or
    fetch sound and pictures from, any host, and send the page's origin.
    """
    headers = request.headers
    origins = headers.getlist("origin")
    if not origins and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        page = re.match(r"\w+://[^/?#]+", headers.get("referer", ""))
        origins = [page[0] if page else "null"]
    if not is_allowed(origins, headers.get("host"), allowed):
        message = "Pages of this origin may not ask for that; see the setting allowed_origins."
        raise RequestError(ErrorCode.FORBIDDEN_ORIGIN, message)
