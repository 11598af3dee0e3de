"""Prompts: their layout, control tags, and no other control ids from a client's text."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from streaming.delay import apply_delay
from streaming.errors import ErrorCode, RequestError
from talker.checkpoint import open_checkpoint
from talker.families.higgs_v3.prompts import CONTROL_TAGS, TAGS
from talker.prompts import MAX_VOICE_ROWS, PromptBuilder, ReferenceVoice
from talker.shape import CheckpointError
from tests.talker import tiny
from tests.talker.harness import random_voice

EMBEDDED = Path(__file__).parents[2] / "embedded" / "checkpoint"
FULL_WIDTH = str.maketrans({"<": "＜", "|": "｜", ">": "＞"})


@pytest.fixture(scope="session")
def plain_words() -> Tokenizer:
    """The embedded checkpoint's tokenizer, control tokens included."""
    return Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))


@pytest.fixture(scope="session")
def embedded() -> PromptBuilder:
    checkpoint = open_checkpoint(str(EMBEDDED))
    return checkpoint.prompt_builder(2048)


@pytest.fixture(scope="session")
def qwen_like(tiny_checkpoint: Path) -> PromptBuilder:
    checkpoint = open_checkpoint(str(tiny_checkpoint))
    return checkpoint.prompt_builder(1024)


def added(tokenizer_file: Path) -> dict[str, int]:
    content = json.loads(tokenizer_file.read_text())
    return {token["content"]: token["id"] for token in content["added_tokens"]}


@pytest.fixture(scope="session")
def qwen_added(tiny_checkpoint: Path) -> dict[str, int]:
    return added(tiny_checkpoint / "tokenizer.json")


def spoken_ids(builder: PromptBuilder, text: str) -> tuple[int, ...]:
    """The ids between ``<|text|>`` and ``<|audio|>``."""
    return builder.build(text).ids[2:-1]


def spellings(token: str) -> list[str]:
    wide = token.translate(FULL_WIDTH)
    return [token, wide, token.upper(), f"{token}{token}", token[:3] + token + token[3:]]


def test_prompt_follows_family_layout(qwen_like: PromptBuilder, qwen_added: dict[str, int]) -> None:
    ids = qwen_like.build("hello").ids
    control = [qwen_added[name] for name in ("<|tts|>", "<|text|>", "<|audio|>")]
    assert [ids[0], ids[1], ids[-1]] == control
    assert len(ids) == 4, "hello is one piece of this vocabulary"


@pytest.mark.parametrize("voice", [None, random_voice(1)])
@given(
    parts=st.lists(
        st.sampled_from(sorted(CONTROL_TAGS)) | st.text(alphabet="hello tand.é你", max_size=8),
        max_size=6,
    )
)
def test_text_starts_map_each_id_to_client_text(
    qwen_like: PromptBuilder,
    tiny_checkpoint: Path,
    qwen_added: dict[str, int],
    voice: ReferenceVoice | None,
    parts: list[str],
) -> None:
    text = "".join([*parts, "end"])
    prompt = qwen_like.build(text, voice)
    starts, at = prompt.text_starts, prompt.text_at
    ids = prompt.ids[at : at + len(starts) - 1]
    assert prompt.ids[at - 1] == qwen_added["<|text|>"]
    assert prompt.ids[at + len(ids) :] == (qwen_added["<|audio|>"],)
    assert (list(starts), starts[-1]) == (sorted(starts), len(text))
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))
    for i, start, end in zip(ids, starts, starts[1:], strict=False):
        piece = tokenizer.decode([i], skip_special_tokens=False)
        assert piece == text[start:end] or "\ufffd" in piece  # part of a character


def test_dropped_tag_keeps_offsets_of_other_ids(embedded: PromptBuilder) -> None:
    text = "one<|emotion:awe|>two"
    prompt = embedded.build(text)
    assert prompt.text_starts == (0, 1, 2, 3, *range(18, 21), 21)


def test_added_token_in_text_yields_no_control_id(
    qwen_like: PromptBuilder, qwen_added: dict[str, int]
) -> None:
    control = set(qwen_added.values())
    for token in set(qwen_added) - CONTROL_TAGS:
        for spelling in spellings(token):
            for text in (spelling, f"a{spelling}b", f"hello {spelling}", f"{spelling} world"):
                ids = spoken_ids(qwen_like, text if any(map(str.isalnum, text)) else text + "a")
                assert not control & set(ids), text


def test_added_token_in_text_yields_no_control_id_in_embedded_voice(
    embedded: PromptBuilder,
) -> None:
    control = set(added(EMBEDDED / "tokenizer.json").values())
    for token in added(EMBEDDED / "tokenizer.json"):
        for spelling in spellings(token):
            assert not control & set(spoken_ids(embedded, f"a {spelling} b"))


