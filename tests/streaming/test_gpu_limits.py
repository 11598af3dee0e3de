"""Limits of codec and gateway that follow from a GPU's memory; test_vllm_setup has the talker's."""

from __future__ import annotations

import pytest

from streaming.gpu_limits import (
    CPU_CODEC,
    TalkerMemory,
    codec_limits,
    connections_for,
    outstanding_for,
)

GB, FISH, QWEN = 10**9, 8_372_224, 4_698_112


@pytest.mark.parametrize(
    ("total", "free", "state", "batch", "streams"),
    [
        (12, 12, QWEN, 4, 127),
        (24, 24, FISH, 8, 143),
        (48, 48, FISH, 16, 286),
        (80, 80, FISH, 16, 477),
        (85, 85, FISH, 32, 507),  # an "80 GB" card
        (141, 141, FISH, 32, 512),
        (141, 141, QWEN, 32, 512),
        (141, 28, FISH, 32, 512),  # beside a talker
        (141, 4, FISH, 8, 119),  # beside another program
        (141, 0, FISH, 4, 0),
        (141, 141, 0, 32, 0),  # Higgs
    ],
)
def test_codec_limits_follow_memory(
    total: int, free: int, state: int, batch: int, streams: int
) -> None:
    found = codec_limits(total * GB, free * GB, state)
    assert (found.max_batch, found.cache_bytes // max(1, state)) == (batch, streams)


def test_limits_without_gpu_are_those_of_before() -> None:
    assert (CPU_CODEC.max_batch, CPU_CODEC.cache_bytes) == (8, 1 << 30)
    for contexts in (1, 16, 64, 128):
        assert connections_for(contexts) == outstanding_for(contexts) == 256
    assert connections_for(256) == outstanding_for(256) == 512


def test_frame_table_takes_from_the_kv_cache() -> None:
    """A table that would leave no room for the utterances makes them fewer."""

    def memory(row_bytes: int) -> TalkerMemory:
        return TalkerMemory(
            gpu_bytes=24 << 30,
            share=0.8,
            weight_bytes=8 << 30,
            position_bytes=100_000,
            max_positions=8192,
            frames_per_s=25.0,
            table_bytes=lambda slots: 8 * slots * 8192 * row_bytes,
        )

    light, heavy = memory(20), memory(600)
    assert light.slots() > heavy.slots() > 8
    for one in (light, heavy):
        slots = one.slots()
        assert one.positions(slots) >= slots * 850
        assert one.positions(slots + 4) < (slots + 4) * 850
    assert light.slots(kv_positions=40 * 850) == 40
