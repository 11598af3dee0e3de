"""The gateway's side of the recogniser, whose process starts with the first clip and then stays."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from asr.messages import Failed, FromWorker, Hear, Heard, Ready
from asr.whisper import ModelError, check_folder
from ipc.supervisor import ChildDown, ChildFailed, Program, Supervisor, Watch
from streaming.errors import BackendError, CapacityError, ErrorCode
from streaming.spec import Samples

log = logging.getLogger(__name__)
#: A large model can take minutes for a clip of 30 s on a CPU, without a message meanwhile.
WATCH = Watch(start_timeout_s=300.0, hang_timeout_s=300.0)
_MOST = 4


class WhisperEngine:
    """Transcribes clips in one supervised process. All methods belong to one event loop.

    Args:
        model: A folder with a Whisper model as transformers saves it, or a function that finds that
            folder in ``prepare`` and raises ModelError if there is none.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: ``auto`` (float16 on a GPU, float32 on a CPU) or the name of a torch dtype.
        threads: Number of processor threads.
        timeout_s: Maximum time for a clip, including the loading of the model. At most four clips
            are in progress.
        watch: Timeouts for the process to start and to answer.
    """

    def __init__(
        self,
        model: Path | Callable[[], Awaitable[Path]],
        *,
        device: str = "auto",
        dtype: str = "auto",
        threads: int = 1,
        timeout_s: float = 300.0,
        watch: Watch = WATCH,
    ) -> None:
        self._model, self._timeout_s, self._watch = model, timeout_s, watch
        self._arguments = ["--device", device, "--dtype", dtype, "--threads", str(threads)]
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._starting: asyncio.Task[None] | None = None
        self._supervisor: Supervisor[Heard | Failed] | None = None

    async def prepare(self) -> None:
        """Find the model, which may need a download. Its process starts with the first clip.

        Raises:
            BackendError: There is no Whisper model.
        """
        model = self._model
        try:
            folder = model if isinstance(model, Path) else await model()
            check_folder(folder)
        except ModelError as error:
            message = f"The setting asr_model names no model that can be used: {error}."
            raise BackendError(ErrorCode.INTERNAL, message) from error
        program: Program[Heard | Failed] = Program(
            module="asr.worker",
            args=["--model", str(folder), *self._arguments],
            inbound=FromWorker,
            ready=Ready,
            on_message=self._on_message,
            on_ready=lambda ready: None,
            on_down=self._on_down,
        )
        self._supervisor = Supervisor(program, self._watch)

    async def stop(self) -> None:
        """Stop the process. Clips in progress fail with BackendError."""
        if self._starting is not None and self._supervisor is not None:
            await asyncio.sleep(0)  # a start that was requested in this turn of the loop begins
            await self._supervisor.stop()
            with contextlib.suppress(ChildFailed):
                await asyncio.shield(self._starting)
        self._on_down()

    async def transcribe(self, samples: Samples, sample_rate: int) -> str:
        """Return the words of ``[n]`` samples, or "". Raises CapacityError, BackendError."""
        if len(self._waiting) >= _MOST:
            raise CapacityError(ErrorCode.OVERLOADED, "The recogniser is at its limit.")
        id, answer = next(self._ids), asyncio.get_running_loop().create_future()
        self._waiting[id] = answer
        try:
            async with asyncio.timeout(self._timeout_s):
                supervisor = await self._started()
                data = samples.astype("<f4", copy=False).tobytes()
                supervisor.send(Hear(id, data, sample_rate))
                text: str = await answer
                return text
        except (TimeoutError, ChildDown, ChildFailed) as error:
            log.error("a clip was not heard: %s", error)
            raise _failed() from None
        finally:
            self._waiting.pop(id, None)

    async def _started(self) -> Supervisor[Heard | Failed]:
        """Return the running process. Raises ChildFailed; the next clip tries again."""
        if self._supervisor is None:
            raise ChildFailed("the recogniser has not been prepared")
        starting = self._starting
        if starting is None or (starting.done() and starting.exception() is not None):
            starting = self._starting = asyncio.create_task(self._supervisor.start())
        await asyncio.shield(starting)
        return self._supervisor

    def _on_message(self, message: Heard | Failed) -> None:
        answer = self._waiting.get(message.id)
        if answer is None or answer.done():
            return
        if isinstance(message, Heard):
            answer.set_result(message.text)
        else:
            answer.set_exception(_failed())

    def _on_down(self) -> None:
        """Fail all clips without a retry: a voice without a transcript is better than none."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_failed())


def _failed() -> BackendError:
    return BackendError(ErrorCode.INTERNAL, "The clip's words could not be recognised.")
