"""The sockets on which the service listens. Without keys they must be on loopback.

They are opened before anything heavy is imported: clients that connect while the process starts,
perhaps again after its predecessor has died, wait in the kernel's queue instead of being refused.
"""

from __future__ import annotations

import contextlib
import errno
import math
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from service.hosts import is_loopback
from service.settings import Settings

#: Connections that the kernel keeps until they are accepted.
BACKLOG = 2048
#: The kernel's send buffer of a connection: some seconds of PCM instead of a minute or more, and
#: enough for any encoding at any distance.
_SEND_BYTES = 128 * 1024
#: The kernel's receive buffer of a connection, so what is read of it at once: enough for uploads of
#: some Mbit/s at any distance.
_RECEIVE_BYTES = 64 * 1024
#: The kernel drops a client that reads nothing for this multiple of ``slow_consumer_s``.
_DROP_AFTER = 7.0
#: The kernel's maximum for that, 24 days.
_MOST_MS = 2**31 - 1
#: Open files besides the sockets of ``max_connections``: of engines, probes, requests and clips.
_OTHER_FILES = 256


class Unable(Exception):
    """The service cannot run; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """The open sockets, and since when (``time.monotonic``) clients may connect."""

    public: socket.socket
    admin: socket.socket | None
    since: float
    wyoming: socket.socket | None = None


@contextlib.contextmanager
def open_listeners(settings: Settings) -> Iterator[Listeners]:
    """Listen during the block. Raises Unable, also if the service must not listen there."""
    if fault := exposure_fault(settings):
        raise Unable(fault)
    references = settings.references_dir
    if references is not None and not references.is_dir():
        raise Unable(f"references_dir: there is no folder {references}")
    with contextlib.ExitStack() as listening:

        def listen(host: str, port: int, option: str) -> socket.socket:
            return listening.enter_context(_listen(host, port, option, settings.slow_consumer_s))

        public = listen(settings.host, settings.port, "--port")
        admin = None
        if settings.admin_port is not None:
            admin = listen(settings.admin_host, settings.admin_port, "admin_port")
        wyoming = None
        if settings.wyoming_port is not None:
            wyoming = listen(settings.host, settings.wyoming_port, "--wyoming")
        yield Listeners(public, admin, time.monotonic(), wyoming)


def allow_open_files(connections: int) -> str | None:
    """Raise this process' limit of open files, often 1024, to what so many connections need; return
    a warning if that is not possible. Without a free file the event loop closes new connections,
    and neither answers nor logs them.
    """
    needed = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == needed:
        return None
    return (
        f"This process may open up to {allowed} files (ulimit -n), and max_connections = "
        f"{connections} may need {needed}; clients beyond them are closed unanswered."
    )


def exposure_fault(settings: Settings) -> str | None:
    """Return why the service must not listen with these settings; None if it may."""
    has_keys, is_off = settings.api_keys_file is not None, settings.auth == "off"
    if has_keys and is_off:
        return "auth is off, so api_keys_file would be of no effect; leave one of them out"
    if has_keys and settings.wyoming_port is not None:
        return (
            f"wyoming_port {settings.wyoming_port} would let anybody speak who reaches it, since "
            "Wyoming has no keys, and api_keys_file has some; leave one of them out"
        )
    if has_keys or is_off:
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


def _listen(host: str, port: int, option: str, slow_consumer_s: float) -> socket.socket:
    """Return a socket that listens on ``port``, which ``option`` chose. Raises Unable."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener: socket.socket | None = None
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        configure_listener(listener, slow_consumer_s)
        listener.listen(BACKLOG)
    except (OSError, TypeError) as error:  # TypeError: a name that cannot be encoded
        if listener is not None:
            listener.close()
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"cannot listen on {host}:{port}: {reason}"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            message = f"port {port} is taken; stop what uses it, or choose another with {option}"
        raise Unable(message) from error
    listener.setblocking(False)
    return listener


def configure_listener(listener: socket.socket, slow_consumer_s: float) -> None:
    """Set how the kernel sends to the clients of ``listener``, whose options they inherit.

    Nagle's algorithm is disabled, or a small message would wait up to 40 ms for the acknowledgement
    of the one before. (uvloop always disables it; asyncio does so only for sockets that were made
    with ``IPPROTO_TCP``.) The bytes, and the time, that are buffered for clients that read nothing
    are bounded, or closed connections with unsent data would wait for ever.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        timeout_ms = math.ceil(1000 * _DROP_AFTER * slow_consumer_s)  # 0 would be the system's own
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(timeout_ms, _MOST_MS))


def url_of(scheme: str, host: str, port: int) -> str:
    """Return the address of a host by its name or IP address."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
