"""Characters' times from words' times, and how a client puts them together again."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.protocols.elevenlabs_alignment import Aligner
from streaming.words import WordTiming
from talker.fake import FakeTalker
from tests.service.audio_signal import decoded_file
from tests.service.elevenlabs_talk import finish, is_final, multi, open_context, single
from tests.service.live import gateway

TEXT = "Hello there, how are you? I am fine."


def words_in(text: str, ms: int = 100, pause_ms: int = 20) -> list[WordTiming]:
    """Each word ``ms`` per character long, with a pause before it."""
    timings, at, now = [], 0, 0
    for word in text.split():
        at = text.index(word, at)
        begin, now = now + pause_ms, now + pause_ms + ms * len(word)
        timings.append(WordTiming(word, at, at + len(word), begin, now))
        at += len(word)
    return timings


def test_a_words_characters_share_its_time_and_the_space_the_pause() -> None:
    aligner = Aligner()
    aligner.append("Oh, no")
    times = aligner.take(words_in("Oh, no"))
    assert times is not None
    assert "".join(times.chars) == "Oh, no "  # the space that ends a word is lent
    assert times.edges_ms == (20, 120, 220, 320, 340, 440, 540, 540)
    assert times.relative(0)["charDurationsMs"] == [100, 100, 100, 20, 100, 100, 0]
    assert times.in_seconds()["character_end_times_seconds"][-1] == 0.54
    assert aligner.clock_ms == 540


def test_a_lent_space_is_not_given_twice() -> None:
    aligner = Aligner()
    words = words_in("One. Two. Three.")
    given = []
    for text, word in zip(("One.", " Two.", " Three."), words, strict=True):
        aligner.append(text)
        times = aligner.take([word])
        assert times is not None
        given.append("".join(times.chars))
    assert given == ["One. ", "Two. ", "Three. "]


def test_words_that_nothing_divides_are_not_divided() -> None:
    aligner = Aligner()
    aligner.append("你好世界")
    times = aligner.take(
        [WordTiming("你好", 0, 2, 0.0, 200.0), WordTiming("世界", 2, 4, 200.0, 400.0)]
    )
    assert times is not None
    assert "".join(times.chars) == "你好世界 "
    assert Aligner().take([]) is None


@given(
    text=st.text("ab .,é你\n", min_size=1, max_size=60),
    cuts=st.lists(st.integers(1, 8), max_size=20),
    ms=st.integers(0, 90),
    pause=st.integers(0, 50),
)
def test_the_messages_tell_the_text_in_order_however_words_come(
    text: str, cuts: list[int], ms: int, pause: int
) -> None:
    words = words_in(text, ms, pause)
    aligner = Aligner()
    aligner.append(text)
    chars, clock, begins = "", 0, []
    for size in [*cuts, len(words) or 1]:
        some, words = words[:size], words[size:]
        since = aligner.clock_ms
        times = aligner.take(some)
        assert (times is None) == (not some)
        if times is None:
            continue
        message = times.relative(since)
        begins += [clock + start for start in message["charStartTimesMs"]]
        assert all(lasts >= 0 for lasts in message["charDurationsMs"])
        for start, lasts in zip(
            message["charStartTimesMs"], message["charDurationsMs"], strict=True
        ):
            assert start >= 0
            end = clock + start + lasts
        clock = end  # as Pipecat's service counts
        assert clock == aligner.clock_ms
        chars += "".join(message["chars"])
    assert begins == sorted(begins)
    assert chars.split() == text.split()
    assert re.sub(r"\s", " ", text).startswith(chars.rstrip())


# -- through a gateway


def speaking(**more: Any) -> FakeTalker:
    """Each character is two frames long, so a word begins where its text says."""
    return FakeTalker(frames_per_character=2.0, has_word_timings=True, **more)


def heard(messages: list[dict[str, Any]], *, sync: bool = False) -> list[tuple[str, int]]:
    """Words and when they begin, in ms, as a client makes them of alignments: each counts from
    where the one before it ended, or with ``sync`` from the beginning.
    """
    chars: list[str] = []
    starts: list[int] = []
    clock = 0
    for message in messages:
        if (alignment := message.get("alignment")) is None:
            continue
        assert message["normalizedAlignment"] == alignment
        begins, lasts = alignment["charStartTimesMs"], alignment["charDurationsMs"]
        assert len(alignment["chars"]) == len(begins) == len(lasts)
        chars += alignment["chars"]
        starts += [clock + begin for begin in begins]
        clock += 0 if sync else begins[-1] + lasts[-1]
    spoken = "".join(chars)
    assert spoken.endswith(" ")
    ends = accumulate(len(word) + 1 for word in spoken.split(" ")[:-1])
    return [
        (word, starts[end - len(word) - 1]) for word, end in zip(spoken.split(), ends, strict=True)
    ]


#: How long a decoder gives silence before the speech of an MP3 file (docs/audio.md).
MP3_DELAY_MS = {"mp3_22050_32": 1105 / 22.05}


def check(
    words: list[tuple[str, int]], text: str, frame_ms: float = 40.0, late_ms: float = 0.0
) -> None:
    assert [word for word, _ in words] == text.split()
    at, spaces = 0, 0
    for number, (word, begin) in enumerate(words):
        at = text.index(word, at)
        before = words[number - 1][0] if number else ""
        spaces += before[-1:] in (".", "?")  # the space between two sentences is not spoken
        assert begin == pytest.approx(late_ms + (at - spaces) * 2 * frame_ms, abs=30)
        at += len(word)


async def test_a_turn_of_phrases_without_spaces_is_told_word_by_word() -> None:
    async with gateway(speaking()) as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", "Hello there, how are you?", "I am fine.")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        check(heard(talk.messages), TEXT)
        first = next(message for message in talk.messages if message.get("alignment"))
        assert first["audio"]  # they travel together


@pytest.mark.parametrize("name", ["mp3_22050_32", "pcm_16000", "opus_48000_32"])
async def test_every_format_has_its_alignment(name: str) -> None:
    async with gateway(speaking(row_s=0.001)) as server, multi(server, output_format=name) as talk:
        await open_context(talk, "a", *TEXT)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        check(heard(talk.messages), TEXT, late_ms=MP3_DELAY_MS.get(name, 0.0))


#: Format, and how much silence a decoder may give after the last word: what fills a block.
RESTARTED = [
    ("mp3_22050_32", 1000 * 2 * 576 / 22_050),
    ("mp3_44100_128", 1000 * 2 * 1152 / 44_100),
    ("opus_48000_32", 1.0),
    ("pcm_22050", 1.0),
]


@pytest.mark.parametrize(("name", "most_ms"), RESTARTED)
async def test_words_are_told_by_what_is_heard_however_often_a_file_ends(
    name: str, most_ms: float
) -> None:
    """Each sentence comes when the one before has been sent: there a file ends."""
    query = {"output_format": name, "sync_alignment": "true"}
    async with gateway(speaking()) as server, multi(server, **query) as talk:
        for number in range(6):
            await talk.send(text=f"This is number {number}. ", context_id="a", flush=True)
            told = await talk.until(lambda message: chars_of(message).endswith(". "))
        await talk.send(context_id="a", close_context=True)
        await talk.until(is_final("a"))
        alignment = told["alignment"]
        ends_ms = alignment["charStartTimesMs"][-1] + alignment["charDurationsMs"][-1]
        lasts_ms = 1000 * seconds(talk.sounds["a"], name)
        assert 0 <= lasts_ms - ends_ms <= most_ms


def chars_of(message: dict[str, Any]) -> str:
    return "".join(message.get("alignment", {}).get("chars", []))


def seconds(data: bytes, name: str) -> float:
    """How long it lasts, by ffmpeg's decoders."""
    if name.startswith("pcm"):
        return len(data) / 2 / int(name.split("_")[1])
    samples, rate = decoded_file(data)
    return len(samples) / rate


@pytest.mark.parametrize("connect", [multi, single])
async def test_in_sync_all_count_from_the_beginning(connect: Any) -> None:
    talker = speaking(row_s=0.001)
    async with gateway(talker) as server, connect(server, sync_alignment="true") as talk:
        await talk.send(text=TEXT + " ", flush=True)
        if connect is single:
            await talk.send(text="")
        else:
            await talk.send(close_context=True)
        await talk.until(lambda message: message.get("isFinal"))
        assert sum("alignment" in message for message in talk.messages) > 1
        check(heard(talk.messages, sync=True), TEXT)


async def test_a_single_stream_has_it_too() -> None:
    async with gateway(speaking()) as server, single(server) as talk:
        await talk.send(text=TEXT + " ")
        await talk.send(text="")
        check(heard(await talk.rest()), TEXT)


async def test_a_model_without_word_timings_has_none() -> None:
    async with gateway() as server, multi(server, sync_alignment="true") as talk:
        await open_context(talk, "a", TEXT)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert not any("alignment" in message for message in talk.messages)
