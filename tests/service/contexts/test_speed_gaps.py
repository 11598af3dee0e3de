"""Stretched speech without underruns: session and stretcher, on a simulated clock."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from service.audio.filters import TimeStretch, held_back_s
from streaming.events import Done, EndRequested, TextAppended
from tests.service.audio.audio_signal import voice
from tests.streaming.session_world import SPEC, World, settings

FRAMES = 300


def least_lead_s(speed: float, guard_s: float) -> tuple[float, float]:
    """Return the time of the first audio, and the smallest lead when more audio comes."""
    plan = settings(speed=speed)
    schedule = replace(plan.queue.schedule, guard_s=guard_s)
    world = World(replace(plan, queue=replace(plan.queue, schedule=schedule)), FRAMES)
    stretch, speech = TimeStretch(SPEC.sample_rate, speed), voice(FRAMES * SPEC.hop_length)
    world.post(TextAppended("A very long one. "))
    world.post(EndRequested())
    came, began, least = 0, inf, inf
    taken = 0
    while not isinstance(world.told[-1:] and world.told[-1], Done):
        world.run(world.now + 0.001)
        for audio in world.sent[taken:]:
            if came:
                least = min(least, began + came / SPEC.sample_rate - world.now)
            end = audio.sample_offset + len(audio.samples)
            came += len(stretch.push(speech[audio.sample_offset : end]))
            began = min(began, world.now) if came else inf
        taken = len(world.sent)
    return began, least


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.8, 1.25, 1.5, 2.0, 2.5, 4.0])
def test_stretched_speech_has_no_gap(speed: float) -> None:
    began, least = least_lead_s(speed, held_back_s(speed, SPEC.sample_rate))
    unknowing, closer = least_lead_s(speed, 0.0)
    assert least > 0.015
    assert least > closer or closer > 0.015
    # An earlier first chunk that stays in the stretcher gains nothing.
    assert round(began - unknowing, 6) <= 0.01
