"""Creation of encoders by format name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.audio import containers, opus, pcm
from service.audio.encoder import AudioEncoder, Fade, FilteringEncoder
from service.audio.filters import FASTEST, SLOWEST, Resampler, TimeStretch
from streaming.protocol.field_errors import unsupported
from streaming.spec import Samples

#: Besides these, formats without their own list have the codec's rate.
SAMPLE_RATES = containers.SAMPLE_RATES

#: Returns the bit rates of a format at an output rate.
_BitRates = Callable[[int], containers.Choice]


@dataclass(frozen=True, slots=True)
class _Format:
    """A format's encoder, created from (output rate, packet's ms, bit rate), and its limits."""

    media_type: str
    make: Callable[[int, int, int | None], AudioEncoder]
    default_rate: int | None = None  # None: the codec's own, or the next one of ``rates``
    rates: tuple[int, ...] = ()  # empty: SAMPLE_RATES and the codec's own
    frame_ms: tuple[int, ...] | None = None  # None: any
    bit_rates: _BitRates | None = None  # None: it has none

    def default_rate_for(self, codec_rate: int) -> int:
        """Return the default output rate, the lowest that loses nothing if there is one."""
        if self.default_rate or not self.rates:
            return self.default_rate or codec_rate
        return min((r for r in self.rates if r >= codec_rate), default=max(self.rates))


def _pcm(
    media_type: str, pack: Callable[[Samples], bytes], default_rate: int | None = None
) -> _Format:
    def make(rate: int, ms: int, _: int | None) -> AudioEncoder:
        return pcm.PcmEncoder(pack, rate, rate * ms // 1000)

    return _Format(media_type, make, default_rate)


def _wav(layout: pcm.WavLayout | None = None) -> _Format:
    return _Format("audio/wav", lambda rate, ms, _: pcm.WavEncoder(rate, rate * ms // 1000, layout))


def _opus(rate: int, frame_ms: int, bit_rate: int | None) -> AudioEncoder:
    frame = rate * (frame_ms or opus.DEFAULT_FRAME_MS) // 1000
    frames = opus.open_opus(rate, frame, bit_rate or opus.OPUS_BIT_RATE)
    return opus.OpusEncoder(frames, rate, frame)


def _file(
    media_type: str, format_: containers.FileFormat, bit_rates: _BitRates | None = None
) -> _Format:
    return _Format(
        media_type,
        lambda rate, _, bit_rate: containers.FileEncoder(format_, rate, bit_rate),
        rates=format_.rates,
        frame_ms=(0,),
        bit_rates=bit_rates,
    )


_FORMATS: dict[str, _Format] = {
    "pcm_s16le": _pcm("audio/pcm", pcm.pack_s16),
    "pcm_f32le": _pcm("audio/pcm", pcm.pack_f32),
    "pcm_mulaw": _pcm("audio/basic", pcm.pack_mulaw, 8_000),
    "pcm_alaw": _pcm("audio/x-alaw-basic", pcm.pack_alaw, 8_000),
    "opus": _Format(
        "audio/opus",
        _opus,
        rates=opus.OPUS_RATES,
        frame_ms=(0, *opus.OPUS_FRAME_MS),
        bit_rates=containers.opus_bit_rates,
    ),
    "wav": _wav(),
    "wav_f32le": _wav(pcm.WavLayout(3, 4, pcm.pack_f32)),
    "wav_alaw": _wav(pcm.WavLayout(6, 1, pcm.pack_alaw)),
    "wav_mulaw": _wav(pcm.WavLayout(7, 1, pcm.pack_mulaw)),
    "flac": _file("audio/flac", containers.FLAC),
    "mp3": _file("audio/mpeg", containers.MP3, containers.mp3_bit_rates),
    "ogg_opus": _file("audio/ogg", containers.OGG_OPUS, containers.opus_bit_rates),
    "aac": _file("audio/aac", containers.AAC, containers.aac_bit_rates),
}
#: The media types of formats over HTTP.
MEDIA_TYPES = {name: format_.media_type for name, format_ in _FORMATS.items()}


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
    """Create the encoder ``name`` for samples at ``codec_rate`` (Hz).

    ``sample_rate`` is the output's; None is the format's default. ``frame_ms`` is the audio in each
    packet; 0 is the format's default. ``bit_rate`` is in bits per second; None is the format's
    default. The audio is played at ``speed``, and fades in over ``fade_in_ms`` of playback. Raises
    RequestError (``unsupported``) whose ``param`` is ``encoding``, ``sample_rate``, ``frame_ms``,
    ``bitrate`` or ``speed``.
    """
    format_ = _FORMATS.get(name)
    if format_ is None:
        raise unsupported("encoding", f"The encodings are {', '.join(_FORMATS)}.")
    rate = format_.default_rate_for(codec_rate) if sample_rate is None else sample_rate
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
            listed = containers.describe_choice(choice)
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
