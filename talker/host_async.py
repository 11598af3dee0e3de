"""The host of vLLM's AsyncLLM, whose engine cores run in their own processes.

For data and tensor parallelism, and for GPUs, where it pays to prepare the next step while the
device works. The messages are the same as those of the in-process host.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from contextlib import aclosing
from multiprocessing import active_children
from typing import Any

from ipc.child import ChildLink, LinkClosed
from talker.checkpoint import Checkpoint
from talker.host import Host
from talker.messages import Failed, FromGateway, Generate, NewRows, Ready, Step
from talker.request_table import RequestState, RequestTable
from talker.vllm_requests import Refused
from talker.vllm_setup import logger_factory

log = logging.getLogger(__name__)
#: An engine core with requests, whichever, and without output for this long is considered dead.
_STALL_S = 60.0
_STALL_CHECK_S = 1.0
_NOT_STARTED = "vLLM's engine did not start: the first error in the log above says why"


class EngineGone(Exception):
    """An engine core has died or hangs. The process must be restarted."""


class AsyncHost(Host):
    """Runs one task per request. Rows made in one iteration of the loop are sent together."""

    def _start_engine(self, arguments: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        loggers = [logger_factory(self._totals)] if not arguments["disable_log_stats"] else None
        given = AsyncEngineArgs(**arguments)
        try:
            self._engine = AsyncLLM.from_engine_args(given, stat_loggers=loggers)
        except RuntimeError as error:  # a core has failed; its reason is only in the log
            raise ValueError(_NOT_STARTED) from error
        #: Number of engine cores, and with data parallelism their coordinator.
        self._processes = len(active_children())
        self._cores = arguments["data_parallel_size"]
        #: Tasks by the engine's id of their request.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._made: list[NewRows] = []
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Number of outputs of each core.
        self._outputs = Counter[int]()

    async def warm_up(self, request: Generate) -> None:
        """Speak one request to its end in each engine core."""
        await asyncio.gather(*(self._warm_up(request, core) for core in range(self._cores)))

    async def _warm_up(self, request: Generate, core: int) -> None:
        prompt, params = self._inputs(RequestState(request))
        rank = self._rank(core)
        name = f"warm-up.{core}"
        async for _ in self._engine.generate(prompt, params, name, data_parallel_rank=rank):
            pass

    def _rank(self, core: int) -> int | None:
        """vLLM's number of a core; None if there is only one."""
        return core if self._cores > 1 else None

    async def run(self, link: ChildLink[FromGateway]) -> None:
        """Serve until the link closes (LinkClosed) or the engine has died (EngineGone)."""
        self._link = link
        inbox = asyncio.ensure_future(self._read_inbox(link))
        watch = asyncio.ensure_future(self._watch())
        done, _ = await asyncio.wait(
            [inbox, watch, self._over], return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()

    async def _read_inbox(self, link: ChildLink[FromGateway]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # a thread waits for messages and sends heartbeats meanwhile
            for message in await loop.run_in_executor(None, lambda: link.receive(wait=True)):
                self._handle(message)

    def _begin(self, state: RequestState) -> None:
        engine_id = state.engine_id
        task = self._tasks[engine_id] = asyncio.create_task(self._speak(state))
        task.add_done_callback(lambda _: self._tasks.pop(engine_id, None))

    def _abort(self, state: RequestState) -> None:
        task = self._tasks.pop(state.engine_id, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _watch(self) -> None:
        """Return never. Raises EngineGone. Requests that come and go do not show that a core works,
        nor does another core's output, so the checks are counted for each. While this process is
        stopped there are none.
        """
        silent_s, before = dict[int, float](), Counter[int]()
        while True:
            await asyncio.sleep(_STALL_CHECK_S)
            outputs, states = self._outputs.copy(), map(self._requests.of, list(self._tasks))
            for core in {state.core for state in states if state is not None}:
                silent_s[core] = silent_s.get(core, 0.0) + _STALL_CHECK_S
            for core in outputs:
                if outputs[core] != before[core]:
                    silent_s[core] = 0.0
            before = outputs
            if max(silent_s.values(), default=0.0) > _STALL_S or self._is_dead():
                raise EngineGone

    def _is_dead(self) -> bool:
        """Whether a process has died. vLLM reports it only once the others have ended."""
        return self._engine.errored or len(active_children()) < self._processes

    async def _speak(self, state: RequestState) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        handle = state.request.handle
        try:
            prompt, params = self._inputs(state)
            outputs = self._engine.generate(
                prompt, params, state.engine_id, data_parallel_rank=self._rank(state.core)
            )
            async with aclosing(outputs):
                async for output in outputs:
                    self._outputs[state.core] += 1
                    self._give(self._read([output]))
                    if handle not in self._requests and not output.finished:
                        break  # it is broken: closing the generator ends it in the engine too
        except asyncio.CancelledError:
            raise  # aborted or paused: generate() has told the engine
        except EngineDeadError:
            self._end(EngineGone())
        except (Refused, ValueError):
            log.exception("request %d not taken", handle)
            self._fail(handle, "refused")
        except Exception:
            log.exception("request %d failed", handle)
            self._break(handle)

    def _give(self, rows: list[NewRows]) -> None:
        if rows and not self._made:
            asyncio.get_running_loop().call_soon(self._flush)
        self._made += rows

    def _flush(self) -> None:
        made, self._made = self._made, []
        self._send_step(made)

    def _break(self, handle: int) -> None:
        """Handle a request that the engine gave up on. If one of its processes has died, this is
        not the request's fault: vLLM ends the others, which abort their requests.
        """
        if self._is_dead():
            self._end(EngineGone())
        else:
            super()._break(handle)

    def _send(self, message: Step | Failed) -> None:
        try:
            super()._send(message)
        except LinkClosed as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)


def run_async_host(
    link: ChildLink[FromGateway],
    arguments: dict[str, Any],
    checkpoint: Checkpoint,
    stop_id: int,
    requests: RequestTable,
    warm_up: Generate,
    phases: Any,
    ready: Any,
) -> None:
    """Start, warm up, report ready and serve until the link closes (LinkClosed). Once ready, any
    other exception ends the process.
    """

    async def serve() -> None:
        host = AsyncHost(arguments, checkpoint, stop_id, requests)
        phases.begin("warm-up")
        await host.warm_up(warm_up)
        message: Ready = ready(phases.end())
        link.send(message)
        try:
            await host.run(link)
        except LinkClosed:
            raise
        except BaseException:
            # Exit at once. asyncio.run would first wait for the thread that waits for messages, and
            # that thread goes on sending heartbeats. The engine's processes die with this one.
            log.exception("the engine is gone")
            sys.stderr.flush()
            os._exit(1)

    asyncio.run(serve())
