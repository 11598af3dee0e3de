"""The command ``talkwire say``: speak one text through a running service."""

from __future__ import annotations

import contextlib
import math
import ssl
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from service import Exit
from talkwire_client import (
    DEFAULT_URL,
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
from talkwire_client.captions import as_json, as_srt
from talkwire_client.playback import Arrival, LeadingSilence, StreamReport, report
from talkwire_client.player import player_command

_FORMATS = {".srt": as_srt, ".json": as_json}
#: Suffixes of files that get WAV; ones like ``/dev/fd/3`` have none.
_WAV_SUFFIXES = (".wav", "")
#: The fields of a StreamReport that are printed.
_FIGURES = ("ttfa_ms", "audio_s", "rtf", "largest_gap_ms", "underrun_ms", "chunks")


class SayError(Exception):
    """A failure to report to the user before the program ends with ``exit_code``."""

    def __init__(self, message: str, exit_code: Exit) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class SayResult:
    """The listener's figures, the audio's path, words if they were requested, and the server's
    warning, if any, such as of another voice than the requested one.
    """

    figures: StreamReport
    path: str | None
    words: tuple[Word, ...] | None = None
    warning: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return figures for ``--json``, rounded to milliseconds, and words if requested."""
        figures = ((name, getattr(self.figures, name)) for name in _FIGURES)
        told = {name: value if value is None else round(value, 3) for name, value in figures}
        told["path"] = self.path
        return told if self.words is None else {**told, "words": to_builtins(self.words)}

    def as_text(self) -> str:
        """Return the figures in one line."""
        heard = self.figures
        if heard.ttfa_ms is None or heard.rtf is None:
            spoken = "nothing audible came"
        else:
            spoken = (
                f"{heard.audio_s:.2f} s of speech, first heard after {heard.ttfa_ms:.0f} ms, "
                f"RTF {heard.rtf:.2f}, {heard.chunks} chunks, largest gap "
                f"{heard.largest_gap_ms:.0f} ms, underrun {heard.underrun_ms:.0f} ms"
            )
        return f"{spoken}; {self.path}" if self.path else spoken


async def run_say(
    text: str | AsyncIterable[str],
    url: str = DEFAULT_URL,
    out: Path | None = None,
    *,
    play: bool = False,
    timestamps: Path | None = None,
    api_key: str | None = None,
    speech: SpeechOptions | None = None,
) -> SayResult:
    """Stream one text, and write it to the WAV file ``out`` or play it while it arrives.

    Args:
        text: A whole text, or an iterator over its parts.
        url: The service's WebSocket.
        out: The WAV file to write, if any.
        play: Whether to play it.
        timestamps: The file for word times, ``.srt`` or ``.json``; ``-``: only in the result.
        api_key: An API key, if the service needs one.
        speech: Options of the speech, except for the lead: a file takes audio as fast as it is
            made, and the server chooses a player's lead.

    Returns:
        The listener's figures, and the words with ``timestamps``.

    Raises:
        SayError: The text was not spoken completely, or the audio not written or played.
    """
    words_file = None if timestamps == Path("-") else timestamps
    words_format = None if words_file is None else _FORMATS.get(words_file.suffix.lower())
    if words_file is not None and words_format is None:
        raise SayError("timestamps go to a .srt or .json file, or to '-'", Exit.USAGE)
    options: SpeechOptions = {**(speech or {})}
    _check(text, out, options)
    arrivals: list[Arrival] = []
    silence = LeadingSilence()
    async with _failures(), contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(url, api_key=api_key))
        options["timestamps"] = timestamps is not None
        options["max_lead_ms"] = None if play else client.server.limits.max_lead_ms
        rate = client.server.sample_rate
        wav = None
        if words_file is not None:
            _check_writable(words_file)
        if out is not None:
            with _writing(out):
                wav = stack.enter_context(WavWriter(out, rate))
        player = await stack.enter_async_context(open_player(rate)) if play else None
        started_s = time.monotonic()
        speaking = await stack.enter_async_context(client.speak(text, **options))
        async for chunk in speaking:
            # The whole text is sent at the start, so every gap is an underrun.
            arrivals.append(Arrival(chunk.arrived_s, chunk.samples))
            silence.push(chunk.data)
            if wav is not None:
                with _writing("the file"):
                    wav.write(chunk.data)
            if player is not None:
                await player.write(chunk.data)
    if words_file is not None and words_format is not None:
        with _writing(words_file):
            words_file.write_text(words_format(speaking.words), encoding="utf-8")
    figures = report(
        arrivals, started_s=started_s, sample_rate=rate, leading_silence_samples=silence.samples
    )
    words = tuple(speaking.words) if timestamps else None
    warnings = [speaking.warning, *(warned.message for warned in speaking.markup_warnings)]
    warning = " ".join(filter(None, warnings)) or None
    return SayResult(figures, str(out) if out else None, words, warning)


def can_play() -> bool:
    """Whether somebody can hear: output goes to a terminal, and a player is installed."""
    if sys.stdout is None or not sys.stdout.isatty():
        return False
    return player_command(24_000) is not None


def _check(text: str | AsyncIterable[str], out: Path | None, options: SpeechOptions) -> None:
    """Raise SayError for arguments that no service takes."""
    if out is not None and out.suffix.lower() not in _WAV_SUFFIXES:
        message = f"--out writes a .wav file, not {out.suffix} (POST /v1/audio/speech has others)"
        raise SayError(message, Exit.USAGE)
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError as error:  # surrogates: the command line is not UTF-8
            raise SayError("the text is not UTF-8", Exit.USAGE) from error
    if options.get("mode", "chunked") not in ("chunked", "whole"):
        raise SayError("the mode is 'chunked' or 'whole'", Exit.USAGE)
    if not math.isfinite(options.get("temperature") or 0.0):
        raise SayError("the temperature is not a finite number", Exit.USAGE)


@contextlib.asynccontextmanager
async def _failures() -> AsyncIterator[None]:
    """Convert errors of the client and the player to SayError."""
    try:
        yield
    except NoServerError as error:
        cause, hint = error.__cause__, ""
        if isinstance(cause, ssl.SSLCertVerificationError):
            hint = "; SSL_CERT_FILE names the certificates to trust"
        elif isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError):
            hint = "; start one with 'talkwire serve'"
        raise SayError(f"{error}{hint}", Exit.NO_SERVER) from error
    except (RefusedError, ServerError) as error:
        raise SayError(str(error), Exit.REFUSED) from error
    except PlayerError as error:
        raise SayError(f"{error}; --out FILE writes a file instead", Exit.FAILED) from error
    except ClientError as error:
        raise SayError(str(error), Exit.FAILED) from error


@contextlib.contextmanager
def _writing(what: object) -> Iterator[None]:
    """Convert OSError to SayError."""
    try:
        yield
    except OSError as error:
        raise SayError(f"cannot write {what}: {error.strerror}", Exit.FAILED) from error


def _check_writable(path: Path) -> None:
    """Raise SayError if a file cannot be written, without changing it. A pipe is not tried, since
    its reader would see its end.
    """
    with _writing(path):
        is_new = not path.exists()
        if not (is_new or path.is_file() or path.is_dir()):
            return
        path.open("ab").close()
        if is_new:
            path.resolve().unlink()  # not a link to a file that does not exist yet
