"""The gateway's side of the codec worker: each window is answered once, even if workers die.

``codec.pending`` keeps the windows and clips in progress, ``codec.workers`` runs the worker that
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
from codec.pending import PendingDecodes, PendingEncodes
from codec.workers import CodecWorkers
from ipc.framing import MAX_MESSAGE_BYTES
from ipc.supervisor import ChildDown, ChildFailed, Program, Watch
from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.ports import DecodeStats
from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow

log = logging.getLogger(__name__)
#: A turn of the worker takes a fifth of a second at most, and it reports that it is alive at each.
WATCH = Watch(hang_timeout_s=5.0, still_timeout_s=0.75)
_ENVELOPE_BYTES = 1024


class CodecWorkerEngine:
    """Implements ``streaming.ports.CodecEngine`` with one supervised worker process, and with
    ``spare`` another one that is ready to take over.

    ``model`` is a folder, a hub id, or a function that finds the folder when the engine starts:
    every worker then reads that folder, and none asks the hub. ``talker`` finds the talker's
    folder, if the codec is not part of it; its configuration gives the number of codebooks in use.
    ``device``: ``auto`` is a GPU if there is one. ``graphs``: ``auto`` decodes with CUDA graphs on
    a GPU, ``off`` never does. ``precision``: ``float32``, or ``tf32`` on a GPU. ``max_batch``: most
    windows in a batch. ``lookahead``: that of most windows, which have graphs of their own.
    ``max_outstanding``: most windows in progress. Beyond that ``decode`` raises CapacityError at
    once, since a queue here would have to be a second deadline queue beside the worker's own.
    ``patience_s`` limits the total time of a window, including restarts of the worker, and of a
    clip. ``max_clips``: most clips in progress. ``module`` and ``env`` let tests run another
    worker.
    """

    def __init__(
        self,
        model: str | Callable[[], Awaitable[Path]],
        *,
        talker: Callable[[], Awaitable[Path]] | None = None,
        threads: int = 1,
        device: str = "auto",
        graphs: str = "auto",
        precision: str = "float32",
        max_batch: int = 8,
        lookahead: int | None = None,
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
        self._ids = itertools.count()
        self._ready: Ready | None = None
        self._stopped = False
        self._decodes = PendingDecodes(self._send, max_outstanding)
        self._encodes = PendingEncodes(self._send, max_clips)
        self._model, self._talker, self._module = model, talker, module
        self._arguments = [
            *("--threads", str(threads), "--device", device),
            *("--graphs", graphs, "--precision", precision, "--max-batch", str(max_batch)),
        ]
        if lookahead is not None:
            self._arguments += ["--lookahead", str(lookahead)]
        self._env, self._watch, self._on_progress = env, watch, on_progress
        self._spare = spare
        self._workers: CodecWorkers | None = None

    async def start(self) -> None:
        """Start the worker and return once it is ready.

        Raises ipc.supervisor.ChildFailed if it cannot become ready, and the errors of finding the
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
            on_message=self._on_message,
            on_ready=self._on_ready,
            on_down=self._on_down,
            on_progress=self._on_progress,
            env=self._env or {},
        )
        self._workers = CodecWorkers(program, self._watch, spare=self._spare)
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
        """Whether the worker accepts work now."""
        return self._workers is not None and self._workers.is_up

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
        """The worker's process id, while there is one."""
        return self._workers.pid if self._workers else None

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
        id, hop = next(self._ids), self.spec.hop_length
        return await self._decodes.decode(id, window, hop, deadline_s, self._patience_s, request_id)

    async def encode(self, samples: Samples) -> Codes:
        """See ``streaming.ports.CodecEngine``."""
        self._require_running()
        if not self.can_encode:
            message = "This model cannot clone voices: its checkpoint has no encoder."
            raise RequestError(ErrorCode.UNSUPPORTED, message)
        if samples.ndim != 1 or not 0 < 4 * len(samples) <= MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
            raise RequestError(ErrorCode.INVALID_AUDIO, "The audio is empty or too long.")
        id, hop = next(self._ids), self.spec.hop_length
        return await self._encodes.encode(id, samples, hop, self._patience_s)

    def _send(self, message: Decode | Encode | Cancel) -> None:
        """Send now; without a worker ``_on_ready`` sends it to the next one."""
        with contextlib.suppress(ChildDown):
            if self._workers is not None:
                self._workers.send(message)

    def _require_running(self) -> None:
        if self._stopped:
            raise BackendError(ErrorCode.CODEC_FAILED, "The speech decoder is shutting down.")
        if self._ready is None:
            raise BackendError(ErrorCode.NOT_READY, "The speech decoder is still starting.")

    def _first_ready(self) -> Ready:
        if self._ready is None:
            raise RuntimeError("the codec worker has not been ready yet")
        return self._ready

    def _on_ready(self, ready: Ready) -> None:
        if self._ready is None and ready.licence:
            log.warning("the codec's licence: %s", ready.licence)
        self._ready = ready
        self._decodes.on_ready()
        self._encodes.on_ready()

    def _on_down(self) -> None:
        if not self._stopped:
            self._decodes.on_down()
            self._encodes.on_down()

    def _on_message(self, message: FromWorker) -> None:
        if isinstance(message, Decoding | Decoded):
            self._decodes.on_message(message)
        elif isinstance(message, Encoding | Encoded):
            self._encodes.on_message(message)
        elif isinstance(message, Failed):
            self._on_failed(message)

    def _on_failed(self, failed: Failed) -> None:
        if self._encodes.on_failed(failed.id, bad_clip=failed.reason == "bad_clip"):
            log.error("a clip failed: %s", failed.detail)
        else:
            self._decodes.on_failed(failed.id, failed.detail)
