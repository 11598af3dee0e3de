"""Assembly of the service from its settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from asr.engine import WhisperEngine
from asr.whisper import ModelError
from codec.engine import CodecWorkerEngine
from embedded.front_ends import FRONT_ENDS
from service import __version__
from service.metrics import Metrics
from service.runtime import Runtime
from service.settings import Settings
from service.tracing import Tracing
from service.voices.registry import VoiceLibrary
from talker.engine import TalkerProcessEngine
from talker.hub import ModelFolder
from talker.shape import CheckpointError

#: (worker, phase, seconds since its start)
OnProgress = Callable[[str, str, float], None]


def build_runtime(settings: Settings, on_progress: OnProgress) -> Runtime:
    """Create the runtime of these settings, not yet started. Raises TracingError."""
    library = VoiceLibrary(settings.voices_dir, settings.max_voices)
    talker = TalkerProcessEngine(
        settings.model_path,
        settings.for_talker(),
        voices=library,
        front_ends=FRONT_ENDS,
        on_progress=partial(on_progress, "talker"),
    )
    codec = CodecWorkerEngine(
        # Resolved by the talker: the hub is asked once, and both use the same revision.
        settings.codec_model or talker.folder.found,
        talker=talker.folder.found if settings.codec_model else None,
        threads=settings.codec_threads,
        device=settings.codec_device,
        graphs=settings.codec_graphs,
        precision=settings.codec_precision,
        max_batch=settings.codec_max_batch,
        lookahead=settings.lookahead_frames,
        spare=settings.codec_spare,
        on_progress=partial(on_progress, "codec"),
    )
    metrics = Metrics(__version__, settings.model_name)
    whisper = build_recogniser(settings, partial(on_progress, "recogniser"))
    tracing = Tracing(__version__, settings.model_name) if settings.tracing else None
    return Runtime(settings, talker, codec, metrics, library, whisper, tracing)


def build_recogniser(
    settings: Settings, on_progress: Callable[[str, float], None]
) -> WhisperEngine | None:
    """Create the recogniser of these settings, if any."""
    if settings.asr_model is None:
        return None
    folder = ModelFolder(settings.asr_model)

    async def find() -> Path:
        try:
            return await folder.find(lambda seconds: on_progress("download", seconds))
        except CheckpointError as error:
            raise ModelError(str(error)) from error

    device, dtype, threads = settings.asr_device, settings.asr_dtype, settings.asr_threads
    return WhisperEngine(find, device=device, dtype=dtype, threads=threads)
