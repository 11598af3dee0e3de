"""``RequestBuilder``: messages for the talker process, and requests that are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming.delay import apply_delay
from streaming.errors import ErrorCode, RequestError
from streaming.ports import Reference, Sampling, SpeechRequest
from streaming.spec import Codes
from talker.checkpoint import Checkpoint, open_checkpoint
from talker.conversation import Conversation
from talker.families.delayed import DelayedShape
from talker.messages import VoiceRows
from talker.prompts import ReferenceVoice
from talker.request_builder import RequestBuilder
from tests.talker import tiny_fish, tiny_v2

EMBEDDED = Path(__file__).parents[2] / "embedded" / "checkpoint"
TEXT = "hello world"
ROOM = 400


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return dataclasses.replace(open_checkpoint(str(EMBEDDED)), text_frontend=None)


@pytest.fixture(scope="module")
def intake(checkpoint: Checkpoint) -> RequestBuilder:
    return RequestBuilder(checkpoint, ROOM, Voices(checkpoint), {})


class Voices:
    """A single voice, "zero", whose codes are all 0."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._voice = ReferenceVoice(np.zeros((9, checkpoint.shape.num_codebooks), np.int16))

    def names(self) -> Sequence[str]:
        return ("zero",)

    def get(self, name: str) -> ReferenceVoice | None:
        return self._voice if name == "zero" else None


def asking(**more: Any) -> SpeechRequest:
    return SpeechRequest("r", TEXT, **more)


def clip(checkpoint: Checkpoint, frames: int = 5) -> Codes:
    """Codes ``[K, T]``, all different, up to the highest code of a codebook."""
    shape = checkpoint.shape
    count = shape.num_codebooks * frames
    codes = (shape.codebook_size - count + np.arange(count)).astype(np.int16)
    return codes.reshape(shape.num_codebooks, frames)


def test_max_frames_is_bounded_by_request_checkpoint_and_positions(
    checkpoint: Checkpoint,
) -> None:
    few = dataclasses.replace(
        checkpoint, defaults=dataclasses.replace(checkpoint.defaults, max_frames=100)
    )
    wide, tight = RequestBuilder(few, ROOM, None, {}), RequestBuilder(few, 64, None, {})
    assert wide.build(asking(max_frames=1), 1).message.max_frames == 1
    assert [wide.build(asking(max_frames=n), 1).message.max_frames for n in (None, 101)] == [
        100,
        100,
    ]
    assert tight.build(asking(), 1).message.max_frames == 64 - len(
        tight.build(asking(), 1).message.ids
    )


@pytest.mark.parametrize("asked", [0, -1, True, 1.5])
def test_max_frames_invalid_value_is_refused(intake: RequestBuilder, asked: Any) -> None:
    for refuse in (intake.check_options, lambda request: intake.build(request, 1).message):
        with pytest.raises(RequestError) as error:
            refuse(asking(max_frames=asked))
        assert error.value.param == "max_frames"


def test_scene_is_refused_by_family_without_scene_support(intake: RequestBuilder) -> None:
    for refuse in (intake.check_options, lambda request: intake.build(request, 1).message):
        with pytest.raises(RequestError, match="Higgs Audio v3 takes no scene") as error:
            refuse(asking(scene="A quiet room."))
        assert (error.value.code, error.value.param) == (ErrorCode.UNSUPPORTED, "scene")


def test_scene_reaches_prompt_of_family_with_scene_support(tmp_path: Path) -> None:
    opened = open_checkpoint(str(tiny_v2.write_checkpoint(tmp_path)))
    builder = RequestBuilder(opened, ROOM, None, {})
    scene = "A street at night."
    message = builder.build(asking(scene=scene), 1).message
    assert message.ids == opened.prompt_builder(ROOM).build(TEXT, scene=scene).ids
    assert message.ids != builder.build(asking(), 1).message.ids
    builder.check_options(SpeechRequest("r", "", scene=scene))
    with pytest.raises(RequestError) as error:
        builder.check_options(SpeechRequest("r", "", scene=" "))
    assert error.value.param == "scene"


def test_seed_zero_is_kept_and_missing_seed_is_random(intake: RequestBuilder) -> None:
    assert intake.build(asking(sampling=Sampling(seed=0)), 1).message.seed == 0
    assert len({intake.build(asking(), 1).message.seed for _ in range(8)}) == 8


def test_check_options_needs_no_text(intake: RequestBuilder) -> None:
    intake.check_options(SpeechRequest("r", "", "zero"))
    for wrong in (SpeechRequest("r", "", "nobody"), asking(sampling=Sampling(top_k=0))):
        with pytest.raises(RequestError):
            intake.check_options(wrong)


def test_text_span_is_sent_only_for_word_timings(intake: RequestBuilder) -> None:
    assert intake.build(asking(voice="zero"), 1).message.text is None
    timed = intake.build(asking(voice="zero", word_timings=True), 1).message
    assert timed.text is not None
    assert timed.text.starts[-1] == len(TEXT)
    end = timed.text.at + len(timed.text.starts) - 1
    assert end == len(timed.ids) - 1  # <|audio|> follows
    assert timed.ids[timed.text.at - 1 :] == intake.build(asking(), 1).message.ids[1:]


