"""Captions of a context's words, as two independent readers see them."""

from __future__ import annotations

import html
import io
import json
from itertools import pairwise

import pysubs2
import pytest
import webvtt
from hypothesis import given
from hypothesis import strategies as st

from service.dialects.openai.captions import accepted_captions
from streaming.word_timing import WordTiming, find_words
from talkwire_client.captions import as_cues, as_srt, as_vtt, captions


def timed(text: str, word_ms: float = 300.0, gap_ms: float = 20.0) -> list[WordTiming]:
    """The words of a text, spoken evenly."""
    words, at = list[WordTiming](), 0.0
    for start, end in find_words(text):
        words.append(WordTiming(text[start:end], start, end, at, at + word_ms))
        at += word_ms + gap_ms
    return words


def texts(text: str, **pace: float) -> list[str]:
    return [one.text for one in captions(timed(text, **pace))]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("Hi!", ["Hi!"]),
        ("One is here. Two is not.", ["One is here.", "Two is not."]),
        ('He said "no." Then he left.', ['He said "no."', "Then he left."]),
        ("你好。再见。", ["你好。", "再见。"]),
        ("a <break time='1s'/> b", ["a b"]),
        ("one\ntwo\tthree", ["one two three"]),
        (
            "The quick brown fox jumps over the lazy dog again",
            ["The quick brown fox jumps\nover the lazy dog again"],
        ),
        ("x" * 100, ["x" * 100]),
    ],
)
def test_captions_are_sentences_in_two_lines(text: str, wanted: list[str]) -> None:
    plain = text.replace("<break time='1s'/>", "                  ")
    assert [one.text for one in captions(timed(plain, word_ms=100.0))] == wanted


def test_captions_end_at_silence_and_after_seconds() -> None:
    words = timed("one two")
    words[1] = WordTiming("two", 4, 7, 1100.0, 1400.0)
    assert [one.text for one in captions(words)] == ["one", "two"]
    slow = captions(timed("and so on and so on and so on", word_ms=2000.0))
    assert all(one.end_ms - one.start_ms <= 7000 for one in slow)
    assert len(slow) == 3


WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1),
    max_size=60,
)


@given(WORDS, st.floats(1, 4000), st.floats(0, 2000))
def test_captions_hold_each_word_once_and_in_order(
    words: list[str], word_ms: float, gap_ms: float
) -> None:
    spoken = timed(" ".join(words), word_ms, gap_ms)
    found = captions(spoken)
    assert [word for one in found for word in one.words] == spoken
    for before, after in pairwise(found):
        assert before.start_ms <= before.end_ms <= after.start_ms
    assert all(one.text.count("\n") <= 1 and "\n\n" not in one.text for one in found)
    assert [one["text"] for one in json.loads(json.dumps(as_cues(spoken)))] == [
        one.text for one in found
    ]


HARD = (
    "Ben & Jerry's <i>cost</i> less than 5 --> 3 > 2. &amp; is an ampersand! "
    "WEBVTT NOTE 1 00:00:01,000 --> {y:i} and so it goes on for quite a while. Done."
)


@pytest.mark.parametrize("text", ["One is here. Two is not.", "你好。 再见。", HARD])
def test_independent_readers_of_vtt_and_srt_agree(text: str) -> None:
    words = timed(text, word_ms=1800.0 if text == HARD else 300.0)
    wanted = captions(words)
    for written, kind in ((as_vtt(words), "vtt"), (as_srt(words), "srt")):
        read = webvtt.from_buffer(io.StringIO(written), format=kind)
        assert [
            (one.start_in_seconds * 1000 + one.start_time.milliseconds) for one in read.captions
        ] == pytest.approx([round(one.start_ms) for one in wanted])
        other = pysubs2.SSAFile.from_string(written, format_=kind, keep_html_tags=True)
        assert [one.end for one in other] == [round(one.end_ms) for one in wanted]
        assert len(read) == len(other) == len(wanted)
    shown = webvtt.from_buffer(io.StringIO(as_vtt(words)))[0].text
    assert html.unescape(shown) == wanted[0].text


def test_times_have_hours() -> None:
    words = [WordTiming("late", 0, 4, 3_723_004.4, 36_000_000.0)]
    assert "01:02:03,004 --> 10:00:00,000" in as_srt(words)
    assert "01:02:03.004 --> 10:00:00.000" in as_vtt(words)


@pytest.mark.parametrize(
    ("accept", "format_"),
    [
        ("", None),
        ("*/*", None),
        ("application/json, text/plain, */*", None),
        ("text/vtt", "vtt"),
        ("Text/VTT; charset=utf-8", "vtt"),
        ("audio/mpeg, application/x-subrip;q=0.9", "srt"),
    ],
)
def test_accept_header_chooses_captions(accept: str, format_: str | None) -> None:
    assert accepted_captions(accept) == format_
