"""Alignments: times of characters from times of words, and as clients read them."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.dialects.elevenlabs.messages import Aligner
from streaming.word_timing import WordTiming
from tests.service.audio.audio_signal import decoded_file
from tests.service.dialects.elevenlabs.talk import (
    MP3_DELAY_MS,
    TEXT,
    check_words,
    finish,
    is_final,
    multi,
    open_context,
    single,
    words_in,
)
from tests.service.dialects.vendor_talk import speaking
from tests.service.live import gateway
from tests.service.memory import served


def test_aligner_divides_word_evenly_and_gives_pause_to_space() -> None:
    aligner = Aligner()
    aligner.append("Oh, no")
    times = aligner.take(words_in("Oh, no"))
    assert times is not None
    assert "".join(times.chars) == "Oh, no "  # a space is added to end the last word
    assert times.edges_ms == (20, 120, 220, 320, 340, 440, 540, 540)
    assert times.relative(0)["charDurationsMs"] == [100, 100, 100, 20, 100, 100, 0]
    assert times.in_seconds()["character_end_times_seconds"][-1] == 0.54
    assert aligner.clock_ms == 540


def test_aligner_adds_space_after_word_only_once() -> None:
    aligner = Aligner()
    words = words_in("One. Two. Three.")
    given = []
    for text, word in zip(("One.", " Two.", " Three."), words, strict=True):
        aligner.append(text)
        times = aligner.take([word])
        assert times is not None
        given.append("".join(times.chars))
    assert given == ["One. ", "Two. ", "Three. "]


def test_aligner_adds_no_space_between_chinese_words() -> None:
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
def test_alignment_messages_contain_text_in_order(
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


def heard(messages: list[dict[str, Any]], *, sync: bool = False) -> list[tuple[str, int]]:
    """Return words and their start times in ms, as a client computes them from alignments. Each
    alignment counts from the end of the previous one or, with ``sync``, from the beginning.
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


async def test_phrases_without_spaces_are_aligned_word_by_word() -> None:
    async with gateway(speaking()) as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", "Hello there, how are you?", "I am fine.")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        check_words(heard(talk.messages), TEXT)
        first = next(message for message in talk.messages if message.get("alignment"))
        assert first["audio"]  # in the same message


@pytest.mark.parametrize(
    ("texts", "flush", "spoken"),
    [
        (("Hello \ud83d", "\ude00 there, how are you?"), False, "Hello  there, how are you? "),
        (("Hello \ud83d", "\ude00 there, how are you?"), True, "Hello �� there, how are you? "),
        (("Hello", " there \ud83d"), False, "Hello there � "),
    ],
)
async def test_alignment_has_surrogates_as_they_are_spoken(
    texts: tuple[str, str], flush: bool, spoken: str
) -> None:
    async with gateway(speaking()) as server, multi(server) as talk:
        first, second = texts
        await talk.send(text=first, flush=flush, context_id="a")
        await talk.send(text=second, context_id="a")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        alignments = [m["alignment"] for m in talk.messages if m.get("alignment")]
        assert "".join(char for one in alignments for char in one["chars"]) == spoken


@pytest.mark.parametrize("name", ["mp3_22050_32", "pcm_16000", "opus_48000_32"])
async def test_each_format_has_alignment(name: str) -> None:
    async with gateway(speaking(row_s=0.001)) as server, multi(server, output_format=name) as talk:
        await open_context(talk, "a", *TEXT)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        check_words(heard(talk.messages), TEXT, late_ms=MP3_DELAY_MS.get(name, 0.0))


#: Formats, and the longest silence after the last word, which fills a block.
RESTARTED = [
    ("mp3_22050_32", 1000 * 2 * 576 / 22_050),
    ("mp3_44100_128", 1000 * 2 * 1152 / 44_100),
    ("opus_48000_32", 1.0),
    ("pcm_22050", 1.0),
]


