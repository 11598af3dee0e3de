"""Warm-up of the codec worker: the kernel cache, and the window shapes decoded in advance."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from codec.batching import BatchLimits
from codec.buckets import Buckets
from codec.warmup import keep_kernels, later_windows, meet_first_windows
from loadtest.fakes.codec import FakeDecoder
from streaming.spec import CodecSpec, Samples
from streaming.window import DecodeWindow


def test_keep_kernels_raises_cache_capacity_unless_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, "17")
    keep_kernels()
    assert os.environ[name] == "17"
    monkeypatch.delenv(name)
    keep_kernels()
    assert int(os.environ[name]) > 1024  # oneDNN's default
    monkeypatch.setenv(name, "17")  # so that monkeypatch restores it


def test_meet_first_windows_decodes_each_first_shape_once() -> None:
    met = []

    class Noting(FakeDecoder):
        def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
            met.extend((w.left_context, w.new_frames, w.lookahead) for w in windows)
            return super().decode_windows(windows)

    meet_first_windows(Noting(CodecSpec(24_000, 960, (1024,) * 8, 3, 4)))
    assert {(0, 1, 2), (0, 2, 2), (0, 2, 4), (0, 4, 2)} <= set(met)
    assert len(met) == len(set(met))
    met.clear()
    meet_first_windows(Noting(CodecSpec(24_000, 960, (1024,) * 8, 3, 1)))
    assert {lookahead for _, _, lookahead in met} == {1}, "no more than the receptive field"
    assert len(met) == len(set(met))


def test_later_windows_cover_steady_stream_shapes() -> None:
    windows = later_windows(FakeDecoder(CodecSpec(24_000, 960, (1024,) * 8, 3, 4)))
    assert [w.new_frames for w in windows] == list(range(1, 51))
    assert {(w.left_context, w.lookahead, w.codes.shape[1] - w.new_frames) for w in windows} == {
        (3, 4, 7)
    }


def test_later_windows_look_ahead_no_further_than_receptive_field() -> None:
    windows = later_windows(FakeDecoder(CodecSpec(24_000, 960, (1024,) * 8, 3, 1)))
    assert {(w.left_context, w.lookahead) for w in windows} == {(3, 1)}


def test_graphs_need_no_windows_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = CodecSpec(24_000, 960, (1024,) * 8, 3, 4)
    decoder = FakeDecoder(spec)
    assert later_windows(decoder)
    vars(decoder)["buckets"] = Buckets.of(BatchLimits(), spec)
    monkeypatch.setattr(decoder, "decode_windows", lambda windows: pytest.fail("decodes"))
    meet_first_windows(decoder)
    assert later_windows(decoder) == []
