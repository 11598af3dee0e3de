"""Puts the real parts together: which classes run, and with what, is decided here alone."""

from __future__ import annotations

from collections.abc import Callable

from asr.engine import WhisperEngine
from codec.decodes import DecodeStats
from codec.engine import CodecWorkerEngine
from embedded.text import FRONT_ENDS
from service import __version__
from service.metrics import Metrics
from service.runtime import Runtime
from service.settings import Settings
from service.tracing import Tracing
from service.voices.library import VoiceLibrary
from talker.engine import TalkerProcessEngine
from talker.settings import TalkerSettings

#: (worker, phase, seconds since its start)
OnProgress = Callable[[str, str, float], None]


def build_runtime(settings: Settings, on_progress: OnProgress) -> Runtime:
    """The runtime for these settings; nothing is started yet. Raises TracingError."""

    def on_decoded(stats: DecodeStats) -> None:
        runtime.on_decoded(stats)

    library = VoiceLibrary(settings.voices_dir, settings.max_voices)
    talker = TalkerProcessEngine(
        settings.model_path,
        talker_settings(settings),
        voices=library,
        front_ends=FRONT_ENDS,
        on_progress=lambda phase, seconds: on_progress("talker", phase, seconds),
    )
    codec = CodecWorkerEngine(
        talker.folder.found,  # the talker finds it: one look at the hub, one revision for both
        threads=settings.codec_threads,
        device=settings.codec_device,
        graphs=settings.codec_graphs,
        max_batch=settings.codec_max_batch,
        on_decoded=on_decoded,
        on_progress=lambda phase, seconds: on_progress("codec", phase, seconds),
    )
    metrics = Metrics(__version__, settings.model_name)
    whisper = None if settings.asr_model is None else WhisperEngine(settings.asr_model)
    tracing = Tracing(__version__, settings.model_name) if settings.tracing else None
    runtime = Runtime(settings, talker, codec, metrics, library, whisper, tracing)
    return runtime


def talker_settings(settings: Settings) -> TalkerSettings:
    """The talker process's part of the settings: all whose names begin with ``talker_``."""
    return TalkerSettings(
        engine=settings.talker_engine,
        threads=settings.talker_threads,
        max_num_seqs=settings.talker_max_num_seqs,
        dtype=settings.talker_dtype,
        quantization=settings.talker_quantization,
        continuity=settings.talker_continuity,
        tensor_parallel_size=settings.talker_tensor_parallel_size,
        data_parallel_size=settings.talker_data_parallel_size,
        distributed_executor=settings.talker_distributed_executor,
        gpu_memory_utilization=settings.talker_gpu_memory_utilization,
    )
