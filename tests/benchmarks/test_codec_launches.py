"""The counts of launches and bytes of a codec's batch, with tiny codecs."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from benchmarks.codec_launches import Meter, measure
from codec import layers
from codec.families.fish.config import decoder_shapes as fish_shapes
from codec.families.fish.decoder import FishDecoder
from codec.families.qwen3_tts.config import decoder_shapes as qwen3_tts_shapes
from codec.families.qwen3_tts.decoder import Qwen3TTSDecoder
from codec.stream_decoder import StreamDecoder
from tests.codec import fish_checkpoint, qwen3_tts_checkpoint


def test_meter_counts_each_tensor_once_and_no_views() -> None:
    x, y, table = torch.ones(5, 8), torch.ones(1, 8), torch.ones(100, 8)
    with Meter() as meter:
        total = x.t() + y.expand(5, 8).t()  # views; then 40 + 8 values in, 40 out
        assert (meter.launches, meter.bytes) == (1, 4 * 88)
        total.mul_(total)  # in and out
        assert (meter.launches, meter.bytes) == (2, 4 * 168)
        table[torch.tensor([3, 4])]  # two rows in and out
        assert meter.bytes == 4 * 200


def fish() -> StreamDecoder:
    tensors = fish_checkpoint.random_tensors(fish_shapes(fish_checkpoint.TINY))
    return FishDecoder(fish_checkpoint.TINY, tensors)


def qwen3_tts() -> StreamDecoder:
    tensors = qwen3_tts_checkpoint.random_tensors(qwen3_tts_shapes(qwen3_tts_checkpoint.TINY))
    return Qwen3TTSDecoder(qwen3_tts_checkpoint.TINY, tensors)


@pytest.mark.parametrize(("make", "rates", "saved"), [(fish, 3, 2), (qwen3_tts, 4, 3)])
def test_measure_counts_launches_of_snakes_and_work_of_padding(
    make: object, rates: int, saved: int
) -> None:
    with mock.patch.object(layers, "_has_onednn", return_value=False):
        figures = {one.way: one for one in measure(make(), "tiny", 2, 14)}  # type: ignore[operator]
    own, bucket = figures["own shapes"], figures["bucket"]
    # a rate has an upsampling and three residual units with two Snakes each; the last layer has one
    with_factor, in_place = 4 * rates + 1, 3 * rates
    fewer = saved * with_factor + (saved - 1) * in_place
    assert own.launches - figures["own shapes, Snake kernel"].launches == fewer
    assert bucket.launches - figures["bucket, Snake kernel"].launches == fewer
    assert figures["bucket, Snake kernel"].gigabytes < 0.8 * bucket.gigabytes
    assert own.gflop == figures["own shapes, Snake kernel"].gflop
    assert 1.1 * own.gflop < bucket.gflop < own.gflop * 19 / 14
