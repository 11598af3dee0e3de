"""Encoders by the name of their format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.audio.containers import (
    AAC,
    FLAC,
    MP3,
    OGG_OPUS,
    OPUS_BIT_RATES,
    Choice,
    FileEncoder,
    FileFormat,
    aac_bit_rates,
    describe_choice,
    mp3_bit_rates,
)
from service.audio.encoder import AudioEncoder, Fade, FilteringEncoder
from service.audio.filters import FASTEST, SLOWEST, Resampler, TimeStretch
from service.audio.opus import (
    DEFAULT_FRAME_MS,
    OPUS_BIT_RATE,
    OPUS_FRAME_MS,
    OPUS_RATES,
    OpusEncoder,
    open_opus,
)
from service.audio.pcm import (
    PcmEncoder,
    WavEncoder,
    WavLayout,
    pack_alaw,
    pack_f32,
    pack_mulaw,
    pack_s16,
)
from streaming.protocol.field_errors import unsupported
from streaming.spec import Samples

#: Rates that any format may be asked for, in Hz, beside the codec's own.
SAMPLE_RATES = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)

#: The media type of each format's bytes over HTTP.
MEDIA_TYPES: dict[str, str] = {
    "pcm_s16le": "audio/pcm",
    "pcm_f32le": "audio/pcm",
    "pcm_mulaw": "audio/basic",
    "pcm_alaw": "audio/x-alaw-basic",
    "opus": "audio/opus",
    "wav": "audio/wav",
    "wav_f32le": "audio/wav",
    "wav_alaw": "audio/wav",
    "wav_mulaw": "audio/wav",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "ogg_opus": "audio/ogg",
    "aac": "audio/aac",
}


@dataclass(frozen=True, slots=True)
class _Format:
    """How an encoder is made from (output rate, packet's ms, bit rate), and what it can do."""

    make: Callable[[int, int, int | None], AudioEncoder]
    default_rate: int | None = None  # None: the codec's own
    rates: tuple[int, ...] = ()  # none: SAMPLE_RATES and the codec's own
    frame_ms: tuple[int, ...] | None = None  # None: any
    bit_rates: Callable[[int], Choice] | None = None  # by output rate; None: it has none


def _pcm(pack: Callable[[Samples], bytes], default_rate: int | None = None) -> _Format:
    return _Format(lambda rate, ms, _: PcmEncoder(pack, rate, rate * ms // 1000), default_rate)


def _file(format_: FileFormat, bit_rates: Callable[[int], Choice] | None = None) -> _Format:
    return _Format(
        lambda rate, _, bit_rate: FileEncoder(format_, rate, bit_rate),
        rates=format_.rates,
        frame_ms=(0,),
        bit_rates=bit_rates,
    )


def _wav(layout: WavLayout | None = None) -> _Format:
    return _Format(lambda rate, ms, _: WavEncoder(rate, rate * ms // 1000, layout))


def _opus(rate: int, frame_ms: int, bit_rate: int | None) -> AudioEncoder:
    frame = rate * (frame_ms or DEFAULT_FRAME_MS) // 1000
    return OpusEncoder(open_opus(rate, frame, bit_rate or OPUS_BIT_RATE), rate, frame)


_FORMATS: dict[str, _Format] = {
    "pcm_s16le": _pcm(pack_s16),
    "pcm_f32le": _pcm(pack_f32),
    "pcm_mulaw": _pcm(pack_mulaw, 8_000),
    "pcm_alaw": _pcm(pack_alaw, 8_000),
    "opus": _Format(_opus, None, OPUS_RATES, (0, *OPUS_FRAME_MS), lambda _: OPUS_BIT_RATES),
    "wav": _wav(),
    "wav_f32le": _wav(WavLayout(3, 4, pack_f32)),
    "wav_alaw": _wav(WavLayout(6, 1, pack_alaw)),
    "wav_mulaw": _wav(WavLayout(7, 1, pack_mulaw)),
    "flac": _file(FLAC),
    "mp3": _file(MP3, mp3_bit_rates),
    "ogg_opus": _file(OGG_OPUS, lambda _: OPUS_BIT_RATES),
    "aac": _file(AAC, aac_bit_rates),
}


def make_stream_encoder(
    name: str,
    codec_rate: int,
    sample_rate: int | None = None,
    frame_ms: int = 0,
    *,
    bit_rate: int | None = None,
    speed: float = 1.0,
    fade_in_ms: int = 0,
) -> AudioEncoder:
    """The encoder ``name`` for samples at ``codec_rate`` (Hz).

    ``sample_rate`` is the output's, None the format's own default; ``frame_ms`` is how much
    audio each packet holds, 0 what is natural to the format; ``bit_rate`` is in bits per second,
    None the format's own default; the samples are heard ``speed`` times as fast, and fade in over
    ``fade_in_ms`` of what is heard. Raises RequestError (``unsupported``) whose ``param`` is
    ``encoding``, ``sample_rate``, ``frame_ms``, ``bitrate`` or ``speed``.
    """
    format_ = _FORMATS.get(name)
    if format_ is None:
        raise unsupported("encoding", f"The encodings are {', '.join(_FORMATS)}.")
    default_rate = format_.default_rate or codec_rate
    rate = default_rate if sample_rate is None else sample_rate
    rates = format_.rates or (*SAMPLE_RATES, codec_rate)
    if rate not in rates:
        listed = ", ".join(map(str, sorted(set(rates))))
        raise unsupported("sample_rate", f"The sample rates of {name} are {listed}.")
    if format_.frame_ms is not None and frame_ms not in format_.frame_ms:
        listed = ", ".join(map(str, format_.frame_ms))
        raise unsupported("frame_ms", f"{name} takes a frame_ms of {listed}.")
    if bit_rate is not None:
        if format_.bit_rates is None:
            raise unsupported("bitrate", f"{name} has no bit rate to choose.")
        choice = format_.bit_rates(rate)
        if bit_rate not in choice:
            listed = describe_choice(choice)
            raise unsupported("bitrate", f"The bit rates of {name} are {listed} at this rate.")
    if not SLOWEST <= speed <= FASTEST:
        raise unsupported("speed", f"The speed is from {SLOWEST} to {FASTEST}.")
    encoder = format_.make(rate, frame_ms, bit_rate)
    if rate != codec_rate:
        encoder = FilteringEncoder(Resampler(codec_rate, rate), encoder)
    if speed != 1.0:
        encoder = FilteringEncoder(TimeStretch(codec_rate, speed), encoder, inline=False)
    fade = round(codec_rate * fade_in_ms * speed / 1000)
    return FilteringEncoder(Fade(fade), encoder) if fade else encoder
