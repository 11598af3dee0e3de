"""The history checker: it finds and classifies every kind of fault."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streaming.ports import SpeechRequest
from tests.faults.history import SPEC, Ended, Event, Fault, Heard, Pcm, Script, faults
from tests.faults.labelled_audio import LabelTalker, LiteralDecoder

SCRIPT, OTHER = Script(1234, (5, 40)), Script(77, (5, 40))
PCM = SCRIPT.pcm()
DONE, CANCELLED = Ended("complete"), Ended("cancelled")
HOP = SPEC.hop_length


def kinds(history: list[Event], script: Script = SCRIPT) -> list[str]:
    return [fault.kind for fault in faults(script, history)]


def messages(pcm: Pcm, size: int = 700) -> list[Event]:
    cuts = range(0, len(pcm), size)
    return [Heard(pcm[at : at + size], number, at) for number, at in enumerate(cuts)]


def test_script_pcm_equals_output_of_fake_engines() -> None:
    talker, decoder = LabelTalker(), LiteralDecoder(SPEC)
    sentences = [sentence + "." for sentence in SCRIPT.text.split(".")[:-1]]
    frames = [talker.frames_of(SpeechRequest("r", sentence)) for sentence in sentences]
    samples = decoder.decode([np.ascontiguousarray(np.concatenate(frames).T)])[0]
    assert np.array_equal(np.rint(samples * np.float32(32767)).astype(np.int16), PCM)


def test_correct_history_has_no_fault() -> None:
    assert kinds([*messages(PCM), DONE]) == []
    assert kinds([*messages(PCM[:777]), CANCELLED]) == []
    assert kinds([Heard(PCM), DONE]) == []
    assert kinds([Ended("broken")]) == []


@given(at=st.integers(0, len(PCM) - 2), count=st.integers(1, 3 * HOP))
@example(at=6, count=284)  # the joint looks like a label of another voice
def test_lost_samples_are_found(at: int, count: int) -> None:
    rest = np.concatenate([PCM[:at], PCM[at + count :]])
    found = faults(SCRIPT, [Heard(rest), DONE])
    assert found
    assert found[0].at >= at
    if at + count <= len(PCM) - 2 * HOP:
        assert found[0].kind == "lost"
    assert {fault.kind for fault in found} <= {"lost", "torn", "short"}


@given(at=st.integers(0, len(PCM) - 1), count=st.integers(1, 3 * HOP))
def test_doubled_samples_are_found(at: int, count: int) -> None:
    twice = np.concatenate([PCM[: at + count], PCM[at:]])
    found = faults(SCRIPT, [Heard(twice), DONE])
    assert found
    if count >= 8 and at + count <= len(PCM) - 2 * HOP:
        assert found[0].kind == "doubled"
    assert found[0].kind in {"doubled", "extra", "torn"}


@given(at=st.integers(0, len(PCM) // 8 - 3), far=st.integers(1, 60))
def test_swapped_samples_are_found(at: int, far: int) -> None:
    groups = PCM.reshape(-1, 8).copy()
    other = min(at + far, len(groups) - 2)
    groups[[at, other]] = groups[[other, at]]
    found = faults(SCRIPT, [Heard(groups.reshape(-1)), DONE])
    assert (found == []) is (at == other)
    assert not found or found[0].kind == "swapped"


@given(at=st.integers(0, len(PCM) - 1), change=st.integers(1, 32_767))
def test_single_wrong_sample_is_found(at: int, change: int) -> None:
    wrong = PCM.copy()
    wrong[at] = (int(wrong[at]) + change) % 32_768
    assert [fault.at for fault in faults(SCRIPT, [Heard(wrong), DONE])] == [at]


@given(at=st.integers(0, len(PCM) // 8 - 1), count=st.integers(1, 30))
def test_foreign_samples_are_found(at: int, count: int) -> None:
    mixed, place = PCM.copy(), slice(8 * at, 8 * (at + count))
    mixed[place] = OTHER.pcm()[place]
    assert faults(SCRIPT, [Heard(mixed), DONE]) == [Fault("foreign", 8 * at)]


@pytest.mark.parametrize("end", [CANCELLED, DONE, Ended("broken")])
def test_audio_after_end_is_found(end: Ended) -> None:
    history = [*messages(PCM[:700]), end, Heard(PCM[700:701], 1, 700)]
    assert "late" in kinds(history)


def test_missing_end_of_complete_context_is_found() -> None:
    assert faults(SCRIPT, [Heard(PCM[:-1]), DONE]) == [Fault("short", len(PCM) - 1)]


@pytest.mark.parametrize("number", [0, 2, 7])
def test_wrong_sequence_or_offset_is_found(number: int) -> None:
    first = Heard(PCM[:100], 0, 0)
    assert kinds([first, Heard(PCM[100:], number, 100), DONE]) == ["number"]
    assert kinds([first, Heard(PCM[100:], 1, number), DONE]) == ["number"]


def test_unknown_part_is_extra_or_foreign() -> None:
    longer = Script(SCRIPT.voice, (5, 41))
    assert kinds([Heard(longer.pcm()), DONE]) == ["extra"]
    other = Script(SCRIPT.voice, (6, 40))
    assert kinds([Heard(other.pcm()), DONE]) == ["foreign"]
