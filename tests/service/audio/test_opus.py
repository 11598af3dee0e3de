"""Opus encoding with both libopus bindings, checked with ffmpeg's own decoder."""

from __future__ import annotations

import struct
from itertools import pairwise

import av
import numpy as np
import psutil
import pytest

from service.audio import opus as opus_frames
from service.audio.encoder import Packet
from service.audio.formats import AudioFormat
from service.audio.opus import (
    OPUS_FRAME_MS,
    BundledOpus,
    OpusEncoder,
    SystemOpus,
    has_system_opus,
    open_opus,
)
from streaming.spec import Samples
from talkwire_client.audio import opus_packet_ms
from tests.service.audio.audio_signal import lag, run, snr_db, upsampled, voice

RATES = (8_000, 16_000, 24_000, 48_000)
BINDINGS = [
    pytest.param(
        SystemOpus, marks=pytest.mark.skipif(not has_system_opus(), reason="no system libopus")
    ),
    BundledOpus,
]
CLOCK = 48_000


def make(binding: type, rate: int, frame_ms: int) -> OpusEncoder:
    frame = rate * frame_ms // 1000
    return OpusEncoder(binding(rate, frame), rate, frame)


def decoded(packets: list[Packet]) -> Samples:
    """Decode at 48 kHz with ffmpeg's own Opus decoder, which shares no code with libopus.

    Pre-skip is declared as 0, so all samples of the packets are returned.
    """
    decoder = av.AudioCodecContext.create("opus", "r")
    decoder.sample_rate, decoder.layout = CLOCK, "mono"
    decoder.extradata = struct.pack("<8sBBHIHB", b"OpusHead", 1, 1, 0, CLOCK, 0, 0)
    frames = [frame for packet in packets for frame in decoder.decode(av.Packet(packet.data))]
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("frame_ms", OPUS_FRAME_MS)
def test_opus_keeps_whole_utterance(binding: type, rate: int, frame_ms: int) -> None:
    speech = voice(2 * rate + 11, rate)
    encoder = make(binding, rate, frame_ms)
    packets = run(encoder, speech, [1, 100, 0, 5000])
    scale = CLOCK // rate
    assert encoder.delay_samples * scale == 312
    assert sum(packet.samples - packet.padding for packet in packets) == len(speech)
    assert packets[0].padding == encoder.delay_samples
    assert not any(packet.padding for packet in packets[1:-1])

    heard = decoded(packets)
    assert len(heard) == scale * sum(packet.samples for packet in packets)
    heard = heard[312:][: scale * len(speech)]
    wanted = upsampled(speech, scale)
    assert abs(lag(wanted, heard)) <= 2
    assert np.corrcoef(wanted, heard)[0, 1] > 0.99
    assert snr_db(wanted, heard) > 18


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("frame_ms", OPUS_FRAME_MS)
def test_opus_packets_have_declared_duration(binding: type, frame_ms: int) -> None:
    for packet in run(make(binding, 24_000, frame_ms), voice(10_000)):
        assert opus_packet_ms(packet.data) == frame_ms
        assert packet.samples == 24 * frame_ms


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("length", [1, 300, 323, 324, 325, 480, 480 * 5 - 156])
def test_opus_pads_utterances_to_full_packets(binding: type, length: int) -> None:
    packets = run(make(binding, 24_000, 20), voice(length))
    assert sum(packet.samples - packet.padding for packet in packets) == length
    assert len(packets) == -(-(length + 156) // 480)


@pytest.mark.parametrize("binding", BINDINGS)
def test_opus_continues_stream_with_second_utterance(binding: type) -> None:
    encoder = make(binding, 24_000, 20)
    texts = [voice(12_345), voice(20_001)]
    parts = [run(encoder, text, [777]) for text in texts]
    assert encoder.flush() == []
    heard = decoded([packet for part in parts for packet in part])
    starts = [0, 2 * sum(packet.samples for packet in parts[0])]
    for text, part, start in zip(texts, parts, starts, strict=True):
        assert sum(packet.samples - packet.padding for packet in part) == len(text)
        piece = heard[start + 312 :][: 2 * len(text)]
        assert abs(lag(upsampled(text, 2), piece)) <= 2
        assert snr_db(upsampled(text, 2), piece) > 18
    quiet = heard[starts[1] + 20 : starts[1] + 280]  # between the utterances
    assert np.abs(quiet).max() < 0.02


@pytest.mark.parametrize("binding", BINDINGS)
def test_opus_clips_samples_over_full_scale(binding: type) -> None:
    heard = decoded(run(make(binding, 24_000, 20), 50 * voice(12_000)))
    assert 0.5 < np.abs(heard).max() < 1.5


def test_opus_packets_are_20_ms_by_default() -> None:
    encoder = AudioFormat("opus").encoder(24_000)
    assert (encoder.sample_rate, encoder.delay_samples, encoder.inline) == (24_000, 156, False)
    assert {packet.samples for packet in run(encoder, voice(5000))} == {480}


def test_opus_resamples_to_requested_rate() -> None:
    packets = run(AudioFormat("opus", 48_000, 40).encoder(24_000), voice(48_000), [960] * 20)
    assert sum(packet.samples - packet.padding for packet in packets) == 96_000
    heard = decoded(packets)[312:][:96_000]
    assert snr_db(upsampled(voice(48_000), 2), heard) > 18


def test_open_opus_uses_bundled_library_without_system_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opus_frames, "_opuslib", None)
    assert isinstance(open_opus(24_000, 480), BundledOpus)


@pytest.mark.parametrize("bad", [b"", b"\x03"])
def test_opus_packet_ms_refuses_bad_packets(bad: bytes) -> None:
    with pytest.raises(ValueError, match="Opus packet"):
        opus_packet_ms(bad)


def test_opus_packet_ms_reads_all_configurations() -> None:
    ms = [opus_packet_ms(bytes([config << 3])) for config in range(32)]
    assert ms[:4] == [10, 20, 40, 60]
    assert ms[12:16] == [10, 20, 10, 20]
    assert ms[28:] == [2.5, 5, 10, 20]
    assert all(a < b for start in range(16, 32, 4) for a, b in pairwise(ms[start : start + 4]))
    assert opus_packet_ms(b"\x01") == opus_packet_ms(b"\x02") == 20
    assert opus_packet_ms(bytes([31 << 3 | 3, 0x80 | 3])) == 60


def test_bundled_opus_starts_no_threads() -> None:
    before = {thread.id for thread in psutil.Process().threads()}
    stream = BundledOpus(24_000, 480)
    stream.encode(voice(480))
    assert not {thread.id for thread in psutil.Process().threads()} - before
