"""The gateway's end of the talker: a TalkerEngine whose vLLM runs in a child process.

This module imports neither torch nor vLLM nor transformers. It builds the prompts, so that a
request can be checked at once. ``talker.pending_requests`` keeps the rows that are not taken yet.
They are bounded by the request's own ``max_frames``: 2,048 frames of 8 int16 codes are 32 KiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from ipc.supervisor import ChildDown, Program, Supervisor, Watch
from streaming.errors import BackendError, ErrorCode
from streaming.gpu_limits import outstanding_for
from streaming.ports import RowGenerator, SpeechRequest, TalkerSpec
from streaming.spec import Codes
from talker.checkpoint import Checkpoint, open_checkpoint
from talker.conversation import Conversations
from talker.hub import ModelFolder
from talker.messages import Failed, Forget, FromChild, FromGateway, Generate, Ready, Step
from talker.pending_requests import Downtime, PendingRequests
from talker.request_builder import DEFAULT_VOICE, RequestBuilder, VoiceSource
from talker.settings import DEFAULT_SEQS_CPU, TalkerSettings, resolve_max_positions
from text.front_end import FrontEnd

log = logging.getLogger(__name__)
#: Time allowed without a sign of life in one phase of the start: gigabytes from slow storage, and
#: with parallelism several processes that import torch one after another.
START_TIMEOUT_S = 900.0


def _inductor_cache() -> str:
    """torch's cache of compiled code. It is in the temporary files by default, and the child's own
    temporary files are deleted with it.
    """
    kept = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return kept or f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"


class TalkerProcessEngine:
    """Implements ``streaming.ports.TalkerEngine``. All methods belong to one event loop."""

    def __init__(
        self,
        model: str,
        settings: TalkerSettings | None = None,
        *,
        voices: VoiceSource | None = None,
        front_ends: Mapping[str, FrontEnd] | None = None,
        on_progress: Callable[[str, float], None] = lambda phase, seconds: None,
    ) -> None:
        #: The checkpoint's folder, which ``start`` finds.
        self.folder = ModelFolder(model)
        self._settings = settings or TalkerSettings()
        #: Source of reference voices.
        self._voices = voices
        #: Text front ends by name.
        self._front_ends = front_ends or {}
        self._on_progress = on_progress
        #: Builds the child's requests; None before ``start`` has read the checkpoint.
        self._builder: RequestBuilder | None = None
        #: Keeps the child running; None before ``start`` and after ``stop``.
        self._supervisor: Supervisor[Step | Failed] | None = None
        #: The child's description of itself from its last start.
        self._info: Ready | None = None
        #: Requests in flight. As many are accepted as follows from the child's capacity.
        self._pending = PendingRequests(
            self._send, self._max_outstanding(), self._settings.hold_rows
        )
        self._conversations = Conversations(self._settings.max_conversations)
        #: Numbers of requests.
        self._handles = itertools.count(1)
        #: How long the child has been down.
        self._downtime = Downtime()

    async def start(self) -> None:
        """Find and check the checkpoint, start the child, and return once it is ready.

        Raises CheckpointError, or ipc's ChildFailed.
        """
        folder = await self.folder.find(lambda seconds: self._on_progress("download", seconds))
        opened = await asyncio.to_thread(open_checkpoint, str(folder))
        continues = self._settings.has_continuity(opened.has_continuity)
        opened = dataclasses.replace(opened, has_continuity=continues)
        limit = resolve_max_positions(self._settings, opened.shape.backbone.max_positions)
        self._builder = RequestBuilder(opened, limit, self._voices, self._front_ends)
        for warning in opened.warnings:
            log.warning(warning)
        if opened.alignment.off_ms is not None:
            found = {"heads": len(opened.alignment.heads), "off_ms": opened.alignment.off_ms}
            log.info("word timings are calibrated", extra=found)
        licence = opened.licence
        extra = {"format": opened.family.title, "licence": licence.name}
        if licence.notice:
            extra["licence_notice"] = licence.notice
        log.info("checkpoint opened", extra=extra)
        program: Program[Step | Failed] = Program(
            module="talker.process",
            args=_arguments(opened, self._settings),
            inbound=FromChild,
            ready=Ready,
            on_message=self._pending.on_message,
            on_ready=self._on_ready,
            on_down=self._on_down,
            on_progress=self._on_progress,
            env={"TORCHINDUCTOR_CACHE_DIR": _inductor_cache()},
        )
        self._supervisor = Supervisor(program, Watch(start_timeout_s=START_TIMEOUT_S))
        self._downtime.begin()
        await self._supervisor.start()

    async def stop(self) -> None:
        """End the child. Requests in flight fail."""
        if self._supervisor is not None:
            await self._supervisor.stop()
            self._supervisor = None
        self._on_down()

    @property
    def is_ready(self) -> bool:
        """Whether a request would be accepted now."""
        return self._supervisor is not None and self._supervisor.is_up

    @property
    def spec(self) -> TalkerSpec:
        """Properties of the checkpoint. RuntimeError before ``start`` has read it."""
        if self._builder is None:
            raise RuntimeError("the checkpoint has not been read yet")
        return self._builder.spec

    @property
    def info(self) -> Ready | None:
        """The child's description of itself from its last start."""
        return self._info

    @property
    def outstanding(self) -> int:
        """Number of requests in flight, as counted by the gateway."""
        return len(self._pending)

    @property
    def last_step(self) -> Step:
        """The last step that the child reported; an empty one before the first."""
        return self._pending.last_step

    @property
    def live(self) -> int:
        """Number of requests in the child's engine, by its last report."""
        return self.last_step.live if self.is_ready else 0

    @property
    def restarts(self) -> int:
        """Number of times that the child has ended."""
        return self._supervisor.restarts if self._supervisor else 0

    @property
    def failures(self) -> Mapping[str, int]:
        """Number of requests that the engine gave up on, by reason."""
        return self._pending.failures

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._supervisor.pid if self._supervisor else None

    @property
    def capacity(self) -> int:
        """Number of utterances that the engine works on at once. Before ``start`` has returned it
        is a guess if it depends on the device.
        """
        known = self._settings.max_num_seqs or DEFAULT_SEQS_CPU
        each = self._info.max_num_seqs if self._info else known
        return each * self._settings.data_parallel_size

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of the voices; the first is the default."""
        speakers = self._builder.spec.speakers if self._builder else ()
        return (DEFAULT_VOICE, *speakers, *(self._voices.names() if self._voices else ()))

    def check_options(self, request: SpeechRequest) -> None:
        """Raise RequestError if its voice or its sampling can never be served."""
        self._require_builder().check_options(request)

    def check(self, request: SpeechRequest) -> None:
        """Raise RequestError if the request can never be served; see ``ports``."""
        self._require_builder().build(request)

    def forget(self, conversation: str) -> None:
        """See ``streaming.ports``."""
        number = self._conversations.forget(conversation)
        if number is not None:
            with contextlib.suppress(BackendError):
                self._send(Forget(number))

    def generate(self, request: SpeechRequest) -> RowGenerator:
        """Yield rows as they arrive, all waiting rows as one piece. If the consumer does not take
        them, the engine stops after ``hold_rows``. An utterance of a conversation waits until the
        one before it has been taken or closed.

        Raises RequestError as ``check`` does; CapacityError when ``max_outstanding`` is reached;
        BackendError ENGINE_RESTARTING when the child is down or dies, and ENGINE_FAILED when the
        engine gave up on this request alone.
        """
        builder = self._require_builder()
        if request.arriving is not None:
            builder.build(request)  # refused at once
            return self._speak(request, partial(self._begin_arriving, request))
        if request.conversation is None or not self.spec.has_continuity:
            alone = builder.build(request, next(self._handles))
            return self._speak(request, alone.message, alone.continued)
        utterance = builder.build(request)  # refused at once, not after the utterance before it
        talk = self._conversations.of(request.conversation)
        return talk.speak(
            lambda: builder.order(utterance, next(self._handles), talk),
            partial(self._speak, request),
        )

    def _begin_arriving(self, request: SpeechRequest) -> Generate:
        """Return the message for a request with all text that has come, and let the rest follow."""
        builder = self._require_builder()
        begun = builder.build(request, next(self._handles))
        if begun.message.is_open and request.arriving is not None:
            append = self._pending.appender(builder.appender(begun), begun.message.handle)
            request.arriving.listener = append
        return begun.message

    def _speak(
        self,
        request: SpeechRequest,
        message: Generate | Callable[[], Generate],
        continued: Codes | None = None,
    ) -> RowGenerator:
        books, name = self._require_builder().num_codebooks, request.request_id
        return self._pending.speak(message, books, name, continued, request.deadline)

    def _require_builder(self) -> RequestBuilder:
        if self._builder is None:
            raise BackendError(ErrorCode.NOT_READY, "The speech engine has not started.")
        return self._builder

    def _send(self, message: FromGateway) -> None:
        try:
            if self._supervisor is None:
                raise ChildDown
            self._supervisor.send(message)
        except ChildDown:
            raise self._downtime.error() from None

    def _max_outstanding(self) -> int:
        return self._settings.max_outstanding or outstanding_for(self.capacity)

    def _on_ready(self, info: Ready) -> None:
        self._info = info
        self._pending.max_pending = self._max_outstanding()
        log.info("talker ready", extra=msgspec.structs.asdict(info))
        self._pending.on_ready()
        self._downtime.end()

    def _on_down(self) -> None:
        self._downtime.begin()
        self._conversations.lose()
        self._pending.on_down(self._downtime.error)


def _arguments(opened: Checkpoint, settings: TalkerSettings) -> list[str]:
    encoded = msgspec.json.encode(settings).decode()
    return ["--model", str(opened.folder), "--settings", encoded]
