"""Messages to and from the codec worker: round trips, and inconsistent ones that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import msgspec
import numpy as np
import pytest

from codec.batching import DecodeCost
from codec.messages import (
    Cancel,
    Decode,
    Decoded,
    Decoding,
    Encode,
    Encoded,
    Encoding,
    Failed,
    FromWorker,
    Ready,
    ToWorker,
    decode_message,
    samples_of,
    window_of,
)
from ipc.framing import Alive, Fatal, FramingError, MessageReader, Progress, Stop, encode
from streaming.spec import CodecSpec
from streaming.window import DecodeWindow

SPEC = CodecSpec(44_100, 2048, (4096, 1024, 1024, 1024), 10, 0, 1016, inert_codebooks=1)


def test_window_with_history_round_trips(random_codes: Callable) -> None:
    codes = random_codes(40)
    window = DecodeWindow(codes[:, 25:], 10, 5, 0, 60, history=codes[:, :25])
    message = decode_message(3, window, 12.5, alone=False)
    (there,) = MessageReader[Decode](ToWorker).feed(encode(message))
    back = window_of(there)
    assert back.history is not None
    assert np.array_equal(back.history, codes[:, :25])
    assert (back.first_frame, back.codes.shape) == (60, (8, 15))
    with pytest.raises(ValueError, match="more frames than the stream"):
        window_of(msgspec.structs.replace(message, first_frame=34))


def test_window_round_trips(random_codes: Callable) -> None:
    codes = np.asfortranarray(random_codes(17))
    window = DecodeWindow(codes, 10, 5, 2)
    message = decode_message(3, window, 12.5, alone=True)
    (there,) = MessageReader[Decode](ToWorker).feed(encode(message))
    assert (there.id, there.deadline_s, there.alone) == (3, 12.5, True)
    back = window_of(there)
    assert np.array_equal(back.codes, codes)
    assert (back.left_context, back.new_frames, back.lookahead) == (10, 5, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"codes": b"\0" * 271},
        {"codes": b"\0" * 16},
        {"num_codebooks": 3},
        {"num_codebooks": 0},
        {"num_codebooks": -2},
        {"new_frames": 0, "left_context": 15},
        {"left_context": -1, "lookahead": 13},
    ],
)
def test_window_of_refuses_inconsistent_message(random_codes: Callable, change: dict) -> None:
    message = decode_message(0, DecodeWindow(random_codes(17), 10, 5, 2), 0.0, alone=False)
    with pytest.raises(ValueError):
        window_of(msgspec.structs.replace(message, **change))


def test_samples_round_trip() -> None:
    samples = np.linspace(-1, 1, 960, dtype=np.float32)
    (message,) = MessageReader(FromWorker).feed(
        encode(Decoded(1, memoryview(samples.tobytes()), 0.1, 0.2, 3, 4))
    )
    assert np.array_equal(samples_of(message), samples)
    with pytest.raises(ValueError):
        samples_of(Decoded(1, memoryview(b"abc"), 0.0, 0.0, 1, 1))


def test_samples_of_longest_generation_fit_into_message() -> None:
    samples = b"\0" * (4 * 2048 * 960)
    (message,) = MessageReader(FromWorker).feed(
        encode(Decoded(1, memoryview(samples), 0.1, 0.2, 3, 4))
    )
    assert message.samples == samples


def test_message_types_have_distinct_tags() -> None:
    answers = [
        Ready(SPEC, DecodeCost(0.1, 0.2)), Decoding([1, 2]),
        Decoded(1, memoryview(b"abcd"), 0.1, 0.2, 3, 4),
        Encoding(3), Encoded(3, b"abcd", 2), Failed(1, "bad_window", ""), Alive(),
        Progress("load", 0.5), Fatal("no codec"),
    ]  # fmt: skip
    orders = [Decode(1, b"abcd", 2, 0, 1, 0, 0.5), Encode(3, b"abcd"), Cancel(4), Stop()]
    sides = ((FromWorker, answers), (ToWorker, orders))
    for (mine, sent), (other, _) in (sides, sides[::-1]):
        assert set(map(type, sent)) == set(get_args(mine))
        assert MessageReader(mine).feed(b"".join(map(encode, sent))) == sent
        for message in sent:
            with pytest.raises(FramingError):
                MessageReader(other).feed(encode(message))


def test_ready_message_carries_spec() -> None:
    (there,) = MessageReader(FromWorker).feed(encode(Ready(SPEC, DecodeCost(0.1, 0.2))))
    assert there.spec == SPEC
    assert (there.spec.codebook_sizes[0], there.spec.delay_rows) == (4096, 2)