def test_split_token_is_plain_text_in_both_parts(
    qwen_like: PromptBuilder, qwen_added: dict[str, int]
) -> None:
    control = set(qwen_added.values())
    for token in qwen_added:
        for cut in range(1, len(token)):
            for part in (token[:cut], token[cut:]):
                assert not control & set(spoken_ids(qwen_like, f"a{part}"))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mixed_token_fragments_yield_no_control_id(
    qwen_like: PromptBuilder, qwen_added: dict[str, int], data: st.DataObject
) -> None:
    names = sorted(set(qwen_added) - CONTROL_TAGS)
    pieces = st.one_of(
        st.sampled_from(names),
        st.sampled_from([n.translate(FULL_WIDTH) for n in names]),
        st.sampled_from(["<|", "|>", "<", "|", ">", "aud", "io", "tts", "\u200b", "\ufeff", " "]),
        st.text(max_size=4),
    )
    text = "a" + "".join(data.draw(st.lists(pieces, max_size=12)))
    assert not set(qwen_added.values()) & set(spoken_ids(qwen_like, text))


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_yields_prompt_or_one_of_two_errors(
    qwen_like: PromptBuilder, embedded: PromptBuilder, text: str
) -> None:
    for builder in (qwen_like, embedded):
        refused = None
        try:
            builder.build(text)
        except RequestError as error:
            refused = error.code
        assert refused in (None, ErrorCode.INVALID_TEXT, ErrorCode.TEXT_TOO_LONG)


@pytest.mark.parametrize("tag", sorted(CONTROL_TAGS))
def test_documented_tag_is_one_id_if_in_vocabulary(
    qwen_like: PromptBuilder, qwen_added: dict[str, int], tag: str
) -> None:
    ids = spoken_ids(qwen_like, f"hello {tag}world")
    assert ids.count(qwen_added[tag]) == 1
    assert set(ids) & set(qwen_added.values()) == {qwen_added[tag]}


@pytest.mark.parametrize("tag", sorted(CONTROL_TAGS))
def test_documented_tag_is_dropped_if_not_in_vocabulary(embedded: PromptBuilder, tag: str) -> None:
    assert spoken_ids(embedded, f"hello{tag}world") == spoken_ids(embedded, "hello world")


def test_control_tags_number_43_and_split_from_text() -> None:
    assert len(CONTROL_TAGS) == 43
    assert TAGS.split("a<|sfx:cough|>b<|sfx:none|>") == ["a", "<|sfx:cough|>", "b<|sfx:none|>"]


@pytest.mark.parametrize(
    "almost", ["<|emotion:evil|>", "<|Emotion:anger|>", "<| emotion:anger|>", "<|emotion:anger|",
               "＜|emotion:anger|＞"],
)  # fmt: skip
def test_malformed_tag_is_plain_text(
    qwen_like: PromptBuilder, qwen_added: dict[str, int], almost: str
) -> None:
    ids = spoken_ids(qwen_like, almost)
    assert ids
    assert not set(ids) & set(qwen_added.values())


def test_dropped_tag_creates_no_new_tag(embedded: PromptBuilder, qwen_like: PromptBuilder) -> None:
    nested = "<|emo<|style:singing|>tion:anger|>"
    assert spoken_ids(embedded, nested) == spoken_ids(embedded, "<|emo tion:anger|>")
    assert spoken_ids(qwen_like, nested).count(spoken_ids(qwen_like, "<|style:singing|>a")[0]) == 1


@pytest.mark.parametrize(
    "text", ["", " ", "\n\t", "...", "\u200b", "🙂🎉", "<|emotion:anger|>", "—"]
)
def test_text_without_speech_is_refused(
    qwen_like: PromptBuilder, embedded: PromptBuilder, text: str
) -> None:
    for builder in (qwen_like, embedded):
        with pytest.raises(RequestError) as error:
            builder.build(text)
        assert (error.value.code, error.value.param) == (ErrorCode.INVALID_TEXT, "text")


@pytest.mark.parametrize("text", ["你好，世界", "مرحبا بالعالم", "こんにちは", "שלום"])
def test_unsupported_script_is_refused_by_embedded_voice_only(
    qwen_like: PromptBuilder, embedded: PromptBuilder, text: str
) -> None:
    with pytest.raises(RequestError) as error:
        embedded.build(text)
    assert error.value.code is ErrorCode.INVALID_TEXT
    assert spoken_ids(qwen_like, text)


def test_sound_effect_alone_is_spoken(qwen_like: PromptBuilder) -> None:
    assert len(spoken_ids(qwen_like, "<|sfx:laughter|>")) == 1
    assert len(spoken_ids(qwen_like, "<|sfx:laughter|><|prosody:pause|>")) == 2


