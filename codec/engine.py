"""The gateway's side of the codec workers: each window is answered once, even if workers die.

``codec.pending`` keeps the windows and clips in progress, ``codec.workers`` runs the workers that
they go to.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from codec.batching import DecodeCost
from codec.messages import (
    Cancel,
    Decode,
    Decoded,
    Decoding,
    Encode,
    Encoded,
    Encoding,
    Failed,
    FromWorker,
    Ready,
)
from codec.pending import PendingDecodes, PendingEncodes, WorkerChoice
from codec.workers import CodecWorkers, WorkerEvents
from ipc.framing import MAX_MESSAGE_BYTES
from ipc.supervisor import ChildDown, ChildFailed, Program, Watch
from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.ports import DecodeStats, EncodedClip
from streaming.spec import CodecSpec, Samples
from streaming.window import DecodeWindow

log = logging.getLogger(__name__)
#: A turn of the worker takes a fifth of a second at most, and it reports that it is alive at each.
WATCH = Watch(hang_timeout_s=5.0, still_timeout_s=0.75)
_ENVELOPE_BYTES = 1024


class CodecWorkerEngine:
    """Implements ``streaming.ports.CodecEngine`` with ``workers`` supervised worker processes, and
    with ``spare`` another one that is ready to take over.

    ``model`` is a folder, a hub id, or a function that finds the folder when the engine starts:
    every worker then reads that folder, and none asks the hub. ``talker`` finds the talker's
    folder, if the codec is not part of it; its configuration gives the number of codebooks in use.
    ``device``: ``auto`` is a GPU if there is one. ``graphs``: ``auto`` decodes with CUDA graphs on
    a GPU, ``off`` never does. ``precision``: how a GPU multiplies, ``float32`` or ``tf32``; with
    ``auto`` it decodes in TF32. ``max_batch``: maximum number of windows in a batch.
    ``state_bytes``: memory for the states of streams in each worker. Both follow from the device by
    default. ``lookahead``: the usual lookahead, for which there are graphs. ``max_outstanding``:
    maximum number of windows in progress. Beyond that ``decode`` raises CapacityError at once,
    since a queue here would have to be a second deadline queue beside the worker's own.
    ``patience_s`` limits the total time of a window, including restarts of the worker, and of a
    clip. ``max_clips``: maximum number of clips in progress. ``module`` and ``env`` let tests run
    another worker.
    """

    def __init__(
        self,
        model: str | Callable[[], Awaitable[Path]],
        *,
        talker: Callable[[], Awaitable[Path]] | None = None,
        threads: int = 1,
        device: str = "auto",
        graphs: str = "auto",
        precision: str = "auto",
        max_batch: int | None = None,
        state_bytes: int | None = None,
        lookahead: int | None = None,
        workers: int = 1,
        spare: bool = False,
        max_outstanding: int = 512,
        max_clips: int = 8,
        patience_s: float = 60.0,
        watch: Watch = WATCH,
        on_progress: Callable[[str, float], None] = lambda phase, seconds: None,
        module: str = "codec.worker",
        env: dict[str, str] | None = None,
    ) -> None:
        self._patience_s = patience_s
        #: Numbers of windows and clips.
        self._ids = itertools.count()
        #: What the last worker reported when it was ready; None before the first.
        self._ready: Ready | None = None
        #: Whether ``stop`` was called.
        self._stopped = False
        #: Chooses the worker of each window.
        self._choice = WorkerChoice()
        self._decodes = PendingDecodes(self._send, max_outstanding, self._choice)
        self._encodes = PendingEncodes(self._send_clip, max_clips)
        #: Number of the worker that encodes clips, since each that does loads the encoder.
        self._clip_worker: int | None = None
        #: The codec's folder or hub id, or a function that finds the folder.
        self._model = model
        #: Finds the talker's folder, if the codec is not part of it.
        self._talker = talker
        #: The worker's module.
        self._module = module
        #: The worker's arguments, without folders.
        self._arguments = [
            *("--threads", str(threads), "--device", device),
            *("--graphs", graphs, "--precision", precision),
        ]
        for name, value in (
            ("--max-batch", max_batch),
            ("--state-bytes", state_bytes),
            ("--lookahead", lookahead),
        ):
            if value is not None:
                self._arguments += [name, str(value)]
        #: Additional environment of the worker.
        self._env = env
        #: Timeouts of the supervision.
        self._watch = watch
        self._on_progress = on_progress
        #: Number of workers that share the windows.
        self._count = workers
        #: Whether another worker is kept ready.
        self._spare = spare
        #: The workers and their spare, while they run.
        self._workers: CodecWorkers | None = None

    async def start(self) -> None:
        """Start the workers and return once all but the spare are ready.

        Raises ipc.supervisor.ChildFailed if one cannot become ready, and the errors of finding the
        folder.
        """
        model = self._model if isinstance(self._model, str) else str(await self._model())
        arguments = ["--model", model, *self._arguments]
        if self._talker is not None:
            arguments += ["--talker", str(await self._talker())]
        if self._stopped:
            raise ChildFailed("stopped before it was ready")
        program: Program[FromWorker] = Program(
            module=self._module,
            args=arguments,
            inbound=FromWorker,
            ready=Ready,
            on_message=lambda message: None,
            on_ready=lambda ready: None,
            on_down=lambda: None,
            on_progress=self._on_progress,
            env=self._env or {},
        )
        events = WorkerEvents(self._on_message, self._on_ready, self._on_down)
        self._workers = CodecWorkers(
            program, self._watch, events, count=self._count, spare=self._spare
        )
        await self._workers.start()

    async def stop(self) -> None:
        """Stop the workers. Every window in progress fails with BackendError."""
        self._stopped = True
        if self._workers is not None:
            await self._workers.stop()
        self._encodes.stop()
        self._decodes.stop()

    @property
    def is_ready(self) -> bool:
        """Whether a worker accepts work now."""
        return self._workers is not None and self._workers.is_up

    @property
    def workers(self) -> int:
        """Number of workers that decode now, at least 1."""
        return max(1, len(self._workers.active)) if self._workers else 1

    @property
    def has_spare_ready(self) -> bool | None:
        """Whether another worker could take over now; None without ``spare``."""
        if not self._spare:
            return None
        return self._workers is not None and self._workers.has_spare_up

    @property
    def restarts(self) -> int:
        """Number of times that a worker has been restarted."""
        return self._workers.restarts if self._workers else 0

    @property
    def takeovers(self) -> int:
        """Number of times that the spare has taken over from a dead worker."""
        return self._workers.takeovers if self._workers else 0

    @property
    def pid(self) -> int | None:
        """The first active worker's process id, while there is one."""
        return self._workers.pids[0] if self._workers else None

    @property
    def pids(self) -> list[int | None]:
        """The active workers' process ids."""
        return self._workers.pids if self._workers else []

    @property
    def spare_pid(self) -> int | None:
        """The spare's process id, while there is one."""
        return self._workers.spare_pid if self._workers else None

    @property
    def outstanding(self) -> int:
        """Number of windows not yet answered."""
        return len(self._decodes)

    @property
    def spec(self) -> CodecSpec:
        """Properties of the loaded codec. RuntimeError before ``start`` has returned."""
        return self._first_ready().spec

    @property
    def fingerprint(self) -> str:
        """See ``streaming.ports.CodecEngine``. RuntimeError before ``start`` has returned."""
        return self._first_ready().fingerprint

    @property
    def can_encode(self) -> bool:
        """Whether the checkpoint has an encoder. RuntimeError before ``start`` has returned."""
        return self._first_ready().can_encode

    @property
    def cost(self) -> DecodeCost:
        """The cost measured during warm-up: a prior for the scheduler."""
        return self._first_ready().cost

    async def decode(
        self, window: DecodeWindow, deadline_s: float, request_id: str = ""
    ) -> tuple[Samples, DecodeStats]:
        """Return the samples of the new frames, ``[new_frames * hop_length]``, and their cost.

        While the worker restarts, the window waits for it. If it fails, the log names it by
        ``request_id``. Cancelling the call drops the work. Raises CapacityError, BackendError.
        """
        self._require_running()
        samples_bytes = 4 * window.new_frames * self.spec.hop_length
        codes_bytes = window.codes.nbytes + (0 if window.history is None else window.history.nbytes)
        if max(codes_bytes, samples_bytes) > MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
            message = "This audio is too long for the speech decoder."
            raise BackendError(ErrorCode.CODEC_FAILED, message)
        id = next(self._ids)
        hop = self.spec.hop_length
        return await self._decodes.decode(id, window, hop, deadline_s, self._patience_s, request_id)

    async def encode(self, samples: Samples) -> EncodedClip:
        """See ``streaming.ports.CodecEngine``."""
        self._require_running()
        if not self.can_encode:
            message = "This model cannot clone voices: its checkpoint has no encoder."
            raise RequestError(ErrorCode.UNSUPPORTED, message)
        if samples.ndim != 1 or not 0 < 4 * len(samples) <= MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
            raise RequestError(ErrorCode.INVALID_AUDIO, "The audio is empty or too long.")
        id = next(self._ids)
        hop = self.spec.hop_length
        return await self._encodes.encode(id, samples, hop, self._patience_s)

    def _send(self, message: Decode | Encode | Cancel, worker: int) -> None:
        """Send now; if the worker is dying, ``_on_down`` sends it to another one."""
        with contextlib.suppress(ChildDown):
            if self._workers is not None:
                self._workers.send(worker, message)

    def _send_clip(self, message: Encode | Cancel) -> None:
        """Send now; without a worker ``_on_ready`` sends it to the next one."""
        if self._clip_worker is not None:
            self._send(message, self._clip_worker)

    def _require_running(self) -> None:
        if self._stopped:
            raise BackendError(ErrorCode.CODEC_FAILED, "The speech decoder is shutting down.")
        if self._ready is None:
            raise BackendError(ErrorCode.NOT_READY, "The speech decoder is still starting.")

    def _first_ready(self) -> Ready:
        if self._ready is None:
            raise RuntimeError("the codec worker has not been ready yet")
        return self._ready

    def _on_ready(self, worker: int, ready: Ready) -> None:
        if self._ready is None:
            log.info("codec ready", extra=ready.settings)
            if ready.licence:
                log.warning("the codec's licence: %s", ready.licence)
        self._ready = ready
        self._choice.keeps_streams = ready.spec.history_frames > 0
        self._choice.on_up(worker)
        self._share_work()

    def _on_down(self, worker: int) -> None:
        if self._stopped:
            return
        self._decodes.on_down(worker)
        if worker == self._clip_worker:
            self._clip_worker = None
            self._encodes.on_down()
        self._share_work()

    def _share_work(self) -> None:
        """Give what no worker has to the active ones, if there are any."""
        active = self._workers.active if self._workers else ()
        self._choice.workers = tuple(active)
        self._decodes.on_ready()
        if active and self._clip_worker is None:
            self._clip_worker = active[0]
            self._encodes.on_ready()

    def _on_message(self, worker: int, message: FromWorker) -> None:
        if isinstance(message, Decoding | Decoded):
            self._decodes.on_message(message, worker)
        elif isinstance(message, Encoding | Encoded):
            self._encodes.on_message(message)
        elif isinstance(message, Failed):
            self._on_failed(message)

    def _on_failed(self, failed: Failed) -> None:
        if self._encodes.on_failed(failed.id, bad_clip=failed.reason == "bad_clip"):
            log.error("a clip failed: %s", failed.detail)
        else:
            self._decodes.on_failed(failed.id, failed.detail)
