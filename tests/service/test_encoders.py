from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.encoders import PcmEncoder, make_encoder
from streaming.errors import ErrorCode, RequestError
from streaming.spec import AudioFormat, Encoding

EXTREMES = np.array([0, 1, -1, 0.5, 2, -3, 1 / 32767, 1.4 / 32767], np.float32)


def test_s16_rounds_and_clips() -> None:
    (packet,) = PcmEncoder(Encoding.PCM_S16LE).encode(EXTREMES)
    want = [0, 32767, -32767, 16384, 32767, -32767, 1, 1]
    assert np.frombuffer(packet.data, "<i2").tolist() == want
    assert packet.samples == len(EXTREMES)


def test_f32_is_untouched() -> None:
    (packet,) = PcmEncoder(Encoding.PCM_F32LE).encode(EXTREMES)
    assert np.array_equal(np.frombuffer(packet.data, "<f4"), EXTREMES)


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 30))
def test_packets_have_their_length_and_nothing_is_lost(pieces: list[int], frame: int) -> None:
    total = np.arange(sum(pieces), dtype=np.float32)
    encoder = PcmEncoder(Encoding.PCM_F32LE, frame)
    packets, at = [], 0
    for piece in pieces:
        packets += encoder.encode(total[at : at + piece])
        at += piece
    assert all(packet.samples == frame for packet in packets)
    packets += encoder.flush()
    assert encoder.flush() == []
    assert np.array_equal(np.frombuffer(b"".join(p.data for p in packets), "<f4"), total)
    assert sum(packet.samples for packet in packets) == len(total)


def test_another_rate_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        make_encoder(AudioFormat(Encoding.PCM_S16LE, 8000), 0, 24_000)
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert caught.value.param == "audio.sample_rate"
