"""What the warm-up learns of the engines' pace."""

from __future__ import annotations

import asyncio
import time

import pytest

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.engines.pace import EnginePace
from service.settings import Settings
from streaming.ports import DecodeStats
from streaming.spec import Samples
from streaming.window import DecodeWindow
from tests.service.live import SPEC


class BatchingCodec(FakeCodecEngine):
    """Windows that are asked for together are one batch, which takes the sum of their times. Only
    the statistics say so; nothing takes time.
    """

    def work_s(self, frames: int) -> float:
        """Time of a window of ``frames`` new and looked-at frames."""
        return 0.012 + 0.002 * frames

    async def decode(
        self, window: DecodeWindow, deadline_s: float, request_id: str = ""
    ) -> tuple[Samples, DecodeStats]:
        self.outstanding += 1
        await asyncio.sleep(0)
        batch = self.outstanding
        await asyncio.sleep(0)
        self.outstanding -= 1
        took_s = batch * self.work_s(window.new_frames + window.lookahead)
        slack_s = deadline_s - time.monotonic()
        stats = DecodeStats(
            window.codes.shape[1], window.new_frames, 0.0, took_s, batch, slack_s, took_s,
            window.lookahead,
        )  # fmt: skip
        return self._decoder.decode_windows([window])[0], stats


@pytest.mark.parametrize("most", [1, 8])
async def test_warm_up_learns_what_short_windows_cost(most: int) -> None:
    """The first utterances begin with them, and trust the bounds."""
    talker, codec = FakeTalker(), BatchingCodec(SPEC)
    await talker.start()
    await codec.start()
    pace = EnginePace(Settings(max_contexts=most), talker, codec)
    await pace.learn("default")
    bounds = pace.bounds()
    for frames in (1, 2, 4, 8, 16, 32):
        assert codec.work_s(frames) <= bounds.wait_s + bounds.decode_s(frames)
        assert bounds.decode_s(frames) < 2.5 * codec.work_s(frames)
