"""The host of vLLM's engine cores that run in their own processes.

For data and tensor parallelism, and for GPUs, where it pays to prepare the next step while the
device works. The messages are the same as those of the in-process host.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from multiprocessing import active_children
from typing import Any, NoReturn

from ipc.child import ChildLink, LinkClosed
from talker.checkpoint import Checkpoint
from talker.host import Host
from talker.messages import FailureReason, FromGateway, Generate, Ready
from talker.request_table import RequestState, RequestTable
from talker.vllm_core import RequestMaker, is_dead, start_async

log = logging.getLogger(__name__)
#: An engine core with requests, whichever, and without output for this long is considered dead.
_STALL_S = 60.0
_STALL_CHECK_S = 1.0


class EngineGone(Exception):
    """An engine core has died or hangs. The process must be restarted."""


class AsyncHost(Host):
    """Runs a few tasks, however many requests there are: one reads the cores' outputs and sends a
    message with the rows of each step of a core, one writes to the cores.
    """

    def _start_engine(self, arguments: dict[str, Any]) -> RequestMaker:
        self._client, requests = start_async(arguments)
        #: Number of engine cores, and with data parallelism their coordinator.
        self._processes = len(active_children())
        #: Requests, and ids of requests to abort. The gateway bounds both.
        self._outbox = asyncio.Queue[Any]()
        #: Number of outputs of each core.
        self._outputs = Counter[int]()
        return requests

    async def warm_up(self, request: Generate) -> None:
        """Speak one request to its end in each engine core."""
        names = set()
        for core in range(self._cores):
            names.add(name := f"warm-up.{core}")
            await self._client.add_request_async(
                self._engine_request(RequestState(request, core=core), name)
            )
        while names:
            for output in (await self._client.get_output_async()).outputs:
                if output.finish_reason is not None:
                    names.discard(output.request_id)

    async def run(self, link: ChildLink[FromGateway]) -> None:
        """Serve until the link closes (LinkClosed) or the engine has died (EngineGone)."""
        self._link = link
        work = (self._read_inbox(link), self._read_cores(), self._write_cores(), self._watch())
        tasks = [asyncio.create_task(each) for each in work]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _read_inbox(self, link: ChildLink[FromGateway]) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            # a thread waits for messages and sends heartbeats meanwhile
            for message in await loop.run_in_executor(None, lambda: link.receive(wait=True)):
                self._handle(message)

    async def _read_cores(self) -> NoReturn:
        from vllm.v1.engine.exceptions import EngineDeadError

        while True:
            try:
                outputs = await self._client.get_output_async()
            except EngineDeadError as error:
                raise EngineGone from error
            if outputs.outputs:
                self._outputs[outputs.engine_index] += 1
            if rows := self._read(outputs):
                self._send_step(rows)

    async def _write_cores(self) -> NoReturn:
        """Send requests and aborts in the order in which they were made."""
        from vllm.v1.engine.exceptions import EngineDeadError

        while True:
            item = await self._outbox.get()
            try:
                if isinstance(item, str):
                    await self._client.abort_requests_async([item])
                else:
                    await self._client.add_request_async(item)
            except EngineDeadError as error:
                raise EngineGone from error
            except Exception:
                state = None if isinstance(item, str) else self._requests.of(item.request_id)
                if state is None:
                    raise
                log.exception("request %d failed", state.request.handle)
                self._break(state.request.handle)

    def _submit(self, request: Any) -> None:
        self._outbox.put_nowait(request)

    def _abort(self, state: RequestState) -> None:
        self._outbox.put_nowait(state.engine_id)

    async def _watch(self) -> NoReturn:
        """Return never. Raises EngineGone. Requests that come and go do not show that a core works,
        nor does another core's output, so the checks are counted for each. While this process is
        stopped there are none.
        """
        silent_s = dict[int, float]()
        before = Counter[int]()
        while True:
            await asyncio.sleep(_STALL_CHECK_S)
            outputs = self._outputs.copy()
            for core in {state.core for state in self._requests.working}:
                silent_s[core] = silent_s.get(core, 0.0) + _STALL_CHECK_S
            for core in outputs:
                if outputs[core] != before[core]:
                    silent_s[core] = 0.0
            before = outputs
            if max(silent_s.values(), default=0.0) > _STALL_S or self._is_dead():
                raise EngineGone

    def _is_dead(self) -> bool:
        """Whether a process has died. vLLM reports it only once the others have ended."""
        return is_dead(self._client) or len(active_children()) < self._processes

    def _break(self, handle: int, reason: FailureReason = "broken") -> None:
        """Handle a request that the engine gave up on. If one of its processes has died, this is
        not the request's fault: vLLM ends the others, which abort their requests. Raises EngineGone
        then.
        """
        if self._is_dead():
            raise EngineGone
        super()._break(handle, reason)


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
