"""Speak one text through a running service: the command ``talkwire say``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from talkwire_client import (
    DEFAULT_URL,
    AudioChunk,
    ChunkingOptions,
    Client,
    ClientError,
    NoServerError,
    PlayerError,
    RefusedError,
    ServerError,
    SpeechOptions,
    WavWriter,
    Word,
    open_player,
)
from talkwire_client.captions import as_json, as_lines, as_srt
from talkwire_client.playback import Arrival, LeadingSilence, report

FAILED, NO_SERVER, REFUSED = 1, 3, 4
_FORMATS = {".srt": as_srt, ".json": as_json}


class SayError(Exception):
    """A failure to tell the user of, before the program ends with ``exit_code``."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class SayOptions:
    """A text to speak, and where its audio goes.

    Attributes:
        text: A whole text, or an iterator over its parts.
        timestamps: The file for the times of words: ``.srt`` or ``.json``; ``-``: in the result
            alone.
    """

    text: str | AsyncIterable[str]
    url: str = DEFAULT_URL
    out: Path | None = None
    play: bool = False
    voice: str | None = None
    temperature: float | None = None
    seed: int | None = None
    mode: str = "chunked"
    lookahead_frames: int | None = None
    timestamps: Path | None = None
    scene: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def speech_options(self, max_lead_ms: int) -> SpeechOptions:
        """Options of the speech.

        A file takes audio as fast as it can be made; a player's lead is the server's choice.

        Raises:
            SayError: A value is not allowed.
        """
        if self.mode not in ("chunked", "whole"):
            raise SayError("the mode is 'chunked' or 'whole'", 2)
        if self.timestamps is not None and self.timestamps_as is None:
            raise SayError("timestamps go to a .srt or .json file, or to '-'", 2)
        ahead = self.lookahead_frames
        return {
            "voice": self.voice,
            "temperature": self.temperature,
            "seed": self.seed,
            "mode": "whole" if self.mode == "whole" else "chunked",
            "chunking": ChunkingOptions(first_lookahead_frames=ahead, lookahead_frames=ahead),
            "max_lead_ms": None if self.play else max_lead_ms,
            "timestamps": self.timestamps is not None,
            "scene": self.scene,
        }

    @property
    def timestamps_as(self) -> Callable[[Sequence[Word]], str] | None:
        """The format of the file of words; None: its name tells no format."""
        name = "" if self.timestamps is None else str(self.timestamps)
        return as_lines if name == "-" else _FORMATS.get(Path(name).suffix.lower())


@dataclass(frozen=True, slots=True)
class SayResult:
    """Figures of the listener (see StreamReport); None where nothing audible came."""

    ttfa_ms: float | None
    audio_s: float
    rtf: float | None
    largest_gap_ms: float
    underrun_ms: float
    chunks: int
    path: str | None
    words: tuple[Word, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Figures for ``--json``, rounded to what a clock can tell, and words if asked for."""
        figures = {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in to_builtins(self).items()
        }
        if self.words is None:
            del figures["words"]
        return figures

    def as_text(self) -> str:
        """Figures in one line."""
        if self.ttfa_ms is None or self.rtf is None:
            spoken = "nothing audible came"
        else:
            spoken = (
                f"{self.audio_s:.2f} s of speech, first heard after {self.ttfa_ms:.0f} ms, "
                f"RTF {self.rtf:.2f}, {self.chunks} chunks, largest gap "
                f"{self.largest_gap_ms:.0f} ms, underrun {self.underrun_ms:.0f} ms"
            )
        return f"{spoken}; {self.path}" if self.path else spoken


class _Arrivals:
    """Arrivals of a stream and its leading silence, for the report."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.silence = LeadingSilence()

    def push(self, chunk: AudioChunk) -> None:
        # The whole text is sent at the start, so no pause is intended: every gap counts.
        self.arrivals.append(Arrival(chunk.arrived_s, chunk.samples))
        self.silence.push(chunk.data)


async def run_say(options: SayOptions) -> SayResult:
    """Stream one text, writing and playing it while it arrives.

    Raises:
        SayError: It was not spoken to its end, or not written or played.
    """
    try:
        return await _say(options)
    except NoServerError as error:
        raise SayError(f"{error}; start one with 'talkwire serve'", NO_SERVER) from error
    except (RefusedError, ServerError) as error:
        raise SayError(str(error), REFUSED) from error
    except (ClientError, PlayerError) as error:
        raise SayError(str(error), FAILED) from error


async def _say(options: SayOptions) -> SayResult:
    _check_text(options.text)
    record = _Arrivals()
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(options.url, api_key=options.api_key))
        rate = client.server.sample_rate
        create = options.speech_options(client.server.limits.max_lead_ms)
        wav = stack.enter_context(_wav(options.out, rate)) if options.out else None
        player = await stack.enter_async_context(open_player(rate)) if options.play else None
        started_s = time.monotonic()
        speech = await stack.enter_async_context(client.speak(options.text, **create))
        async for chunk in speech:
            record.push(chunk)
            if wav is not None:
                _write(wav, chunk.data)
            if player is not None:
                await player.write(chunk.data)
    words = speech.words
    if options.timestamps and str(options.timestamps) != "-" and options.timestamps_as:
        _write_text(options.timestamps, options.timestamps_as(words))
    figures = report(
        record.arrivals,
        started_s=started_s,
        sample_rate=rate,
        leading_silence_samples=record.silence.samples,
    )
    return SayResult(
        ttfa_ms=figures.ttfa_ms,
        audio_s=figures.audio_s,
        rtf=figures.rtf,
        largest_gap_ms=figures.largest_gap_ms,
        underrun_ms=figures.underrun_ms,
        chunks=figures.chunks,
        path=str(options.out) if options.out else None,
        words=tuple(words) if options.timestamps else None,
    )


def _check_text(text: str | AsyncIterable[str]) -> None:
    """Refuse half surrogate pairs: Python makes them of a command line that is not UTF-8."""
    try:
        if isinstance(text, str):
            text.encode()
    except UnicodeEncodeError as error:
        raise SayError("the text is not UTF-8", 2) from error


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SayError(f"cannot write {path}: {error.strerror}", FAILED) from error


def _wav(path: Path, sample_rate: int) -> WavWriter:
    try:
        return WavWriter(path, sample_rate)
    except OSError as error:
        raise SayError(f"cannot write {path}: {error.strerror}", FAILED) from error


def _write(wav: WavWriter, pcm: bytes) -> None:
    try:
        wav.write(pcm)
    except OSError as error:
        raise SayError(f"cannot write the file: {error.strerror}", FAILED) from error
