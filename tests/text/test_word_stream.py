"""Text cut at places where its ids cannot change."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from talker.checkpoint import open_checkpoint
from tests.talker import tiny_qwen3_tts
from text.word_stream import Words, WordStream

#: Whatever Qwen's pattern and NFC treat in a way of their own.
ALPHABET = [
    "a", "B", "\u00e9", "e", "\u0301", "\u4f60", "\u597d", "3", ".", "?", "'s", "-", "/", " ", " ",
    " ", "  ", "\n", "\t", "\r\n", "\x1c", "\u00a0", "\u3000", "hello", " world", "n't", "\u3002",
    "\uff0c", "\uff01", "\u300d", "\U0001f600", "\u200d",
]  # fmt: skip


def by_letter(stream: WordStream, text: str) -> list[Words]:
    return [words for letter in text for words in stream.push(letter)] + stream.cut()


def joined(words: list[Words]) -> list[str]:
    """The utterances, each with its parts joined."""
    texts = [""]
    for part, ends in words:
        texts[-1] += part
        if ends:
            texts.append("")
    assert texts[-1] == ""
    return texts[:-1]


def test_ids_of_parts_are_ids_of_whole_text(tmp_path: Path) -> None:
    folder = tiny_qwen3_tts.write_checkpoint(tmp_path)
    encode = open_checkpoint(str(folder)).prompt_builder(1024).encode
    dice, parts = random.Random(0), 0
    for _ in range(3000):
        text = "".join(dice.choices(ALPHABET, k=dice.randrange(2, 30)))
        cut = by_letter(WordStream(1000), text)
        assert "".join(part for part, _ in cut) == text.strip()
        ids = [i for part, _ in cut if part for i in encode(part)]
        assert ids == encode(text.strip()), text
        parts += len(cut)
    assert parts > 6000


@pytest.mark.parametrize("limit", [8, 25, 1000])
def test_parts_do_not_depend_on_pieces(limit: int) -> None:
    dice = random.Random(limit)
    for _ in range(500):
        text = "".join(dice.choices(ALPHABET, k=dice.randrange(2, 60)))
        stream = WordStream(limit)
        pieces, at = [], 0
        while at < len(text):
            size = dice.randrange(1, 9)
            pieces += stream.push(text[at : at + size])
            at += size
        assert pieces + stream.cut() == by_letter(WordStream(limit), text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hello there, world.", ["Hello", " there,", " world."]),
        ("  \n... and  so", ["... and  so"]),
        ("One\ntwo three", ["One\ntwo", " three"]),
        ("\u4f60\u597d\uff0c\u4e16\u754c\u3002", ["\u4f60\u597d", "\uff0c\u4e16\u754c", "\u3002"]),
    ],
)
def test_text_is_cut_before_spaces_and_wide_marks(text: str, parts: list[str]) -> None:
    assert [part for part, _ in by_letter(WordStream(300), text)] == parts


@pytest.mark.parametrize(
    ("text", "utterances"),
    [
        ("One two. Three four. Five.", ["One two. Three four.", "Five."]),
        ("a b c d e f g h i j k l m n", ["a b c d e f g h i j k", "l m n"]),
        ("x" * 25, ["x" * 10, "x" * 10, "x" * 5]),
        ("\u4f60" * 11 + "\u3002" + "\u597d" * 2, ["\u4f60" * 10, "\u4f60\u3002\u597d\u597d"]),
        ("\u4f60" * 9 + "\uff0c" + "\u597d" * 2 + "\u3002" + "\u4f60",
         ["\u4f60" * 9 + "\uff0c" + "\u597d" * 2 + "\u3002", "\u4f60"]),
    ],
)  # fmt: skip
def test_long_text_is_several_utterances(text: str, utterances: list[str]) -> None:
    assert joined(by_letter(WordStream(10), text)) == utterances


def test_cut_ends_utterance_only_if_there_is_one() -> None:
    stream = WordStream(300)
    assert stream.cut() == []
    assert stream.push("Hello wor") == [Words("Hello")]
    assert stream.pending_chars == 4
    assert stream.cut() == [Words(" wor", ends=True)]
    assert (stream.cut(), stream.pending_chars) == ([], 0)
    assert stream.push("  next one") == [Words("next")]
