"""The service as a process: it opens its log, starts its engines, and runs the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvloop

from service import __version__
from service.launch import Launch, build_engines, build_library
from service.listening import Listeners, allow_open_files, url_of
from service.logs import LogWriter, set_up
from service.settings import Settings
from talker.settings import is_gpu_build

#: Seconds for which the end waits for threads.
_GRACE_S = 5
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


def serve_until_stopped(settings: Settings, listeners: Listeners) -> None:
    """Serve on open sockets until a signal. Raises Unable."""
    with contextlib.closing(set_up(settings.log_level, settings.log_format)) as log:
        if warning := allow_open_files(settings.connections()):
            log.say(warning, "WARNING")
        _tell_of_unused_gpu(log)
        scheme = "https" if settings.tls_certificate else "http"
        url = url_of(scheme, *listeners.public.getsockname()[:2])
        log.say(f"Talkwire {__version__} at {url}, model {settings.model_name}")
        if listeners.admin is not None:
            admin_url = url_of(scheme, *listeners.admin.getsockname()[:2])
            log.say(f"  metrics and draining at {admin_url}")
        if listeners.wyoming is not None:
            log.say(f"  Wyoming at {url_of('tcp', *listeners.wyoming.getsockname()[:2])}")
        loop = _Loop()
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(_serve(settings, log, listeners))
        finally:
            if loop.has_stuck_threads:
                log.say("A thread hangs, perhaps in a file system; ending without it.")
                status = int(sys.exc_info()[0] is not None)
                leaving = threading.Timer(_LEAVE_S, os._exit, (status,))
                leaving.daemon = True
                leaving.start()


def _tell_of_unused_gpu(log: LogWriter, devices: Path = Path("/dev")) -> None:
    """Say so if there is an NVIDIA GPU in ``devices``, but this environment is one for the CPU."""
    if not is_gpu_build() and any(devices.glob("nvidia[0-9]*")):
        log.say(
            "This machine has an NVIDIA GPU, but this environment is for the CPU, which does the "
            "work; for the GPU: make distclean, then HARDWARE=cuda (docs/guides/gpu.md)."
        )


async def _serve(settings: Settings, log: LogWriter, listeners: Listeners) -> None:
    """Start the engines, whose processes load while the gateway is imported, and run it."""

    def on_progress(worker: str, phase: str, seconds: float) -> None:
        if not engines.are_ready:
            log.say(f"  {time.monotonic() - listeners.since:5.1f} s  {worker}: {phase}")

    library = build_library(settings)
    engines = build_engines(settings, library, on_progress)
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):  # until the gateway drains on them
        loop.add_signal_handler(number, task.cancel)
    starting = asyncio.create_task(engines.start())
    try:
        run_gateway = await asyncio.to_thread(_import_gateway)
        launch = Launch(engines, library, starting, listeners.since)
        await run_gateway(settings, log, listeners, launch)
    except asyncio.CancelledError:
        pass
    finally:
        starting.cancel()
        await engines.stop()
        await asyncio.gather(starting, return_exceptions=True)
    log.say("Stopped.")


Gateway = Callable[[Settings, LogWriter, Listeners, Launch], Awaitable[None]]


def _import_gateway() -> Gateway:
    """Import the gateway, which takes longer than all that is imported before it."""
    gc.disable()  # it would scan what is imported again and again
    try:
        from service.gateway import run_gateway
    finally:
        gc.enable()
    return run_gateway
