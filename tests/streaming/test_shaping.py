"""Speeds and volumes in the text that the talker has no marks for: they change the samples."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from streaming.delay import RowLayout
from streaming.events import (
    Cancelled,
    CancelRequested,
    Done,
    EndRequested,
    Event,
    FlushRequested,
    RowsReceived,
    SendAudio,
    TextAppended,
)
from streaming.ports import TalkerRows
from streaming.volume import at_volume
from tests.streaming.session_world import (
    ROW_S,
    SPEC,
    Aligned,
    World,
    samples,
    settings,
    streamed,
    words_of,
)
from text.turns import SentencePauses, TurnSettings

HOP = SPEC.hop_length


def levels(world: World) -> list[tuple[float, int]]:
    """The levels in the order of the audio, in the codec's units, with the length of each."""
    values = np.round(samples(world) * 1024, 2)
    cuts = [0, *np.flatnonzero(np.diff(values)) + 1, len(values)]
    return [(float(values[a]), b - a) for a, b in pairwise(cuts) if b > a]


def test_volume_scales_the_text_within_it() -> None:
    world = streamed(["One. <volume ratio='0.5'>Two.</volume> Three."], frames=10)
    assert world.talked == ["One.", "Two.", "Three."]
    assert levels(world) == [(100, 10 * HOP), (50.5, 10 * HOP), (102, 10 * HOP)]


def test_speed_changes_the_length_of_the_text_within_it() -> None:
    text = 'One. <prosody rate="50%">Two.</prosody> Three.'
    world = streamed([text], frames=10)
    assert world.talked == ["One.", "Two.", "Three."]
    assert levels(world) == [(100, 10 * HOP), (101, 20 * HOP), (102, 10 * HOP)]
    done = world.told[-1]
    assert isinstance(done, Done)
    assert done.report.generated_s == done.report.audio_s == 40 * SPEC.frame_s


@pytest.mark.parametrize(("speed", "frames"), [(0.5, 37), (0.8, 12), (1.25, 1), (1.7, 60)])
def test_all_samples_come_at_any_speed(speed: float, frames: int) -> None:
    world = streamed([f'<speed ratio="{speed}"/>One.'], frames=frames)
    length = len(samples(world))
    assert length == -(-round(frames * HOP / speed, 6) // 1)
    assert [audio.ends_utterance for audio in world.sent] == [
        audio is world.sent[-1] for audio in world.sent
    ]
    assert world.sent[-1].is_last
    assert not any(audio.late for audio in world.sent)
    assert not any(isinstance(one, SendAudio) and not len(one.samples) for one in world.told)


class Halting(World):
    """Rows are whole frames, each later than the audio before it, and the end later than all."""

    def _speech(self, utterance: int) -> list[tuple[float, Event]]:
        rows = np.full((self.frames + 1, SPEC.num_codebooks), 100 + utterance, np.int16)
        rows[-1, 0] = SPEC.codebook_size  # a row with a special code is no frame
        return [
            (self.now + number, RowsReceived(utterance, TalkerRows(row[None]), ROW_S))
            for number, row in enumerate(rows, 1)
        ]


@pytest.mark.parametrize("speed", [0.5, 1.0, 1.6])
def test_all_samples_come_if_the_end_is_known_only_after_the_last_frame(speed: float) -> None:
    config = settings()
    schedule = replace(config.queue.schedule, first_lookahead_frames=0, lookahead_frames=0)
    queue = replace(config.queue, schedule=schedule, layout=RowLayout.WHOLE)
    world = Halting(replace(config, queue=queue), frames=5)
    world.post(TextAppended(f'<speed ratio="{speed}"/>One.'))
    world.post(EndRequested())
    world.run()
    assert len(world.windows) > 1
    assert len(samples(world)) == 5 * HOP / speed
    assert isinstance(world.told[-1], Done)


@examples(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["One. ", "two, ", "three ", '<speed ratio="0.8">', "<volume ratio='0.5'/>",
             "</speed>", "</volume>", "[pause:300ms]", '<prosody rate="fast" volume="soft">',
             "</prosody>"]
        ), min_size=1, max_size=8,
    ),
    st.data(),
)  # fmt: skip
def test_shaped_text_does_not_depend_on_how_it_is_divided(
    words: list[str], data: st.DataObject
) -> None:
    text = "Well. " + "".join(words)
    whole = streamed([text], frames=6)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    divided = streamed(parts, frames=6)
    assert divided.talked == whole.talked
    assert levels(divided) == levels(whole)


def test_shape_ends_with_its_turn() -> None:
    world = World(settings(), frames=5)
    world.post(TextAppended("<volume ratio='0.5'/>One."))
    world.post(FlushRequested("f"))
    world.run()
    world.post(TextAppended("Two."))
    world.post(EndRequested())
    world.run()
    assert levels(world) == [(50, 5 * HOP), (101, 5 * HOP)]


def test_shapes_part_the_text_of_a_turn_that_is_joined() -> None:
    config = replace(settings(), turns=TurnSettings(1000))
    world = streamed(["One. Two. <volume ratio='0.5'/>Three. Four."], config, frames=5)
    assert world.talked == ["One. Two.", "Three. Four."]


def test_words_follow_the_speed_of_their_text() -> None:
    text = 'One two. <{}">Three four.</speed></volume> Five six.'
    times = []
    for said in (text.format('volume ratio="0.5'), text.format('speed ratio="0.5')):
        world = Aligned(settings(), frames=20)
        world.post(TextAppended(said))
        world.post(EndRequested())
        world.run()
        words = words_of(world)
        assert [said[word.start : word.end] for word in words] == [
            "One", "two.", "Three", "four.", "Five", "six.",
        ]  # fmt: skip
        times.append([edge for word in words for edge in (word.start_ms, word.end_ms)])
    length = 20 * SPEC.frame_s * 1000
    slowed = [
        at + min(max(at - length, 0), length) if at < 2 * length else at + length for at in times[0]
    ]
    assert times[1] == pytest.approx(slowed, abs=0.2)


def test_cancel_in_slow_speech_tells_what_was_heard() -> None:
    text = 'One two. <speed ratio="0.5"/>Three four.'
    world = Aligned(settings(), frames=20)
    world.post(TextAppended(text))
    world.post(FlushRequested("f"))
    world.run(1.0)
    played = round((20 + 1.4 * 20) * HOP)
    world.post(CancelRequested(played))
    cancelled = world.told[-1]
    assert isinstance(cancelled, Cancelled)
    assert cancelled.text_spoken.split()[-1].endswith("Three")


def test_pauses_between_sentences_follow_the_speed() -> None:
    queue = replace(settings().queue, pauses=SentencePauses(0.2, 0.4))
    config = replace(settings(), queue=queue)
    world = streamed(['<speed ratio="0.5"/>One.', " Two."], config, frames=5)
    silent = sum(length for level, length in levels(world) if level == 0)
    assert silent == round(0.4 * SPEC.sample_rate)


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.4, 2.0])
def test_volume_is_exact_below_the_knee_and_never_clips(factor: float) -> None:
    tone = np.linspace(-1, 1, 4001, dtype=np.float32)
    louder = at_volume(tone, factor)
    assert louder.dtype == np.float32
    assert np.all(np.diff(louder) >= 0)
    assert np.abs(louder).max() <= 1
    quiet = np.abs(tone * factor) <= 0.7
    np.testing.assert_allclose(louder[quiet], tone[quiet] * factor, atol=1e-6)
    assert np.abs(np.diff(louder)).max() <= 2.01 * factor / 4000 + 1e-6
