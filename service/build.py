"""Assembly of the service from its settings."""

from __future__ import annotations

from service import __version__
from service.admission import Admission
from service.auth.authenticator import Authority, TokenSigner
from service.engines.contracts import Engines
from service.engines.pace import EnginePace
from service.errors import ErrorLog
from service.launch import Launch, OnProgress, build_engines, build_library
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.pronunciations.library import PronunciationLibrary
from service.runtime import Runtime
from service.settings import Settings
from service.timers import LoopTurns, TimerWheel
from service.tracing import Tracing
from service.voices.names import Voices
from service.voices.registry import VoiceLibrary

#: Concurrent uploads on the whole server, and one client's share of them.
_MAX_UPLOADS, _UPLOADS_SHARE = 8, 0.5


def build_runtime(settings: Settings, on_progress: OnProgress) -> Runtime:
    """Create the runtime of these settings and its engines, not yet started. Raises KeyFileError,
    TracingError.
    """
    library = build_library(settings)
    return assemble(settings, build_engines(settings, library, on_progress), library)


def assemble(
    settings: Settings,
    engines: Engines,
    library: VoiceLibrary | None = None,
    *,
    launch: Launch | None = None,
    tracing: Tracing | None = None,
) -> Runtime:
    """Create the runtime around these engines, not yet started.

    Args:
        settings: The operator's settings.
        engines: Talker, codec and recogniser.
        library: The talker's source of voices; by default a new one.
        launch: The engines' start, if it has begun.
        tracing: Traces; by default as the settings say.

    Raises:
        KeyFileError: The file of the keys or of the tokens' secret cannot be used.
        TracingError: Traces cannot be exported.
    """
    metrics = Metrics(__version__, settings.model_name)
    if tracing is None and settings.tracing:
        tracing = Tracing(__version__, settings.model_name)
    authority = Authority(
        settings.api_keys_file,
        settings.max_failed_keys_per_minute,
        tokens=TokenSigner.of_file(settings.token_secret_file),
    )
    accounts, timers = authority.accounts, TimerWheel()
    admission = Admission(
        settings.max_contexts or 1,
        accounts,
        max_share=settings.max_client_share,
        rest_s=settings.slot_rest_s,
    )
    return Runtime(
        settings=settings,
        engines=engines,
        pace=EnginePace(settings, engines.talker, engines.codec),
        lifecycle=Lifecycle(settings, engines, metrics, timers),
        voices=Voices(settings, engines, library or build_library(settings)),
        pronunciations=PronunciationLibrary(settings.pronunciations_dir),
        admission=admission,
        uploads=Admission(_MAX_UPLOADS, max_share=_UPLOADS_SHARE),
        authority=authority,
        accounts=accounts,
        errors=ErrorLog(metrics, accounts),
        metrics=metrics,
        tracing=tracing,
        timers=timers,
        setup_turns=LoopTurns(),
        launch=launch,
    )
