"""The fake decoder, whose exact receptive field makes it fit to test chunkers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.family import CodesError
from loadtest.fakes.codec import FakeDecoder
from streaming.spec import CodecSpec

SPEC = CodecSpec(24_000, 6, (50,) * 3, 4, 4)
FAKE = FakeDecoder(SPEC)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_fake_decoder_streamed_equals_whole(data: st.DataObject, windows_of: Callable) -> None:
    frames = data.draw(st.integers(1, 60))
    codes = np.random.default_rng(frames).integers(0, 50, (3, frames)).astype(np.int16)
    sizes = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=6))
    left, lookahead = data.draw(st.integers(4, 9)), data.draw(st.integers(4, 9))
    whole = FAKE.decode([codes])[0]
    assert whole.dtype == np.float32
    streamed = FAKE.decode_windows(windows_of(codes, sizes, left, lookahead))
    assert np.array_equal(np.concatenate(streamed), whole)


@pytest.mark.parametrize(("left", "lookahead"), [(3, 4), (4, 3)])
def test_fake_decoder_differs_with_one_context_frame_missing(
    windows_of: Callable, left: int, lookahead: int
) -> None:
    codes = np.zeros((3, 24), np.int16)
    whole = FAKE.decode([codes])[0]
    streamed = np.concatenate(FAKE.decode_windows(windows_of(codes, [8], left, lookahead)))
    assert not np.array_equal(streamed, whole)


def test_sample_depends_on_all_codes_in_receptive_field_only() -> None:
    codes = np.full((3, 21), 7, np.int16)
    before = FAKE.decode([codes])[0].reshape(21, 6)
    for codebook in range(3):
        changed = codes.copy()
        changed[codebook, 10] += 1
        moved = FAKE.decode([changed])[0].reshape(21, 6) != before
        assert moved[6:15].all()
        assert not moved[:6].any()
        assert not moved[15:].any()


def test_fake_decoder_distinguishes_frames_and_codebooks() -> None:
    codes = np.random.default_rng(0).integers(0, 50, (3, 12)).astype(np.int16)
    expected = FAKE.decode([codes])[0]
    for other in (codes[::-1], np.roll(codes, 1, axis=1)):
        assert not np.array_equal(FAKE.decode([np.ascontiguousarray(other)])[0], expected)


def test_fake_decoder_of_full_size_spec_stays_within_full_scale() -> None:
    fake = FakeDecoder(CodecSpec(24_000, 960, (1024,) * 8, 10, 10))
    loudest = fake.decode([np.full((8, 30), 1023, np.int16)])[0]
    assert 0.1 < loudest.max() < 1


def test_fake_decoder_refuses_spec_beyond_exact_float32_sums() -> None:
    with pytest.raises(ValueError, match="float32"):
        FakeDecoder(CodecSpec(24_000, 960, (65_536,) * 32, 10, 10))


@pytest.mark.parametrize("code", [-1, 50])
def test_fake_decoder_refuses_special_codes(code: int) -> None:
    codes = np.zeros((3, 4), np.int16)
    codes[2, 1] = code
    with pytest.raises(CodesError):
        FAKE.decode([codes])


def test_fake_decoder_refuses_wrong_codebook_count() -> None:
    with pytest.raises(CodesError):
        FAKE.decode([np.zeros((2, 4), np.int16)])