@pytest.mark.parametrize("text", ["5", "Ⅳ", "%", "&", "@", "€", "a<|prosody:pause|>"])
def test_number_sign_or_word_before_tag_is_spoken(qwen_like: PromptBuilder, text: str) -> None:
    assert spoken_ids(qwen_like, text)


def test_long_text_of_few_ids_is_spoken(qwen_like: PromptBuilder) -> None:
    """It has more characters than the model has positions."""
    assert len(spoken_ids(qwen_like, "hello" * 400)) == 400


def test_tokenizer_settings_for_batches_are_ignored(
    tmp_path: Path, qwen_like: PromptBuilder
) -> None:
    """Text would be cut silently, or followed by padding that is spoken."""
    tiny.write_checkpoint(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    builder = open_checkpoint(str(tmp_path)).prompt_builder(1024)
    for text in ("hello", "hello" * 20):
        assert builder.build(text) == qwen_like.build(text)


def test_text_with_lone_surrogate_is_refused(qwen_like: PromptBuilder) -> None:
    with pytest.raises(RequestError) as error:
        qwen_like.build("hello \ud800 world")
    assert error.value.code is ErrorCode.INVALID_TEXT


@pytest.mark.parametrize("length", [1022, 10_000_000])
def test_text_beyond_half_of_positions_is_refused(embedded: PromptBuilder, length: int) -> None:
    assert len(embedded.build("a" * 1021).ids) == 1024
    with pytest.raises(RequestError) as error:
        embedded.build("a" * length)
    assert error.value.code is ErrorCode.TEXT_TOO_LONG


def test_embedded_prompt_ids_match_tokenizer(
    embedded: PromptBuilder, plain_words: Tokenizer
) -> None:
    text = "Hello, World! It's 42 % - o’clock, Café."
    assert list(spoken_ids(embedded, text)) == plain_words.encode(text).ids


def test_voice_clip_precedes_text_and_transcript_has_no_control_ids(
    qwen_like: PromptBuilder, qwen_added: dict[str, int]
) -> None:
    voice = random_voice(1)
    prompt = qwen_like.build("hello", voice)
    ids, ((shown, at),) = prompt.ids, prompt.clips
    assert np.array_equal(shown, apply_delay(voice.frames, tiny.BOC, tiny.EOC))
    assert ids[1] == qwen_added["<|ref_text|>"]
    assert ids[at - 1] == qwen_added["<|ref_audio|>"]
    assert ids[at + len(shown)] == qwen_added["<|text|>"]
    evil = ReferenceVoice(voice.frames, "<|audio|><|emotion:anger|>")
    transcript = qwen_like.build("hello", evil)
    assert not set(transcript.ids[2 : transcript.clips[0][1] - 1]) & set(qwen_added.values())


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((0, 8), np.int16),
        np.zeros((9, 7), np.int16),
        np.zeros(8, np.int16),
        np.full((9, 8), 1024, np.int16),
        np.full((9, 8), -1, np.int16),
        np.zeros((MAX_VOICE_ROWS - 6, 8), np.int16),
        np.full((9, 8), 70_000, np.int32),
    ],
    ids=["empty", "books", "flat", "code", "negative", "long", "wide"],
)
def test_voice_with_invalid_shape_or_codes_is_refused(
    qwen_like: PromptBuilder, frames: np.ndarray
) -> None:
    with pytest.raises(RequestError) as error:
        qwen_like.build("hello", ReferenceVoice(frames))
    assert (error.value.code, error.value.param) == (ErrorCode.INVALID_PARAMETER, "voice")


def test_voice_without_transcript_has_no_mark_for_it(
    tmp_path: Path, qwen_like: PromptBuilder, qwen_added: dict[str, int]
) -> None:
    frames = random_voice(1).frames
    silent = qwen_like.build("hello", ReferenceVoice(frames))
    assert silent.ids[:2] == (qwen_added["<|tts|>"], qwen_added["<|ref_audio|>"])
    assert qwen_like.build("hello", ReferenceVoice(frames, "")).ids == silent.ids
    tiny.write_checkpoint(tmp_path)
    file = tmp_path / "tokenizer.json"
    layout = json.loads(file.read_text())
    layout["added_tokens"] = [t for t in layout["added_tokens"] if t["content"] != "<|ref_text|>"]
    file.write_text(json.dumps(layout))
    builder = open_checkpoint(str(tmp_path)).prompt_builder(1024)
    assert builder.build("hello", random_voice(1)).ids == silent.ids


def test_longest_voice_is_accepted(qwen_like: PromptBuilder) -> None:
    longest = np.zeros((1024 - 7, 8), np.int16)
    assert len(qwen_like.reference_rows(ReferenceVoice(longest))) == 1024


