"""From the name of a format to its encoder; raises for what this server cannot make."""

from __future__ import annotations

from collections.abc import Callable

from service.audio.packet import AudioEncoder
from service.audio.pcm import PcmEncoder, WavEncoder, pack_f32, pack_s16
from service.audio.resample import ResamplingEncoder
from streaming.errors import ErrorCode, RequestError

#: Rates that any format may be asked for, in Hz, beside the codec's own.
SAMPLE_RATES = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)

#: The media type of each format's bytes over HTTP.
MEDIA_TYPES: dict[str, str] = {
    "pcm_s16le": "audio/pcm",
    "pcm_f32le": "audio/pcm",
    "pcm_mulaw": "audio/basic",
    "pcm_alaw": "audio/x-alaw-basic",
    "opus": "audio/opus",
    "wav": "audio/wav",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "ogg_opus": "audio/ogg",
    "aac": "audio/aac",
}


def _pcm_s16(rate: int, frame_ms: int) -> AudioEncoder:
    return PcmEncoder(pack_s16, rate, rate * frame_ms // 1000)


def _pcm_f32(rate: int, frame_ms: int) -> AudioEncoder:
    return PcmEncoder(pack_f32, rate, rate * frame_ms // 1000)


def _wav(rate: int, frame_ms: int) -> AudioEncoder:
    return WavEncoder(rate, rate * frame_ms // 1000)


_MAKERS: dict[str, Callable[[int, int], AudioEncoder]] = {
    "pcm_s16le": _pcm_s16,
    "pcm_f32le": _pcm_f32,
    "wav": _wav,
}


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(ErrorCode.UNSUPPORTED, message, param=param)


def make_stream_encoder(
    name: str, codec_rate: int, sample_rate: int | None = None, frame_ms: int = 0
) -> AudioEncoder:
    """The encoder ``name`` for samples at ``codec_rate`` (Hz).

    ``sample_rate`` is the output's, None the format's own default; ``frame_ms`` is how much
    audio each packet holds, 0 what is natural to the format. Raises RequestError
    (``unsupported``) whose ``param`` is ``encoding``, ``sample_rate`` or ``frame_ms``.
    """
    make = _MAKERS.get(name)
    if make is None:
        raise _unsupported("encoding", f"The encodings are {', '.join(_MAKERS)}.")
    rate = codec_rate if sample_rate is None else sample_rate
    if rate != codec_rate and rate not in SAMPLE_RATES:
        rates = ", ".join(map(str, sorted({*SAMPLE_RATES, codec_rate})))
        raise _unsupported("sample_rate", f"The sample rates are {rates}.")
    encoder = make(rate, frame_ms)
    return encoder if rate == codec_rate else ResamplingEncoder(encoder, codec_rate)
