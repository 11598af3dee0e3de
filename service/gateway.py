"""The gateway of a service whose sockets are open and whose engines are starting."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import uvicorn

import text.english.sounds  # noqa: F401  # else imported with the first text
from ipc.supervisor import ChildFailed
from service.admin import create_admin_app
from service.app import create_app
from service.auth.authenticator import TokenSecretError
from service.auth.keys import KeyFileError
from service.build import assemble
from service.dialects.wyoming.listener import serve_wyoming
from service.launch import Launch
from service.lifecycle import Lifecycle
from service.listening import Listeners, Unable, allow_open_files, url_of
from service.logs import LogWriter
from service.runtime import Runtime
from service.settings import Settings
from service.tracing import TracingError
from service.transport.connection_limits import ConnectionLimits
from service.transport.server_config import SPARE, ServerConfig, server_config
from streaming.errors import TalkwireError
from talker.shape import CheckpointError

#: Seconds after which connections that are still open at the end are cut.
_GRACE_S = 5


async def run_gateway(
    settings: Settings, log: LogWriter, listeners: Listeners, launch: Launch
) -> None:
    """Serve until a signal. Raises Unable."""
    try:
        runtime = assemble(settings, launch.engines, launch.library, launch=launch)
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
    asked, port = asyncio.Event(), listeners.public.getsockname()[1]
    stopping = _stop_on_signals(server, runtime.lifecycle, log, asked)
    announcing = asyncio.create_task(
        _announce(settings, runtime.lifecycle, config.limits, log, launch.since, port)
    )
    certificates, loop = [config.reload_certificate], asyncio.get_running_loop()

    def on_hangup() -> None:
        runtime.authority.reload_soon()
        runtime.pronunciations.reload_soon()
        for read in certificates:  # in threads, since file systems may hang
            loop.run_in_executor(None, read)

    async with (
        _administering(runtime, listeners.admin, asked, certificates),
        serve_wyoming(runtime, listeners.wyoming),
    ):
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
        await server.serve(sockets=[listeners.public])
    announcing.cancel()
    stopping.cancel()
    if failures:
        raise Unable(start_failure(failures[0]))


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
    server: _Server, lifecycle: Lifecycle, log: LogWriter, asked: asyncio.Event
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
        lifecycle.begin_drain()
        if count := lifecycle.connections:
            many = count > 1
            what = f"{count} connections" if many else "a connection"
            log.say(f"Finishing {what}; once more ends {'them' if many else 'it'} at once.")
        await lifecycle.drain()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return asyncio.create_task(drain())


async def _announce(
    settings: Settings,
    lifecycle: Lifecycle,
    limits: ConnectionLimits,
    log: LogWriter,
    began: float,
    port: int,
) -> None:
    """Print a line when the service is ready, with a command to try."""
    await lifecycle.ready.wait()
    if lifecycle.max_connections > settings.connections():  # the start has raised it for these
        limits.most_waiting = lifecycle.max_connections + SPARE
        if warning := allow_open_files(lifecycle.max_connections):
            log.say(warning, "WARNING")
    settle()
    place = _place(settings, port)
    took_s = time.monotonic() - began
    log.say(f"Ready after {took_s:.1f} s: open {place}/, or in another terminal:")
    if settings.api_keys_file is not None:
        log.say("  export TALKWIRE_API_KEY=...  # a key that may speak")
    where = "" if place == "http://127.0.0.1:8000" else f" --url {place}"
    log.say(f'  {_program()} say "Hello there." --out hello.wav{where}')


def _place(settings: Settings, port: int) -> str:
    """Return the service's address for programs on this machine."""
    scheme = "https" if settings.tls_certificate else "http"
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "localhost") else settings.host
    return url_of(scheme, host, port)


def _program() -> str:
    """Return how to call ``talkwire`` in a shell: as this process was, unless it is on the path."""
    called = Path(sys.argv[0])
    found = shutil.which("talkwire")
    if called.name != "talkwire" or (found and called.exists() and called.samefile(found)):
        return "talkwire"
    return shlex.quote(str(called))


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
