from __future__ import annotations

import numpy as np
import pytest

from streaming.chunk_schedule import ChunkSchedule
from tests.streaming.schedule_sim import (
    FRAME_S,
    SETTINGS,
    Sent,
    every_75_rows,
    gaps,
    learned,
    random_codec,
    row_times,
    speak,
    speak_fixed,
)


def test_gaps_are_silences_between_sent_chunks() -> None:
    sent = [Sent(1.0, 10), Sent(1.3, 5), Sent(1.7, 1), Sent(1.64, 1)]
    assert gaps(sent, FRAME_S) == [pytest.approx(0.1)]
    assert gaps(sent[:1], FRAME_S, dry_at=0.5) == [pytest.approx(0.5)]
    assert gaps(sent[:1], FRAME_S, dry_at=1.5) == []


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
@pytest.mark.parametrize(
    ("rho", "disturbance"),
    [(0.1, "jitter"), (0.35, "jitter"), (0.7, "jitter"), (0.1, "stalls"), (0.35, "stalls")],
)
def test_learned_bounds_keep_nearly_every_stream_gap_free(
    kind: str, rho: float, disturbance: str
) -> None:
    rng = np.random.default_rng(5)
    bounds = learned(rho, disturbance, kind, rng)
    ours, fixed, sooner = 0, 0, 0
    for _ in range(60):
        rows, codec = row_times(rho, disturbance, rng), random_codec(kind, rng)
        sent = speak(ChunkSchedule(SETTINGS, bounds), SETTINGS, rows, codec)
        other = speak_fixed(rows, every_75_rows(), 0, codec)
        ours += not gaps(sent)
        fixed += not gaps(other)
        sooner += sent[0].at < other[0].at
    assert ours >= 57
    assert ours >= fixed
    assert sooner == 60
