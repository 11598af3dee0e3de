"""The gateway's end of the talker: a TalkerEngine whose vLLM lives in a child process.

This module imports neither torch nor vLLM nor transformers. It builds the prompts, so that a
request can be checked at once, and keeps for each request in flight the rows that its
consumer has not taken yet. Those are bounded by the request's own ``max_frames``: 2,048
frames of 8 int16 codes are 32 KiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Callable

import msgspec

from ipc.supervisor import ChildDown, Supervisor, Watch
from streaming.errors import BackendError, CapacityError, ErrorCode
from streaming.ports import SpeechRequest, TalkerRows
from talker.checkpoint import Checkpoint, SamplingDefaults, open_checkpoint
from talker.intake import DEFAULT_VOICE, Intake, VoiceSource
from talker.messages import Abort, Failed, FromChild, FromGateway, Pause, Ready, Resume, Step
from talker.row_stream import RowStream
from talker.settings import TalkerSettings, resolve_max_positions

_RETRY_AFTER_MS = 2000
_FAILED = "The speech engine could not finish this text."
_DOWN = "The speech engine is restarting; try again."


class TalkerProcessEngine:
    """Implements ``streaming.ports.TalkerEngine``. All methods belong to one event loop.

    ``on_change`` is called whenever the engine comes up or goes down.
    """

    def __init__(
        self,
        model: str,
        settings: TalkerSettings | None = None,
        *,
        revision: str | None = None,
        voices: VoiceSource | None = None,
        watch: Watch | None = None,
        on_progress: Callable[[str, float], None] = lambda phase, seconds: None,
        on_change: Callable[[bool], None] = lambda is_ready: None,
    ) -> None:
        self._model, self._revision = model, revision
        self._settings = settings or TalkerSettings()
        self._voices, self._watch = voices, watch
        self._on_progress, self._on_change = on_progress, on_change
        self._checkpoint: Checkpoint | None = None
        self._intake: Intake | None = None
        self._supervisor: Supervisor[Step | Failed] | None = None
        self._info: Ready | None = None
        self._streams: dict[int, RowStream] = {}
        self._handles = itertools.count(1)
        self._down_since: float | None = None
        self._start_s: float | None = None
        self.last_step = Step(0, [])

    async def start(self) -> None:
        """Check the checkpoint, start the child, and return once it can work.

        Raises CheckpointError, or ipc's ChildFailed.
        """
        opened = await asyncio.to_thread(open_checkpoint, self._model, self._revision)
        limit = resolve_max_positions(self._settings, opened.shape.backbone.max_positions)
        self._intake = Intake(opened, limit, self._voices)
        self._checkpoint = opened
        self._supervisor = Supervisor(
            "talker.process",
            _arguments(opened, self._settings),
            inbound=FromChild,
            ready=Ready,
            on_message=self._on_message,
            on_ready=self._on_ready,
            on_down=self._on_down,
            on_progress=self._on_progress,
            watch=self._watch,
        )
        self._down_since = time.monotonic()
        await self._supervisor.start()

    async def stop(self) -> None:
        """End the child. Requests in flight fail."""
        if self._supervisor is not None:
            await self._supervisor.stop()
            self._supervisor = None
        self._on_down()

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken right now."""
        return self._supervisor is not None and self._supervisor.is_up

    @property
    def info(self) -> Ready | None:
        """What the child said of itself when it last came up."""
        return self._info

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint, once ``start`` has read it."""
        return self._checkpoint

    @property
    def defaults(self) -> SamplingDefaults | None:
        """The checkpoint's own sampling parameters."""
        return self._checkpoint.defaults if self._checkpoint else None

    @property
    def outstanding(self) -> int:
        """Requests in flight, as this end counts them."""
        return len(self._streams)

    @property
    def live(self) -> int:
        """Requests that the child's engine holds, as it said last."""
        return self.last_step.live if self.is_ready else 0

    @property
    def restarts(self) -> int:
        """How often the child has ended so far."""
        return self._supervisor.restarts if self._supervisor else 0

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._supervisor.pid if self._supervisor else None

    @property
    def capacity(self) -> int:
        """Utterances that the engine works on at once."""
        return self._settings.max_num_seqs * self._settings.data_parallel_size

    @property
    def voices(self) -> tuple[str, ...]:
        """The voices that can be asked for by name; the first is the default."""
        return (DEFAULT_VOICE, *(self._voices.names() if self._voices else ()))

    def check_options(self, request: SpeechRequest) -> None:
        """Raise RequestError if its voice or its sampling can never be served."""
        self._require_intake().check_options(request)

    def check(self, request: SpeechRequest) -> None:
        """Raise RequestError if the request can never be served; see ``ports``."""
        self._require_intake().message(request, 0)

    async def generate(self, request: SpeechRequest) -> AsyncGenerator[TalkerRows, None]:
        """Yield rows as they come; rows that have piled up come as one piece. While the
        consumer does not take them, the engine stops making more after ``hold_rows``.

        Raises RequestError as ``check`` does; CapacityError when ``max_outstanding`` is
        reached; BackendError ENGINE_RESTARTING when the child is down or dies, and
        ENGINE_FAILED when the engine gave up on this request alone.
        """
        handle = next(self._handles)
        message = self._require_intake().message(request, handle)
        assert self._checkpoint is not None
        if len(self._streams) >= self._settings.max_outstanding:
            raise CapacityError(
                ErrorCode.OVERLOADED, "The speech engine is full.", retry_after_ms=_RETRY_AFTER_MS
            )
        stream = RowStream(self._checkpoint.shape.num_codebooks, self._settings.hold_rows)
        self._streams[handle] = stream
        try:
            self._send(message)
            while True:
                if stream.is_paused and not stream.is_over:
                    stream.is_paused = False
                    self._send(Resume(handle))
                rows = await stream.next()
                yield rows
                if rows.finish:
                    return
        finally:
            del self._streams[handle]
            if not stream.is_over:
                with contextlib.suppress(BackendError):
                    self._send(Abort(handle))

    def _require_intake(self) -> Intake:
        if self._intake is None:
            raise BackendError(ErrorCode.NOT_READY, "The speech engine has not started.")
        return self._intake

    def _send(self, message: FromGateway) -> None:
        try:
            if self._supervisor is None:
                raise ChildDown
            self._supervisor.send(message)
        except ChildDown:
            raise self._restarting() from None

    def _on_ready(self, info: Ready) -> None:
        self._info, self.last_step = info, Step(0, [])
        if self._down_since is not None:
            self._start_s = time.monotonic() - self._down_since
            self._down_since = None
        self._on_change(True)

    def _on_message(self, message: Step | Failed) -> None:
        if isinstance(message, Failed):
            self.last_step = msgspec.structs.replace(self.last_step, live=message.live)
            if stream := self._streams.get(message.handle):
                stream.fail(BackendError(ErrorCode.ENGINE_FAILED, _FAILED))
            return
        self.last_step = message
        for new in message.rows:
            if stream := self._streams.get(new.handle):
                stream.put(new.rows, new.finish)
                if stream.is_full and not stream.is_paused:
                    stream.is_paused = True
                    with contextlib.suppress(BackendError):
                        self._send(Pause(new.handle))

    def _on_down(self) -> None:
        self._down_since = time.monotonic()
        for stream in self._streams.values():
            stream.fail(self._restarting())
        self._on_change(False)

    def _restarting(self) -> BackendError:
        """The retry hint is what is left of a start as long as the last one."""
        hint = _RETRY_AFTER_MS
        if self._start_s is not None and self._down_since is not None:
            left = self._start_s - (time.monotonic() - self._down_since)
            hint = max(hint // 4, int(left * 1000))
        return BackendError(ErrorCode.ENGINE_RESTARTING, _DOWN, retry_after_ms=hint)


def _arguments(opened: Checkpoint, settings: TalkerSettings) -> list[str]:
    encoded = msgspec.json.encode(settings).decode()
    return ["--model", str(opened.folder), "--settings", encoded]
