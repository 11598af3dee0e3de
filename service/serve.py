"""Runs the service in the foreground: listens, tells what it is doing, ends cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
import time
from collections.abc import Iterator

import uvicorn

from ipc.supervisor import ChildFailed
from service import __version__
from service.app import create_app
from service.build import build_runtime
from service.logs import set_up
from service.runtime import Runtime
from service.settings import Settings
from streaming.errors import TalkwireError

_PING_S = 20.0
_GRACE_S = 5


class Unable(Exception):
    """The service cannot run; the text says why."""


def serve_until_stopped(settings: Settings) -> None:
    """Serve until a signal. Raises Unable."""
    set_up(settings.log_level, settings.log_format)
    listener = _listen(settings.host, settings.port)
    with contextlib.closing(listener):
        host, port = listener.getsockname()[:2]
        _say(f"Talkwire {__version__} at http://{host}:{port}, model {settings.model_name}")
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(settings, listener, port))


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


async def _serve(settings: Settings, listener: socket.socket, port: int) -> None:
    began = time.monotonic()

    def on_progress(worker: str, phase: str, seconds: float) -> None:
        if not runtime.is_ready:
            _say(f"  {time.monotonic() - began:5.1f} s  {worker}: {phase}")

    runtime = build_runtime(settings, on_progress)
    failures: list[BaseException] = []

    def on_fatal(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    server = _Server(
        uvicorn.Config(
            create_app(runtime, on_fatal),
            log_config=None,
            ws_max_size=settings.max_message_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=_PING_S,
            ws_ping_timeout=_PING_S,
            timeout_graceful_shutdown=_GRACE_S,
            server_header=False,
        )
    )
    stopping = _stop_on_signals(server, runtime)
    announcing = asyncio.create_task(_announce(runtime, began, port))
    await server.serve(sockets=[listener])
    announcing.cancel()
    stopping.cancel()
    if failures:
        raise Unable(_reason(failures[0]))
    _say("Stopped.")


class _Server(uvicorn.Server):
    """uvicorn would raise the signal again when all is done, and so turn a clean end into
    an interrupted one; signals are handled above.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn.Server."""
        yield


def _stop_on_signals(server: _Server, runtime: Runtime) -> asyncio.Task[None]:
    """The first signal drains and then ends the server, the second ends it at once."""
    signalled = asyncio.Event()

    def on_signal(number: int) -> None:
        if signalled.is_set():
            server.handle_exit(number, None)
        signalled.set()

    async def drain() -> None:
        await signalled.wait()
        if runtime.connections:
            _say(f"Finishing {runtime.connections} connections; once more ends them at once.")
        await runtime.drain()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return asyncio.create_task(drain())


async def _announce(runtime: Runtime, began: float, port: int) -> None:
    """Print the line that a newcomer waits for."""
    await runtime.ready.wait()
    _say(f"Ready after {time.monotonic() - began:.1f} s. In another terminal:")
    where = "" if port == 8000 else f" --url ws://127.0.0.1:{port}/v1/tts/stream"
    _say(f'  .venv/bin/talkwire say "Hello there." --out hello.wav{where}')


def _reason(error: BaseException) -> str:
    """The sentence for the operator; groups are as informative as their first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TalkwireError):
        return error.message
    if isinstance(error, ChildFailed):
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