def test_voice_name_becomes_clip_and_unknown_name_is_refused(
    checkpoint: Checkpoint, intake: RequestBuilder
) -> None:
    named, shape = intake.build(asking(voice="zero"), 1).message.clips, checkpoint.shape
    assert isinstance(shape, DelayedShape)
    frames = np.zeros((9, shape.num_codebooks), np.int16)
    assert named == (VoiceRows(apply_delay(frames, shape.boc, shape.eoc).tobytes(), 2),)
    for nobody in (intake, RequestBuilder(checkpoint, ROOM, None, {})):
        assert nobody.build(asking(), 1).message.clips == ()
        with pytest.raises(RequestError) as error:
            nobody.build(asking(voice="nobody"), 1)
        assert error.value.code is ErrorCode.UNKNOWN_VOICE


def test_smart_voice_has_no_clip_with_or_without_voices(
    checkpoint: Checkpoint, intake: RequestBuilder
) -> None:
    for builder in (intake, RequestBuilder(checkpoint, ROOM, None, {})):
        assert builder.build(asking(voice="smart_voice"), 1).message.clips == ()


def test_order_keeps_layout_of_family_between_turns(tmp_path: Path) -> None:
    opened = open_checkpoint(str(tiny_fish.write_checkpoint(tmp_path)))
    builder, talk = RequestBuilder(opened, ROOM, None, {}), Conversation(3)
    between = opened.prompt_builder(ROOM).between_turns
    first = builder.order(builder.build(asking()), 1, talk)
    talk.held = 50
    then = builder.order(builder.build(asking()), 1, talk)
    assert then.message.ids == (*between, *first.turn)
    assert between
    assert not then.is_delayed, "its last row is part of the speech"


def test_reference_overrides_voice(checkpoint: Checkpoint, intake: RequestBuilder) -> None:
    codes, shape = clip(checkpoint), checkpoint.shape
    said = intake.build(asking(voice="zero", reference=Reference(codes)), 1).message
    (shown,) = said.clips
    rows = np.frombuffer(shown.rows, np.int16).reshape(-1, shape.num_codebooks)
    assert isinstance(shape, DelayedShape)
    assert np.array_equal(rows, apply_delay(codes.T, shape.boc, shape.eoc))
    with_text = intake.build(asking(reference=Reference(codes, "well")), 1).message
    assert len(with_text.ids) > len(said.ids)


def test_references_beyond_family_limit_are_refused(
    checkpoint: Checkpoint, intake: RequestBuilder
) -> None:
    one = Reference(clip(checkpoint))
    for check in (lambda r: intake.build(r, 1).message, intake.check_options):
        with pytest.raises(RequestError, match="1 reference") as error:
            check(asking(reference=one, other_references=(one,)))
        assert (error.value.code, error.value.param) == (ErrorCode.UNSUPPORTED, "references")


@pytest.mark.parametrize("family", [tiny_v2, tiny_fish])
def test_each_reference_has_own_rows_and_transcript(tmp_path: Path, family: Any) -> None:
    opened = open_checkpoint(str(family.write_checkpoint(tmp_path)))
    builder, prompts = RequestBuilder(opened, 4096, None, {}), opened.prompt_builder(4096)
    one, two = Reference(clip(opened, 3), "well"), Reference(clip(opened, 5), "I see")
    said = builder.build(asking(reference=one, other_references=(two,)), 1).message
    voices = [ReferenceVoice(each.codes.T, each.text) for each in (one, two)]
    assert [shown.rows for shown in said.clips] == [
        prompts.reference_rows(voice).tobytes() for voice in voices
    ]
    assert said.ids == prompts.build(TEXT, voices[0], others=voices[1:]).ids
    silent = builder.build(
        asking(reference=one, other_references=(Reference(two.codes),)), 1
    ).message
    assert len(silent.ids) < len(said.ids)
    assert builder.spec.max_references > 1


@pytest.mark.parametrize("wrong", ["a code too high", "no frames", "one codebook less", "flat"])
def test_reference_with_invalid_shape_or_codes_is_refused(
    checkpoint: Checkpoint, intake: RequestBuilder, wrong: str
) -> None:
    codes = clip(checkpoint)
    bad = {
        "a code too high": codes + 1, "no frames": codes[:, :0], "one codebook less": codes[1:],
        "flat": codes.ravel(),
    }[wrong]  # fmt: skip
    for refuse in (intake.check_options, lambda request: intake.build(request, 1).message):
        with pytest.raises(RequestError) as error:
            refuse(asking(reference=Reference(bad)))
        assert (error.value.code, error.value.param) == (ErrorCode.INVALID_PARAMETER, "voice")


def test_continuation_sends_only_turn_ids_within_limit(
    checkpoint: Checkpoint, intake: RequestBuilder
) -> None:
    turn = intake.build(asking(), 1).message.ids[1:]
    talk = Conversation(3)
    talk.held = 50
    request = asking(voice="zero")
    then = intake.order(intake.build(request), 1, talk)
    assert (then.message.ids, then.turn, then.message.continues) == (turn, turn, talk.held)
    taught = dataclasses.replace(checkpoint, continuation_positions=50 + len(turn) - 1)
    limited = RequestBuilder(taught, ROOM, Voices(checkpoint), {})
    over = limited.order(limited.build(request), 1, talk)
    assert not over.message.continues
