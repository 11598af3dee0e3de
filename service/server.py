"""The service's listeners. Without keys they must be on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import uvicorn
import uvloop

from ipc.supervisor import ChildFailed
from service import __version__
from service.access.hosts import is_loopback
from service.admin import create_admin_app
from service.app import create_app
from service.auth.authenticator import TokenSecretError
from service.auth.keys import KeyFileError
from service.build import build_runtime
from service.logs import LogWriter, set_up
from service.runtime import Runtime
from service.settings import Settings
from service.tracing import TracingError
from service.transport.uvicorn_protocols import ServerConfig, configure_listener, server_config
from streaming.errors import TalkwireError
from talker.shape import CheckpointError


def exposure_fault(settings: Settings) -> str | None:
    """Return why the service must not listen with these settings; None if it may."""
    has_keys, is_off = settings.api_keys_file is not None, settings.auth == "off"
    if has_keys and is_off:
        return "auth is off, so api_keys_file would be of no effect; leave one of them out"
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


_GRACE_S = 5
#: Open files besides the sockets of ``max_connections``: of engines, probes, requests and clips.
_OTHER_FILES = 256
#: Seconds in which the process ends by itself once only a thread that hangs keeps it.
_LEAVE_S = 1.0


class _Loop(uvloop.Loop):
    """An event loop whose end does not wait for threads that hang, as in a dead file system."""

    def __init__(self) -> None:
        super().__init__()
        self._threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
        self.set_default_executor(self._threads)
        #: Whether threads were left behind. They would keep the interpreter from ending.
        self.has_stuck_threads = False

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """See asyncio, which waits longer or without a limit."""
        ending = threading.Thread(target=self._threads.shutdown, daemon=True)
        ending.start()
        ending.join(_GRACE_S)  # nothing else is left to run
        self.has_stuck_threads = ending.is_alive()


class Unable(Exception):
    """The service cannot run; the text has the reason."""


def serve_until_stopped(settings: Settings) -> None:
    """Serve until a signal. Raises Unable."""
    if fault := exposure_fault(settings):
        raise Unable(fault)
    references = settings.references_dir
    if references is not None and not references.is_dir():
        raise Unable(f"references_dir: there is no folder {references}")
    with contextlib.ExitStack() as listening:
        log = set_up(settings.log_level, settings.log_format)
        listening.callback(log.close)
        _allow_open_files(settings.max_connections, log)
        listener = listening.enter_context(_listen(settings.host, settings.port, "--port"))
        configure_listener(listener, settings.slow_consumer_s)
        admin: socket.socket | None = None
        if settings.admin_port is not None:
            there = settings.admin_host, settings.admin_port
            admin = listening.enter_context(_listen(*there, "admin_port"))
            configure_listener(admin, settings.slow_consumer_s)
        host, port = listener.getsockname()[:2]
        scheme = "https" if settings.tls_certificate else "http"
        url = _url(scheme, host, port)
        log.say(f"Talkwire {__version__} at {url}, model {settings.model_name}")
        if admin is not None:
            admin_url = _url(scheme, *admin.getsockname()[:2])
            log.say(f"  metrics and draining at {admin_url}")
        loop = _Loop()
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(_serve(settings, log, listener, port, admin))
        finally:
            if loop.has_stuck_threads:
                log.say("A thread hangs, perhaps in a file system; ending without it.")
                status = int(sys.exc_info()[0] is not None)
                leaving = threading.Timer(_LEAVE_S, os._exit, (status,))
                leaving.daemon = True
                leaving.start()


def _allow_open_files(max_connections: int, log: LogWriter) -> None:
    """Raise this process' limit of open files, often 1024, to what the connections need. Without a
    free file the event loop closes new connections, and neither answers nor logs them.
    """
    needed = max_connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        log.say(
            f"This process may open up to {allowed} files (ulimit -n), and max_connections = "
            f"{max_connections} may need {needed}; clients beyond them are closed unanswered.",
            "WARNING",
        )


async def _serve(
    settings: Settings,
    log: LogWriter,
    listener: socket.socket,
    port: int,
    admin: socket.socket | None,
) -> None:
    began = time.monotonic()

    def on_progress(worker: str, phase: str, seconds: float) -> None:
        if not runtime.is_ready:
            log.say(f"  {time.monotonic() - began:5.1f} s  {worker}: {phase}")

    try:
        runtime = build_runtime(settings, on_progress)
    except (KeyFileError, TracingError) as error:
        raise Unable(start_failure(error)) from error
    log.on_dropped = runtime.metrics.log_lines_dropped.inc
    failures: list[Exception] = []

    def on_fatal(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    config = _checked(server_config(create_app(runtime, on_fatal), settings, _GRACE_S))
    runtime.metrics.certificate_expiry = lambda: config.expires_at
    server = _Server(config)
    asked = asyncio.Event()
    stopping = _stop_on_signals(server, runtime, log, asked)
    announcing = asyncio.create_task(_announce(settings, runtime, log, began, port))
    certificates, loop = [config.reload_certificate], asyncio.get_running_loop()

    def on_hangup() -> None:
        runtime.authority.reload_soon()
        for read in certificates:  # in threads, since file systems may hang
            loop.run_in_executor(None, read)

    async with _administering(runtime, admin, asked, certificates):
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
        await server.serve(sockets=[listener])
    announcing.cancel()
    stopping.cancel()
    if failures:
        raise Unable(start_failure(failures[0]))
    log.say("Stopped.")


def _checked(config: ServerConfig) -> ServerConfig:
    """Load the configuration's certificate. Raises Unable."""
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        reason = config.certificate_fault(error)
        raise Unable(f"the TLS certificate or its key cannot be used: {reason}") from error
    return config


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to ``_stop_on_signals``; uvicorn would raise them again at the end."""
        yield


@contextlib.asynccontextmanager
async def _administering(
    runtime: Runtime,
    listener: socket.socket | None,
    asked: asyncio.Event,
    certificates: list[Callable[[], None]],
) -> AsyncIterator[None]:
    """Serve the admin listener, if any, during the block; ``certificates`` gets its reload."""
    if listener is None:
        yield
        return
    config = server_config(create_admin_app(runtime, asked.set), runtime.settings, _GRACE_S)
    certificates.append(config.reload_certificate)
    config.lifespan = "off"  # the public listener's application starts and stops the runtime
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


def _stop_on_signals(
    server: _Server, runtime: Runtime, log: LogWriter, asked: asyncio.Event
) -> asyncio.Task[None]:
    """Drain and stop on the first signal or when ``asked`` is set; on another, stop at once."""
    signalled = False

    def on_signal(number: int) -> None:
        nonlocal signalled
        if signalled:
            server.handle_exit(number, None)
        signalled = True
        asked.set()

    async def drain() -> None:
        await asked.wait()
        runtime.begin_drain()
        if runtime.connections:
            log.say(f"Finishing {runtime.connections} connections; once more ends them at once.")
        await runtime.drain()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return asyncio.create_task(drain())


async def _announce(
    settings: Settings, runtime: Runtime, log: LogWriter, began: float, port: int
) -> None:
    """Print a line when the service is ready, with a command to try."""
    await runtime.ready.wait()
    settle()
    log.say(f"Ready after {time.monotonic() - began:.1f} s. In another terminal:")
    if settings.api_keys_file is not None:
        log.say("  export TALKWIRE_API_KEY=...  # a key that may speak")
    log.say(f'  .venv/bin/talkwire say "Hello there." --out hello.wav{_where(settings, port)}')


def _where(settings: Settings, port: int) -> str:
    """Return the ``--url`` option for ``talkwire say``; empty for the default address."""
    scheme = "wss" if settings.tls_certificate else "ws"
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "localhost") else settings.host
    place = _url(scheme, host, port)
    return "" if place == "ws://127.0.0.1:8000" else f" --url {place}/v1/tts/stream"


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def settle() -> None:
    """Exempt all objects so far from garbage collection, which would block clients for 70 ms."""
    gc.collect()
    gc.freeze()


def first_of(error: BaseException) -> BaseException:
    """Return the error itself, or the first one of a group that is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def start_failure(error: BaseException) -> str:
    """Return why the service did not start, for operators. Of a group the first error counts."""
    match error := first_of(error):
        case TalkwireError(message=message):
            return message
        case ChildFailed() | CheckpointError():
            return str(error)
        case TokenSecretError():
            return f"token_secret_file: {error}"
        case KeyFileError():
            return f"api_keys_file: {error}"
        case TracingError():
            return f"tracing: {error}"
    return f"the service broke while starting ({type(error).__name__}: {error})"


def _listen(host: str, port: int, option: str) -> socket.socket:
    """Return a socket that listens on ``port``, which ``option`` chose. Raises Unable."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener: socket.socket | None = None
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
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