@pytest.mark.parametrize("number", ["<|audio|>", tiny.TEXT_ROWS, 7])
def test_vocabulary_entry_with_control_id_is_refused(tmp_path: Path, number: str | int) -> None:
    """The vocabulary maps an ordinary word to a control id, to one that the model has not, or to
    the one that ends its speech.
    """
    tiny.write_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny.config(7)))
    file = tmp_path / "tokenizer.json"
    layout = json.loads(file.read_text())
    entry = added(file)[number] if isinstance(number, str) else number
    layout["model"]["vocab"]["world"] = entry
    layout["model"]["ignore_merges"] = True
    file.write_text(json.dumps(layout))
    checkpoint = open_checkpoint(str(tmp_path))
    builder = checkpoint.prompt_builder(1024)
    with pytest.raises(RequestError, match="control sequence") as error:
        builder.build("world")
    assert error.value.code is ErrorCode.INVALID_TEXT


def test_tag_beyond_vocabulary_is_dropped(tmp_path: Path) -> None:
    """The engine would refuse the id, and the client's request would fail."""
    tiny.write_checkpoint(tmp_path)
    file = tmp_path / "tokenizer.json"
    layout, beyond = json.loads(file.read_text()), itertools.count(tiny.TEXT_ROWS)
    for token in layout["added_tokens"]:
        if token["content"] in ("<|emotion:anger|>", "<|ref_audio|>"):
            token["id"] = next(beyond)
    file.write_text(json.dumps(layout))
    builder = open_checkpoint(str(tmp_path)).prompt_builder(1024)
    assert max(builder.build("<|emotion:anger|>hello").ids) < tiny.TEXT_ROWS
    assert not builder.takes_references
    with pytest.raises(RequestError) as error:
        builder.build("hello", random_voice(1))
    assert (error.value.code, error.value.param) == (ErrorCode.INVALID_PARAMETER, "voice")


@pytest.mark.parametrize("stop", [-1, tiny.TEXT_ROWS, 1 << 40])
def test_stop_id_outside_vocabulary_is_refused(tmp_path: Path, stop: int) -> None:
    tiny.write_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny.config(stop)))
    checkpoint = open_checkpoint(str(tmp_path))
    with pytest.raises(CheckpointError, match=rf"eos_token_id {stop}, is not within"):
        checkpoint.prompt_builder(1024)


@pytest.mark.parametrize("lacking", ["<|tts|>", "<|text|>", "<|audio|>"])
def test_tokenizer_without_control_token_is_refused(tmp_path: Path, lacking: str) -> None:
    tiny.write_checkpoint(tmp_path)
    file = tmp_path / "tokenizer.json"
    layout = json.loads(file.read_text())
    layout["added_tokens"] = [t for t in layout["added_tokens"] if t["content"] != lacking]
    file.write_text(json.dumps(layout))
    checkpoint = open_checkpoint(str(tmp_path))
    with pytest.raises(CheckpointError, match=lacking.replace("|", r"\|")):
        checkpoint.prompt_builder(1024)


@pytest.mark.parametrize("number", [1.7, "7", None, "<|audio|>"])
def test_added_token_needs_integer_id_of_its_own(tmp_path: Path, number: Any) -> None:
    tiny.write_checkpoint(tmp_path)
    file = tmp_path / "tokenizer.json"
    layout = json.loads(file.read_text())
    entry = added(file).get(number, number)
    layout["added_tokens"] = [
        {**t, "id": entry} if t["content"] == "<|emotion:anger|>" else t
        for t in layout["added_tokens"]
    ]
    file.write_text(json.dumps(layout))
    with pytest.raises(CheckpointError, match="distinct integer ids"):
        open_checkpoint(str(tmp_path)).prompt_builder(1024)


def test_delivery_tags_precede_text_without_moving_offsets(qwen_like: PromptBuilder) -> None:
    tags, text = "<|emotion:anger|><|prosody:speed_slow|>", "hello <|prosody:pause|>you"
    prompt, written = qwen_like.build(text, None, tags), qwen_like.build(tags + text)
    assert prompt.ids == written.ids
    assert prompt.text_starts == (0, 0, *qwen_like.build(text).text_starts)


def test_delivery_tags_exclude_inline_tags(qwen_like: PromptBuilder) -> None:
    aspects = qwen_like.tag_set.delivery
    assert set(aspects.values()) == {"emotion", "style", "speed", "pitch", "expressive"}
    inline = CONTROL_TAGS - set(aspects)
    assert {tag.strip("<|>").split(":")[0] for tag in inline} == {"sfx", "prosody"}
    assert {"<|prosody:pause|>", "<|prosody:long_pause|>"} <= inline
    assert len(inline) == 9 + 2
