"""Trimming of the silence at the beginning of a context."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streaming.events import Done, EndRequested, TextAppended
from streaming.utterance import Mode
from tests.streaming.session_world import SPEC, World, settings

HOP = SPEC.hop_length


def spoken(
    silent: int, trim_s: float, frames: int = 40, mode: Mode = "chunked", foreseen: bool = True
) -> World:
    """Two utterances. Unless the silence is ``foreseen``, the first chunk is not longer for it."""
    config = settings(mode, trim_s=trim_s)
    if not foreseen:
        bounds = replace(config.queue.bounds(1.0), trimmed_s=0.0)
        config = replace(config, queue=replace(config.queue, bounds=lambda _: bounds))
    world = World(config, frames, silent)
    world.post(TextAppended("One sentence. And another one."))
    world.post(EndRequested())
    world.run()
    return world


@pytest.mark.parametrize("mode", ["chunked", "whole"])
@pytest.mark.parametrize("silent", [1, 3, 12, 25])
def test_leading_silence_is_trimmed_and_speech_is_complete(silent: int, mode: Mode) -> None:
    world = spoken(silent, 2.0, mode=mode)
    assert abs(world.sent[0].samples[0]) > 0.003
    # The second utterance keeps its silence.
    assert world.samples == (2 * world.frames - silent) * HOP
    assert world.sent[0].is_first
    assert world.sent[0].sample_offset == 0
    assert world.sent[0].trimmed == silent * HOP
    done = world.told[-1]
    assert isinstance(done, Done)
    assert done.report.underruns == 0
    assert done.report.leading_silence_s == 0
    assert done.report.generated_s == pytest.approx(world.samples / SPEC.sample_rate)


def test_leading_silence_is_trimmed_up_to_limit() -> None:
    world = spoken(10, 0.1)
    assert world.samples == 2 * world.frames * HOP - round(0.1 * SPEC.sample_rate)
    assert spoken(10, 0.0).samples == 2 * world.frames * HOP


def test_ttfa_counts_silence_that_is_played_before_speech() -> None:
    """The first audible chunk is sent while the silence before it is still played."""
    world = spoken(25, 0.0)
    first, second, *_ = (decode.window.new_frames for decode in world.windows)
    assert first + second < 25
    done = world.told[-1]
    assert isinstance(done, Done)
    assert done.report.underruns == 0
    plain = spoken(0, 0.0).told[-1]
    assert isinstance(plain, Done)
    assert plain.report.ttfa_s is not None
    assert done.report.ttfa_s == pytest.approx(plain.report.ttfa_s + 25 * SPEC.frame_s)


@pytest.mark.parametrize("foreseen", [True, False])
def test_silent_utterance_still_sends_audio(foreseen: bool) -> None:
    """Its last window, and all of the next utterance. If foreseen, it has only one window."""
    world = spoken(40, 2.0, foreseen=foreseen)
    *trimmed, sent = [one.window.new_frames for one in world.windows if one.utterance == 0]
    assert bool(trimmed) is not foreseen
    assert sum(trimmed) + sent == world.frames
    assert world.samples == (sent + world.frames) * HOP
    assert world.sent[0].trimmed == sum(trimmed) * HOP
    assert sum(audio.is_first for audio in world.sent) == 1
    assert isinstance(world.told[-1], Done)


def test_first_chunk_is_longer_by_trimmed_silence() -> None:
    """Otherwise its audible part would not last until the next chunk."""
    plain, trimmed = spoken(0, 0.0, frames=200), spoken(3, 0.12, frames=200)
    first, longer = (world.windows[0].window.new_frames for world in (plain, trimmed))
    assert longer == first + 3
    assert not any(audio.late for audio in trimmed.sent)


@pytest.mark.parametrize("foreseen", [True, False])
def test_window_after_trimmed_silence_is_not_due_before_all_others(foreseen: bool) -> None:
    world = spoken(25, 2.0, foreseen=foreseen)
    deadlines = [one.deadline for one in world.windows]
    assert deadlines == sorted(deadlines)
    assert deadlines[0] > 0
