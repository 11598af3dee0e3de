"""The engines of the settings. Nothing here imports the gateway, so that their processes can start
before it is imported, and load meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from asr.engine import WhisperEngine
from asr.whisper import ModelError
from codec.engine import CodecWorkerEngine
from ipc.cores import usable_cores
from service.engines.contracts import Engines
from service.settings import Settings
from service.voices.registry import VoiceLibrary
from talker.engine import TalkerProcessEngine
from talker.hub import ModelFolder
from talker.settings import is_gpu_build
from talker.shape import CheckpointError
from text.registry import FRONT_ENDS

#: (worker, phase, seconds since its start)
OnProgress = Callable[[str, str, float], None]


@dataclass(frozen=True, slots=True)
class Launch:
    """Engines whose start began before the gateway was imported.

    ``library`` has the talker's voices. Clients have been able to connect ``since`` then
    (``time.monotonic``).
    """

    engines: Engines
    library: VoiceLibrary
    starting: asyncio.Task[None]
    since: float


def build_engines(settings: Settings, library: VoiceLibrary, on_progress: OnProgress) -> Engines:
    """Create the engines of these settings, not yet started. ``library`` has its voices."""
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
        state_bytes=settings.codec_state_bytes,
        lookahead=settings.lookahead_frames,
        workers=settings.count_codec_workers(usable_cores(), has_gpu_build=is_gpu_build()),
        spare=settings.codec_spare,
        on_progress=partial(on_progress, "codec"),
    )
    return Engines(talker, codec, build_recogniser(settings, partial(on_progress, "recogniser")))


def build_library(settings: Settings) -> VoiceLibrary:
    """Create the library of these settings' voices, not yet opened."""
    return VoiceLibrary(settings.voices_dir, settings.max_voices)


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
