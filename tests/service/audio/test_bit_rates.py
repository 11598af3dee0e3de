"""Bit rates that a client chooses, measured on the encoded audio."""

from __future__ import annotations

import io

import av
import pytest

from service.audio.formats import AudioFormat
from streaming.errors import ErrorCode, RequestError
from tests.service.audio.audio_signal import RATE, joined, run, voice

SECONDS = 4
SPEECH = voice(SECONDS * RATE)


def bits_per_second(name: str, bit_rate: int | None, sample_rate: int | None = None) -> float:
    encoder = AudioFormat(name, sample_rate, bit_rate=bit_rate).encoder(RATE)
    return 8 * len(joined(run(encoder, SPEECH, [4800] * 10))) / SECONDS


@pytest.mark.parametrize(
    ("sample_rate", "bit_rate"),
    [(8_000, 8_000), (22_050, 32_000), (24_000, 160_000), (44_100, 192_000), (48_000, 320_000)],
)
def test_mp3_frames_declare_requested_bit_rate(sample_rate: int, bit_rate: int) -> None:
    encoder = AudioFormat("mp3", sample_rate, bit_rate=bit_rate).encoder(RATE)
    data = joined(run(encoder, SPEECH))
    with av.open(io.BytesIO(data), "r") as file:
        packets = [packet for packet in file.demux(audio=0) if packet.size]
        assert file.streams.audio[0].codec_context.bit_rate == bit_rate
        assert file.streams.audio[0].rate == sample_rate
    assert 8 * len(data) / SECONDS == pytest.approx(bit_rate, rel=0.06)
    assert len(packets) > 50


#: Bits per second of page headers: fifty pages a second, 28 bytes each.
OGG = 50 * 8 * 28


@pytest.mark.parametrize(("name", "around"), [("opus", 0), ("ogg_opus", OGG)])
def test_opus_size_follows_bit_rate(name: str, around: int) -> None:
    low, usual, high = (bits_per_second(name, rate) for rate in (12_000, None, 128_000))
    assert low < 0.6 * usual
    assert high > 1.5 * usual
    assert low < around + 1.4 * 12_000


def test_aac_size_follows_bit_rate() -> None:
    low, usual, high = (bits_per_second("aac", rate) for rate in (16_000, None, 128_000))
    assert low < 0.6 * usual < 0.6 * high


@pytest.mark.parametrize(
    ("name", "sample_rate", "bit_rate"),
    [
        ("mp3", 24_000, 192_000),
        ("mp3", 44_100, 16_000),
        ("mp3", 8_000, 80_000),
        ("mp3", 24_000, 33_000),
        ("opus", 24_000, 5_999),
        ("ogg_opus", 24_000, 256_001),
        ("aac", 8_000, 48_001),
        ("pcm_s16le", 24_000, 384_000),
        ("flac", 24_000, 64_000),
        ("wav", 24_000, 384_000),
    ],
)
def test_unsupported_bit_rate_is_refused(name: str, sample_rate: int, bit_rate: int) -> None:
    with pytest.raises(RequestError) as caught:
        AudioFormat(name, sample_rate, bit_rate=bit_rate).encoder(RATE)
    assert (caught.value.code, caught.value.param) == (ErrorCode.UNSUPPORTED, "bitrate")


@pytest.mark.parametrize("name", ["mp3", "opus", "aac"])
@pytest.mark.parametrize("sample_rate", [8_000, 16_000, 24_000, 48_000])
def test_encoder_accepts_bit_rates_named_in_refusal(name: str, sample_rate: int) -> None:
    """The limits or steps that a refusal names are themselves accepted."""
    with pytest.raises(RequestError) as caught:
        AudioFormat(name, sample_rate, bit_rate=1).encoder(RATE)
    numbers = [
        int(word) for word in caught.value.message.replace(",", "").split() if word.isdigit()
    ]
    assert len(numbers) >= 2
    for bit_rate in numbers:
        encoder = AudioFormat(name, sample_rate, bit_rate=bit_rate).encoder(RATE)
        data = joined(run(encoder, SPEECH[:RATE]))
        assert data
        if name == "mp3":  # lame would replace a step that the format lacks
            with av.open(io.BytesIO(data), "r") as file:
                assert file.streams.audio[0].codec_context.bit_rate == bit_rate