@pytest.mark.parametrize(("name", "most_ms"), RESTARTED)
async def test_alignment_matches_heard_audio_after_file_restarts(name: str, most_ms: float) -> None:
    """Each sentence follows after a pause, in which a file ends."""
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
    """Return the duration, by ffmpeg's decoders."""
    if name.startswith("pcm"):
        return len(data) / 2 / int(name.split("_")[1])
    samples, rate = decoded_file(data)
    return len(samples) / rate


@pytest.mark.parametrize("connect", [multi, single])
async def test_sync_alignment_counts_from_beginning(connect: Any) -> None:
    talker = speaking(row_s=0.001)
    async with gateway(talker) as server, connect(server, sync_alignment="true") as talk:
        await talk.send(text=TEXT + " ", flush=True)
        if connect is single:
            await talk.send(text="")
        else:
            await talk.send(close_context=True)
        await talk.until(lambda message: message.get("isFinal"))
        assert sum("alignment" in message for message in talk.messages) > 1
        check_words(heard(talk.messages, sync=True), TEXT)


async def test_single_stream_has_alignment() -> None:
    async with gateway(speaking()) as server, single(server) as talk:
        await talk.send(text=TEXT + " ")
        await talk.send(text="")
        check_words(heard(await talk.rest()), TEXT)


async def test_alignment_is_absent_without_word_timings() -> None:
    async with gateway() as server, multi(server, sync_alignment="true") as talk:
        await open_context(talk, "a", TEXT)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert not any("alignment" in message for message in talk.messages)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Sure! \N{PARTY POPPER} \N{PARTY POPPER}. Let me", "Sure!   Let me "),
        ("Great\N{PARTY POPPER} Next", "Great Next "),
        ("Great\N{PARTY POPPER}Next", "Great Next "),
        ("One \u2014 two", "One \u2014 two "),
    ],
)
def test_aligner_leaves_symbols_between_words_out(text: str, shown: str) -> None:
    aligner = Aligner()
    aligner.append(text)
    words = [
        WordTiming(match[0], match.start(), match.end(), 100.0 * n, 100.0 * n + 50)
        for n, match in enumerate(re.finditer(r"\w+!?", text))
    ]
    times = aligner.take(words)
    assert times is not None
    assert "".join(times.chars) == shown
    assert list(times.edges_ms) == sorted(times.edges_ms)
    whole = Aligner(lends=False)
    whole.append(text)
    complete = whole.take(words)
    assert complete is not None
    assert "".join(complete.chars) == text


@pytest.mark.parametrize("tail", ["\N{PARTY POPPER}", " \N{PARTY POPPER}", "\N{PARTY POPPER} "])
async def test_alignment_after_unspoken_tail_ends_with_space(tail: str) -> None:
    """Clients that split at spaces, like Pipecat, would wait forever for the end of the word."""
    text = f"Hello there{tail}"
    async with gateway(speaking()) as server, multi(server) as talk:
        await open_context(talk, "a", text)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        alignments = [m["alignment"] for m in talk.messages if "alignment" in m]
        chars = "".join(char for one in alignments for char in one["chars"])
        there = f"there{tail.partition(' ')[0]}"  # a symbol that touches a word belongs to it
        assert chars.split(" ") == ["Hello", there, ""]
        assert [word for word, _ in heard(talk.messages)] == ["Hello", there]
        assert alignments[-1]["charDurationsMs"][-1] == 0


@pytest.mark.parametrize("text", [TEXT, f"{TEXT} \N{PARTY POPPER}", f"{TEXT}\N{PARTY POPPER}"])
@pytest.mark.parametrize("path", ["/with-timestamps", "/stream/with-timestamps"])
async def test_http_alignment_characters_equal_text(text: str, path: str) -> None:
    async with served(speaking()) as service:
        address = f"/v1/text-to-speech/default{path}?output_format=pcm_24000"
        answer = await service.http.post(address, json={"text": text})
        lines = [json.loads(line) for line in answer.text.splitlines()]
        told = [line["alignment"] for line in lines if line["alignment"] is not None]
        assert "".join(char for one in told for char in one["characters"]) == text
