from __future__ import annotations

import io
import struct

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.audio.formats import AudioFormat
from service.audio.pcm import wav_header
from streaming.errors import ErrorCode, RequestError

RATE = 24_000
EXTREMES = np.array([0, 1, -1, 0.5, 2, -3, 1 / 32767, 1.4 / 32767], np.float32)


def test_s16_rounds_and_clips() -> None:
    (packet,) = AudioFormat("pcm_s16le").encoder(RATE).encode(EXTREMES)
    want = [0, 32767, -32767, 16384, 32767, -32767, 1, 1]
    assert np.frombuffer(packet.data, "<i2").tolist() == want
    assert packet.samples == len(EXTREMES)


def test_f32_keeps_samples_unchanged() -> None:
    (packet,) = AudioFormat("pcm_f32le").encoder(RATE).encode(EXTREMES)
    assert np.array_equal(np.frombuffer(packet.data, "<f4"), EXTREMES)


@pytest.mark.parametrize("pieces", [[400], [1] * 400, [0, 100, 7, 293]])
def test_fade_in_rises_once_for_any_piece_sizes(pieces: list[int]) -> None:
    encoder = AudioFormat("pcm_f32le", fade_in_ms=10).encoder(RATE)
    given = np.ones(400, np.float32)
    packets, at = [], 0
    for piece in pieces:
        packets += encoder.encode(given[at : at + piece])
        at += piece
    packets += encoder.flush()
    heard = np.frombuffer(b"".join(packet.data for packet in packets), "<f4")
    rise = np.arange(240, dtype=np.float32) / 240
    assert np.array_equal(heard, np.concatenate([rise, np.ones(160, np.float32)]))
    assert (given == 1).all(), "what the codec made is left as it is"
    (later,) = encoder.encode(given)
    assert np.array_equal(np.frombuffer(later.data, "<f4"), given)


@given(st.lists(st.integers(0, 100), max_size=20), st.integers(1, 3))
def test_packets_have_frame_length_and_keep_all_samples(pieces: list[int], frame_ms: int) -> None:
    total = np.arange(sum(pieces), dtype=np.float32)
    encoder = AudioFormat("pcm_f32le", frame_ms=frame_ms).encoder(RATE)
    packets, at = [], 0
    for piece in pieces:
        packets += encoder.encode(total[at : at + piece])
        at += piece
    assert all(packet.samples == 24 * frame_ms for packet in packets)
    packets += encoder.flush()
    assert encoder.flush() == []
    assert np.array_equal(np.frombuffer(b"".join(p.data for p in packets), "<f4"), total)
    assert sum(packet.samples for packet in packets) == len(total)


def test_wav_stream_has_one_header() -> None:
    encoder = AudioFormat("wav").encoder(RATE)
    first, second = encoder.encode(EXTREMES) + encoder.encode(EXTREMES)
    assert encoder.encode(EXTREMES[:0]) == encoder.flush() == []
    assert first.data == wav_header(RATE) + second.data
    assert first.samples == second.samples == len(EXTREMES)
    assert AudioFormat("wav").encoder(RATE).flush()[0].data == wav_header(RATE)


@pytest.mark.parametrize(
    ("samples", "data", "riff"),
    [(None, 2**32 - 1, 2**32 - 1), (0, 0, 36), (5, 10, 46), (2**31, 2**32 - 1, 2**32 - 1)],
)
def test_wav_header_declares_sizes(samples: int | None, data: int, riff: int) -> None:
    header = wav_header(RATE, samples)
    assert len(header) == 44
    assert struct.unpack_from("<I", header, 40) == (data,)
    assert struct.unpack_from("<I", header, 4) == (riff,)


@pytest.mark.parametrize(
    ("name", "rate", "param"),
    [("mp2", None, "encoding"), ("pcm_s16le", 11_025, "sample_rate"), ("wav", 1, "sample_rate")],
)
def test_unknown_encoding_or_sample_rate_is_refused(
    name: str, rate: int | None, param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        AudioFormat(name, rate).encoder(RATE)
    assert (caught.value.code, caught.value.param) == (ErrorCode.UNSUPPORTED, param)


@pytest.mark.parametrize(
    ("name", "codec"),
    [("wav_f32le", "pcm_f32le"), ("wav_mulaw", "pcm_mulaw"), ("wav_alaw", "pcm_alaw")],
)
def test_wav_with_f32_or_g711_decodes_with_ffmpeg(name: str, codec: str) -> None:
    encoder = AudioFormat(name).encoder(RATE)
    samples = np.sin(np.arange(2400) / 10).astype(np.float32) * np.float32(0.5)
    packets = encoder.encode(samples[:1000]) + encoder.encode(samples[1000:]) + encoder.flush()
    with av.open(io.BytesIO(b"".join(packet.data for packet in packets)), "r") as file:
        assert file.streams.audio[0].codec_context.name == codec
        assert file.streams.audio[0].rate == RATE
        assert file.streams.audio[0].duration == len(samples)
        frames = [frame.to_ndarray()[0] for frame in file.decode(audio=0)]
    read = np.concatenate(frames).astype(np.float32)
    read = read if codec == "pcm_f32le" else read / np.float32(32768)
    assert np.allclose(read, samples, atol=0 if codec == "pcm_f32le" else 0.03)
