"""Formats of audio, and the creation of their encoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from service.audio import containers, opus, pcm
from service.audio.encoder import AudioEncoder, Fade, FilteringEncoder
from service.audio.filters import FASTEST, SLOWEST, Resampler, TimeStretch
from streaming.protocol.field_errors import unsupported
from streaming.spec import Samples

#: A difference of speeds that nobody hears.
_UNHEARD = 0.005
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


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """How a context's audio is encoded.

    Attributes:
        name: The encoding.
        sample_rate: The output's rate in Hz; None: the encoding's default.
        frame_ms: Milliseconds of audio in each packet; 0: the encoding's default.
        bit_rate: Bits per second; None: the encoding's default.
        speed: The factor of the speed at which the audio is played.
        fade_in_ms: Milliseconds of playback over which the audio fades in.
        is_chained: Whether each flush ends a file, and the next audio begins another.
    """

    name: str
    sample_rate: int | None = None
    frame_ms: int = 0
    bit_rate: int | None = None
    speed: float = 1.0
    fade_in_ms: int = 0
    is_chained: bool = False

    @property
    def media_type(self) -> str:
        """The media type over HTTP."""
        return MEDIA_TYPES[self.name]

    def at_speed(self, factor: float) -> AudioFormat:
        """Return this format with ``factor`` times the speed, as far as the filter can change it.

        A product of nearly 1 is 1, which needs no filter. A speed that is not possible without the
        factor is left for ``output_rate`` to refuse.
        """
        if factor == 1.0 or not SLOWEST <= self.speed <= FASTEST:
            return self
        speed = min(FASTEST, max(SLOWEST, self.speed * factor))
        return replace(self, speed=1.0 if abs(speed - 1.0) < _UNHEARD else speed)

    def output_rate(self, codec_rate: int) -> int:
        """Return the output's rate (Hz) for samples at ``codec_rate``.

        Raises RequestError (``unsupported``) if there is no encoder for this format. Its ``param``
        is ``encoding``, ``sample_rate``, ``frame_ms``, ``bitrate`` or ``speed``.
        """
        name, format_ = self.name, _FORMATS.get(self.name)
        if format_ is None:
            raise unsupported("encoding", f"The encodings are {', '.join(_FORMATS)}.")
        rate = self.sample_rate
        rate = format_.default_rate_for(codec_rate) if rate is None else rate
        rates = format_.rates or (*SAMPLE_RATES, codec_rate)
        if rate not in rates:
            listed = ", ".join(map(str, sorted(set(rates))))
            raise unsupported("sample_rate", f"The sample rates of {name} are {listed}.")
        if format_.frame_ms is not None and self.frame_ms not in format_.frame_ms:
            listed = ", ".join(map(str, format_.frame_ms))
            raise unsupported("frame_ms", f"{name} takes a frame_ms of {listed}.")
        if self.bit_rate is not None:
            if format_.bit_rates is None:
                raise unsupported("bitrate", f"{name} has no bit rate to choose.")
            choice = format_.bit_rates(rate)
            if self.bit_rate not in choice:
                listed = containers.describe_choice(choice)
                raise unsupported("bitrate", f"The bit rates of {name} are {listed} at this rate.")
        if not SLOWEST <= self.speed <= FASTEST:
            raise unsupported("speed", f"The speed is from {SLOWEST} to {FASTEST}.")
        return rate

    def encoder(self, codec_rate: int) -> AudioEncoder:
        """Create an encoder of samples at ``codec_rate`` (Hz). Raises what ``output_rate`` does."""
        rate = self.output_rate(codec_rate)

        def make() -> AudioEncoder:
            encoder = _FORMATS[self.name].make(rate, self.frame_ms, self.bit_rate)
            if rate != codec_rate:
                encoder = FilteringEncoder(Resampler(codec_rate, rate), encoder)
            if self.speed != 1.0:
                stretch = TimeStretch(codec_rate, self.speed)
                encoder = FilteringEncoder(stretch, encoder, inline=False, by_utterance=True)
            fade = round(codec_rate * self.fade_in_ms * self.speed / 1000)
            return FilteringEncoder(Fade(fade), encoder) if fade else encoder

        return containers.RestartingEncoder(make) if self.is_chained else make()
