"""Higgs Audio v2's prompts: speakers, sound events and the text's end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from talker.checkpoint import open_checkpoint
from talker.families.higgs_v2.normalisation import normalise
from talker.families.higgs_v2.prompts import SCENE, SPEAKERS_SYSTEM
from talker.prompts import Prompt, PromptBuilder, ReferenceVoice
from tests.talker import tiny_v2
from tests.talker.harness import random_voice, spelled


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_v2.write_checkpoint(tmp_path_factory.mktemp("tiny-v2"))


@pytest.fixture(scope="module")
def builder(folder: Path) -> PromptBuilder:
    return open_checkpoint(str(folder)).prompt_builder(1024)


def system_of(folder: Path, prompt: Prompt) -> str:
    """The system text and its scene."""
    return spelled(folder, prompt).split("<|eot_id|>")[0].split("<|end_header_id|>\n\n")[1]


@pytest.mark.parametrize(
    ("text", "voices"),
    [
        ("[SPEAKER10] Hi.", "SPEAKER10: feminine"),
        ("[SPEAKER2] Hi.", "SPEAKER2: feminine"),
        ("[SPEAKER8] Hi. [SPEAKER1] Ho.", "SPEAKER1: masculine\nSPEAKER8: feminine"),
    ],
)
def test_prompt_describes_voices_in_order_of_speakers(
    folder: Path, builder: PromptBuilder, text: str, voices: str
) -> None:
    scene = f"<|scene_desc_start|>\n{SCENE}\n\n{voices}\n<|scene_desc_end|>"
    assert system_of(folder, builder.build(text)) == f"{SPEAKERS_SYSTEM}\n\n{scene}"


def test_speaker_named_within_line_of_scene_is_not_described(
    folder: Path, builder: PromptBuilder
) -> None:
    scene = "He calls SPEAKER1: late."
    made = system_of(folder, builder.build("[SPEAKER1] Hi.", scene=scene))
    assert f"\n{scene}\n\nSPEAKER1: masculine\n" in made


@pytest.mark.parametrize(
    ("transcript", "said"),
    [
        (" He said [SPEAKER1] Ho. \n", "[SPEAKER0] He said [SPEAKER1] Ho."),
        (" [SPEAKER0] Ho.", "[SPEAKER0] Ho."),
    ],
)
def test_transcript_begins_with_its_speaker(
    folder: Path, builder: PromptBuilder, transcript: str, said: str
) -> None:
    voice = ReferenceVoice(random_voice(1, 5).frames, transcript)
    made = spelled(folder, builder.build("[SPEAKER0] Hi.", voice))
    assert f"<|start_header_id|>user<|end_header_id|>\n\n{said}<|eot_id|>" in made


def test_ids_between_turns_end_the_audio(folder: Path, builder: PromptBuilder) -> None:
    assert spelled(folder, Prompt(builder.between_turns)) == "<|audio_eos|><|eot_id|>"


@pytest.mark.parametrize("lacking", ["<SE>", "</SE>"])
def test_event_without_marks_in_vocabulary_is_its_words(tmp_path: Path, lacking: str) -> None:
    tiny_v2.write_checkpoint(tmp_path)
    file = tmp_path / "tokenizer.json"
    layout = json.loads(file.read_text())
    layout["added_tokens"] = [t for t in layout["added_tokens"] if t["content"] != lacking]
    file.write_text(json.dumps(layout))
    builder = open_checkpoint(str(tmp_path)).prompt_builder(1024)
    assert "\n\nWell [Laughter] no.<|eot_id|>" in spelled(
        tmp_path, builder.build("Well [laugh] no")
    )


def test_speakers_up_to_99_stay_until_the_next(builder: PromptBuilder) -> None:
    assert builder.tag_set.delivery["[SPEAKER99] "] == "speaker"


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("la la [humming end]", ""),
        ("la la [cough]", ""),
        ("la la [music start]", "."),
        ("[cough] la la", " la la."),
        ("'So he said'", "'So he said'"),
        ("and then,", "and then,"),
        ("a \n \ue000 b", "a\nb."),
        ("", ""),
    ],
)
def test_normalise_ends_text_with_stop_once(text: str, end: str) -> None:
    assert normalise(text)[-1].text == end
