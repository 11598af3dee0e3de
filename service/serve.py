"""Runs the service in the foreground: listens, tells what it is doing, ends cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator

import uvicorn

from ipc.supervisor import ChildFailed
from service import __version__
from service.admin import create_admin_app
from service.app import create_app
from service.auth.key_file import KeyFileError
from service.build import build_runtime
from service.exposure import exposure_fault
from service.front_door import bound_sending, server_config
from service.logs import set_up
from service.runtime import Runtime
from service.settings import Settings
from service.tracing import TracingError
from streaming.errors import TalkwireError
from talker.shape import CheckpointError

_GRACE_S = 5


class Unable(Exception):
    """The service cannot run; the text says why."""


def serve_until_stopped(settings: Settings) -> None:
    """Serve until a signal. Raises Unable."""
    set_up(settings.log_level, settings.log_format)
    if fault := exposure_fault(settings):
        raise Unable(fault)
    with contextlib.ExitStack() as listening:
        listener = listening.enter_context(_listen(settings.host, settings.port))
        bound_sending(listener, settings.slow_consumer_s)
        admin: socket.socket | None = None
        if settings.admin_port is not None:
            admin = listening.enter_context(_listen(settings.admin_host, settings.admin_port))
        host, port = listener.getsockname()[:2]
        scheme = "https" if settings.tls_certificate else "http"
        _say(f"Talkwire {__version__} at {scheme}://{host}:{port}, model {settings.model_name}")
        if admin is not None:
            host, admin_port = admin.getsockname()[:2]
            _say(f"  metrics and draining at {scheme}://{host}:{admin_port}")
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(settings, listener, port, admin))


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


async def _serve(
    settings: Settings, listener: socket.socket, port: int, admin: socket.socket | None
) -> None:
    began = time.monotonic()

    def on_progress(worker: str, phase: str, seconds: float) -> None:
        if not runtime.is_ready:
            _say(f"  {time.monotonic() - began:5.1f} s  {worker}: {phase}")

    try:
        runtime = build_runtime(settings, on_progress)
    except KeyFileError as error:
        raise Unable(f"api_keys_file: {error}") from error
    except TracingError as error:
        raise Unable(f"tracing: {error}") from error
    failures: list[BaseException] = []

    def on_fatal(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    server = _Server(_checked(server_config(create_app(runtime, on_fatal), settings, _GRACE_S)))
    asked = asyncio.Event()
    stopping = _stop_on_signals(server, runtime, asked)
    announcing = asyncio.create_task(_announce(settings, runtime, began, port))
    async with _administering(runtime, admin, asked):
        await server.serve(sockets=[listener])
    announcing.cancel()
    stopping.cancel()
    if failures:
        raise Unable(_reason(failures[0]))
    _say("Stopped.")


def _checked(config: uvicorn.Config) -> uvicorn.Config:
    """The same, its certificate read. Raises Unable."""
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or error
        raise Unable(f"the TLS certificate or its key cannot be used: {reason}") from error
    return config


class _Server(uvicorn.Server):
    """uvicorn would raise the signal again when all is done, and so turn a clean end into
    an interrupted one; signals are handled above.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn.Server."""
        yield


@contextlib.asynccontextmanager
async def _administering(
    runtime: Runtime, listener: socket.socket | None, asked: asyncio.Event
) -> AsyncIterator[None]:
    """Serve the admin listener while the block runs, its draining included."""
    if listener is None:
        yield
        return
    config = server_config(create_admin_app(runtime, asked.set), runtime.settings, _GRACE_S)
    config.lifespan = "off"  # the public listener's application starts and stops the runtime
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


def _stop_on_signals(server: _Server, runtime: Runtime, asked: asyncio.Event) -> asyncio.Task[None]:
    """The first signal, or ``asked``, drains and then ends the server; another signal ends it at
    once. SIGHUP has the keys read again.
    """

    signalled = False

    def on_signal(number: int) -> None:
        nonlocal signalled
        if signalled:
            server.handle_exit(number, None)
        signalled = True
        asked.set()

    async def drain() -> None:
        await asked.wait()
        if runtime.connections:
            _say(f"Finishing {runtime.connections} connections; once more ends them at once.")
        await runtime.drain()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, runtime.authority.reload_soon)
    return asyncio.create_task(drain())


async def _announce(settings: Settings, runtime: Runtime, began: float, port: int) -> None:
    """Print the line that a newcomer waits for."""
    await runtime.ready.wait()
    settle()
    _say(f"Ready after {time.monotonic() - began:.1f} s. In another terminal:")
    if settings.api_keys_file is not None:
        _say("  export TALKWIRE_API_KEY=...  # a key that may speak")
    _say(f'  .venv/bin/talkwire say "Hello there." --out hello.wav{_where(settings, port)}')


def _where(settings: Settings, port: int) -> str:
    """The option of ``talkwire say`` that it needs unless the service is where it is usually."""
    scheme = "wss" if settings.tls_certificate else "ws"
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "localhost") else settings.host
    place = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    return "" if place == "ws://127.0.0.1:8000" else f" --url {place}/v1/tts/stream"


def settle() -> None:
    """What has been made so far stays: the garbage collector need not look through it again,
    which takes 70 ms each time, and every client waits meanwhile.
    """
    gc.collect()
    gc.freeze()


def _reason(error: BaseException) -> str:
    """The sentence for the operator; groups are as informative as their first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TalkwireError):
        return error.message
    if isinstance(error, ChildFailed | CheckpointError):
        return str(error)
    return f"the service broke while starting ({type(error).__name__}: {error})"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Unable(
                f"port {port} is taken; stop what uses it, or choose another with --port"
            ) from error
        raise Unable(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
