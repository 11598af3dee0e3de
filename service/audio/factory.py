"""From the name of a format to its encoder; raises for what this server cannot make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.audio.files import AAC, FLAC, MP3, OGG_OPUS, FileEncoder, FileFormat
from service.audio.g711 import pack_alaw, pack_mulaw
from service.audio.opus import DEFAULT_FRAME_MS, OPUS_FRAME_MS, OpusEncoder
from service.audio.opus_frames import OPUS_RATES, open_opus
from service.audio.packet import AudioEncoder
from service.audio.pcm import PcmEncoder, WavEncoder, pack_f32, pack_s16
from service.audio.resample import ResamplingEncoder
from streaming.errors import ErrorCode, RequestError
from streaming.spec import Samples

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


@dataclass(frozen=True, slots=True)
class _Format:
    """How an encoder is made from (output rate, packet's ms), and what it can be asked for."""

    make: Callable[[int, int], AudioEncoder]
    default_rate: int | None = None  # None: the codec's own
    rates: tuple[int, ...] = ()  # none: SAMPLE_RATES and the codec's own
    frame_ms: tuple[int, ...] | None = None  # None: any


def _pcm(pack: Callable[[Samples], bytes], default_rate: int | None = None) -> _Format:
    return _Format(lambda rate, ms: PcmEncoder(pack, rate, rate * ms // 1000), default_rate)


def _file(format_: FileFormat) -> _Format:
    return _Format(lambda rate, _: FileEncoder(format_, rate), None, format_.rates, (0,))


def _opus(rate: int, frame_ms: int) -> AudioEncoder:
    frame = rate * (frame_ms or DEFAULT_FRAME_MS) // 1000
    return OpusEncoder(open_opus(rate, frame), rate, frame)


_FORMATS: dict[str, _Format] = {
    "pcm_s16le": _pcm(pack_s16),
    "pcm_f32le": _pcm(pack_f32),
    "pcm_mulaw": _pcm(pack_mulaw, 8_000),
    "pcm_alaw": _pcm(pack_alaw, 8_000),
    "opus": _Format(_opus, None, OPUS_RATES, (0, *OPUS_FRAME_MS)),
    "wav": _Format(lambda rate, ms: WavEncoder(rate, rate * ms // 1000)),
    "flac": _file(FLAC),
    "mp3": _file(MP3),
    "ogg_opus": _file(OGG_OPUS),
    "aac": _file(AAC),
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
    format_ = _FORMATS.get(name)
    if format_ is None:
        raise _unsupported("encoding", f"The encodings are {', '.join(_FORMATS)}.")
    default_rate = format_.default_rate or codec_rate
    rate = default_rate if sample_rate is None else sample_rate
    rates = format_.rates or (*SAMPLE_RATES, codec_rate)
    if rate not in rates:
        listed = ", ".join(map(str, sorted(set(rates))))
        raise _unsupported("sample_rate", f"The sample rates of {name} are {listed}.")
    if format_.frame_ms is not None and frame_ms not in format_.frame_ms:
        listed = ", ".join(map(str, format_.frame_ms))
        raise _unsupported("frame_ms", f"{name} takes a frame_ms of {listed}.")
    encoder = format_.make(rate, frame_ms)
    return encoder if rate == codec_rate else ResamplingEncoder(encoder, codec_rate)
