"""Captions from word timings, and the clients that receive the words."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from loadtest.fakes.talker import TIMED_SPEC, FakeTalker
from service.say import SayError, run_say
from talkwire_client.captions import as_json, as_lines, as_srt, captions
from talkwire_client.client import Client
from talkwire_client.protocol import Word
from tests.service.live import gateway

TEXT = "Hello there, how are you? I am fine, thank you very much indeed, as one says. Goodbye!"


def spoken(text: str, pace_ms: float = 300.0) -> list[Word]:
    """Words of ``text`` that last ``pace_ms`` each."""
    return [
        Word(m[0], m.start(), m.end(), i * pace_ms, (i + 1) * pace_ms)
        for i, m in enumerate(re.finditer(r"\S+", text))
    ]


def test_captions_break_after_sentences_into_lines() -> None:
    assert [caption.text for caption in captions(spoken(TEXT))] == [
        "Hello there, how are you?",
        "I am fine, thank you very\nmuch indeed, as one says.",
        "Goodbye!",
    ]
    assert captions([]) == []


def test_captions_break_at_pause() -> None:
    words = [Word("one", 0, 3, 0, 400), Word("two", 4, 7, 899, 1000), Word("three", 8, 13, 1500, 2)]
    assert [len(caption.words) for caption in captions(words)] == [2, 1]


def test_srt_formats_times_and_joins_wide_characters() -> None:
    words = [Word("Hi!", 0, 3, 0.4, 999.6), Word("你", 4, 5, 3_723_004, 3_723_500)]
    words.append(Word("好", 5, 6, 3_723_500, 3_724_000))
    assert as_srt(words) == (
        "1\n00:00:00,000 --> 00:00:01,000\nHi!\n\n2\n01:02:03,004 --> 01:02:04,000\n你好\n"
    )
    assert as_srt([]) == ""


def test_json_and_lines_have_every_word() -> None:
    words = spoken("one two")
    assert json.loads(as_json(words))[1] == {
        "text": "two", "start": 4, "end": 7, "start_ms": 300.0, "end_ms": 600.0,
    }  # fmt: skip
    assert as_lines(words) == "   0.000    0.300  one\n   0.300    0.600  two\n"


async def test_words_arrive_with_audio() -> None:
    async with (
        gateway(FakeTalker(spec=TIMED_SPEC, row_s=0.001)) as server,
        Client(server.url) as client,
    ):
        assert client.server.word_timings
        words: list[Word] = []
        heard_ms, early = 0.0, 0
        async with client.speak(TEXT, on_words=words.extend) as speech:
            async for chunk in speech:
                heard_ms += 1000 * chunk.samples / client.server.sample_rate
                early += bool(words) and len(words) < len(TEXT.split())
        assert early
        assert [word.text for word in words] == TEXT.split()
        assert all(a.end_ms <= b.start_ms for a, b in pairwise(words))
        assert 0 <= heard_ms - words[-1].end_ms < 1000


async def test_say_writes_subtitle_file_or_returns_words(tmp_path: Path) -> None:
    async with gateway(FakeTalker(spec=TIMED_SPEC)) as server:
        for name, begins in (("words.srt", "1\n00:00:00,"), ("words.json", "[\n {")):
            file = tmp_path / name
            result = await run_say(TEXT, server.url, timestamps=file)
            assert file.read_text().startswith(begins)
            assert result.words is not None
            assert result.as_dict()["words"][0]["text"] == "Hello"
        lines = await run_say(TEXT, server.url, timestamps=Path("-"))
        assert lines.words == result.words
        assert (await run_say(TEXT, server.url)).words is None
        with pytest.raises(SayError) as wrong:
            await run_say(TEXT, server.url, timestamps=tmp_path / "words.txt")
        assert wrong.value.exit_code == 2
        with pytest.raises(SayError, match="cannot write"):
            await run_say(TEXT, server.url, timestamps=tmp_path / "no" / "x.srt")


async def test_say_refuses_timestamps_of_model_without_word_timings(tmp_path: Path) -> None:
    async with gateway() as server:
        with pytest.raises(SayError) as refused:
            await run_say(TEXT, server.url, timestamps=tmp_path / "words.srt")
        assert refused.value.exit_code == 4


async def test_refused_say_keeps_link_whose_file_does_not_exist_yet(tmp_path: Path) -> None:
    link, target = tmp_path / "words.srt", tmp_path / "target.srt"
    link.symlink_to(target)
    async with gateway() as server:
        with pytest.raises(SayError):
            await run_say(TEXT, server.url, timestamps=link)
    assert (link.is_symlink(), target.exists()) == (True, False)
