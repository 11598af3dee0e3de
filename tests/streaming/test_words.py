"""Words and their timings, from the talker's positions in the text and from the audio."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.spec import CodecSpec, Samples
from streaming.word_timing import WordTiming, WordTracker, find_words

CODEC = CodecSpec(24_000, 960, (1024,) * 4, 3, 3)
FRAME_MS = 40.0
TEXT = "the quick brown fox jumps over a lazy dog, and then it sleeps."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("one", ["one"]),
        ("  Don't stop, now!  ", ["Don't", "stop,", "now!"]),
        ("well - yes — no", ["well", "yes", "no"]),
        ("well—yes—", ["well—", "yes—"]),
        ("it costs $3.50 (or 5 %).", ["it", "costs", "$3.50", "(or", "5", "%)."]),
        ("salt & pepper", ["salt", "&", "pepper"]),
        ("1 + 1 = 2 @ 5 $ € £ ¥ %", list("1+1=2@5$€£¥%")),
        ("“well—” he ?", ["“well—”", "he"]),
        ("ok你好", ["ok", "你", "好"]),
        ("a\n\nb\tc", ["a", "b", "c"]),
        ("<|emotion:awe|>Look <|prosody:pause|> up <|sfx:laughter|>haha", ["Look", "up", "haha"]),
        ("<|nothing|> here", ["<|nothing|>", "here"]),
        ("你好，世界。ok", ["你", "好，", "世", "界。", "ok"]),
        ("ที่นี่ ok", ["ที่", "นี่", "ok"]),
        ("မြန်မာ။ខ្មែរ", ["မြ", "န်", "မာ။", "ខ្", "មែ", "រ"]),
        ("\U0001f600 ... !", []),
    ],
)
def test_find_words_returns_spoken_words(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in find_words(text)] == words


@given(st.text(alphabet="ab.-, \n$你。", max_size=30))
def test_find_words_covers_letters_without_overlap(text: str) -> None:
    words = find_words(text)
    assert all(a[1] <= b[0] for a, b in pairwise(words))
    for at, char in enumerate(text):
        assert not char.isalnum() or sum(a <= at < b for a, b in words) == 1


def sound(frames: int, *pauses: tuple[int, int]) -> Samples:
    """``frames`` frames of sound with pauses, given in parts of 10 ms, in which a codec's noise is
    heard.
    """
    samples = np.tile(np.float32([0.0, -0.03]), frames * CODEC.hop_length // 2)
    for start, end in pauses:
        samples[start * 240 : end * 240] = 0.015
    return samples


def spoken(beginnings: list[float], frames: int, text: str = TEXT) -> np.ndarray:
    """Positions of frames if words begin at these frames, with an even pace in between."""
    starts = [start for start, _ in find_words(text)]
    assert len(starts) == len(beginnings)
    return np.interp(np.arange(frames), [*beginnings, frames], [*starts, len(text)]).astype("f4")


def follow(
    places: np.ndarray,
    samples: Samples,
    cuts: list[int] = [],  # noqa: B006 (never changed)
    *,
    ahead: int = 9,
    text: str = TEXT,
    cut_off: bool = False,
) -> list[WordTiming]:
    """Track rows ``ahead`` of the samples sent in chunks; check that no word is reported early."""
    tracker = WordTracker(text, 0, CODEC, CODEC.sample_rate)
    told: list[WordTiming] = []
    frames, pushed = len(places), 0
    for start, end in pairwise([0, *cuts, frames]):
        tracker.push(places[pushed : end + ahead])
        pushed = min(end + ahead, frames)
        hop = CODEC.hop_length
        at_end = end == frames and not cut_off
        told += tracker.on_sent(samples[start * hop : end * hop], start * hop, at_end=at_end)
        assert all(word.end_ms <= end * FRAME_MS for word in told)
    return told + tracker.finish(cut_off=cut_off)


def begins(told: list[WordTiming]) -> list[float]:
    return [word.start_ms / FRAME_MS for word in told]


evenly = st.lists(st.floats(1.2, 9.0), min_size=13, max_size=13).map(
    lambda steps: [0.0, *np.cumsum(steps[:-1]).tolist()]
)


@given(evenly, st.sets(st.integers(1, 60)))
def test_words_begin_at_first_character_for_any_chunking(
    beginnings: list[float], cuts: set[int]
) -> None:
    frames = int(beginnings[-1]) + 8
    told = follow(spoken(beginnings, frames), sound(frames), sorted(c for c in cuts if c < frames))
    assert [word.text for word in told] == TEXT.split()
    assert [TEXT[word.start : word.end] for word in told] == TEXT.split()
    assert begins(told) == pytest.approx(beginnings, abs=1.01)
    assert all(a.end_ms <= b.start_ms for a, b in pairwise(told))
    assert [a.end_ms for a in told[:-1]] == [b.start_ms for b in told[1:]]
    assert told[-1].end_ms == frames * FRAME_MS


def test_words_are_told_with_their_audio() -> None:
    """A client that shows captions needs each word while it is heard, and none before its end."""
    beginnings = [5.0 * i for i in range(13)]
    tracker = WordTracker(TEXT, 0, CODEC, CODEC.sample_rate)
    tracker.push(spoken(beginnings, 70))
    samples, hop, told = sound(70), CODEC.hop_length, 0
    for frames in range(1, 71):
        part = samples[(frames - 1) * hop : frames * hop]
        for word in tracker.on_sent(part, (frames - 1) * hop):
            told += 1
            assert word.end_ms <= frames * FRAME_MS
        ended = [begin for begin in beginnings[1:] if begin < frames]
        assert told == len(ended)


def test_stray_frames_do_not_move_words() -> None:
    rng = np.random.default_rng(3)
    beginnings = [5.0 * i for i in range(13)]
    clean = spoken(beginnings, 70)
    for _ in range(50):
        places = clean.copy()
        stray = rng.random(len(places)) < 0.06
        places[stray] = rng.random(int(stray.sum())) * len(TEXT)
        told = follow(places, sound(70), list(range(5, 70, 5)))
        assert [word.text for word in told] == TEXT.split()
        off = np.abs(np.array(begins(told)) - beginnings)
        assert np.median(off) < 0.5
        assert np.percentile(off, 75) <= 1
        assert off.max() <= 8


def test_frames_without_position_are_interpolated() -> None:
    beginnings = [6.0 * i for i in range(13)]
    places = spoken(beginnings, 80)
    places[20:23] = np.nan
    told = follow(places, sound(80), [10, 21, 40])
    assert begins(told) == pytest.approx(beginnings, abs=3)


def test_pause_belongs_to_no_word() -> None:
    text, pause = "one, two", (44, 68)
    for second in (15.2, 17.0, 18.6):  # the talker moves on within the pause, or a little late
        told = follow(spoken([0.0, second], 30, text), sound(30, pause), [12, 24], text=text)
        assert [(w.text, w.start_ms, w.end_ms) for w in told] == [
            ("one,", 0.0, 440.0),
            ("two", 680.0, 1200.0),
        ]


def test_last_pause_before_next_word_is_the_one_between_them() -> None:
    text = "one, two"
    heard = sound(30, (20, 35), (44, 68))
    told = follow(spoken([0.0, 18.6], 30, text), heard, [12, 24], text=text)
    assert [(w.start_ms, w.end_ms) for w in told] == [(0.0, 440.0), (680.0, 1200.0)]


def test_pause_moves_only_the_word_after_it() -> None:
    text = "so one, two"
    told = follow(spoken([0.0, 5.0, 18.6], 30, text), sound(30, (44, 68)), [12, 24], text=text)
    assert [word.start_ms for word in told] == pytest.approx([0.0, 200.0, 680.0], abs=5)
    assert told[1].end_ms == 440.0


@pytest.mark.parametrize(
    ("pause", "second", "begin_ms"),
    [
        ((57, 67), 17.0, 670.0),
        ((57, 66), 17.0, 680.0),  # shorter than a pause between words
        ((44, 68), 20.0, 680.0),
        ((44, 68), 20.25, 810.0),  # too far from where the talker moves on
    ],
)
def test_word_begins_after_pause_nearby(
    pause: tuple[int, int], second: float, begin_ms: float
) -> None:
    text = "one, two"
    told = follow(spoken([0.0, second], 30, text), sound(30, pause), [12, 24], text=text)
    assert told[1].start_ms == pytest.approx(begin_ms, abs=2)


def test_silence_at_edges_of_utterance_belongs_to_no_word() -> None:
    text = "one two"
    told = follow(spoken([0.0, 10.0], 25, text), sound(25, (0, 7), (88, 100)), text=text)
    assert [(w.start_ms, w.end_ms) for w in told] == [(70.0, 400.0), (400.0, 880.0)]


def test_silence_in_consonant_does_not_move_next_word() -> None:
    text = "stop it"
    told = follow(spoken([0.0, 8.0], 20, text), sound(20, (26, 33)), text=text)
    assert [(w.start_ms, w.end_ms) for w in told] == [(0.0, 260.0), (320.0, 800.0)]


def test_cut_off_utterance_has_only_begun_words() -> None:
    places = spoken([5.0 * i for i in range(13)], 66)[:23]
    told = follow(places, sound(23), [10], cut_off=True)
    assert [word.text for word in told] == TEXT.split()[:5]
    assert told[-1].end_ms == 23 * FRAME_MS
    whole = follow(places, sound(23), [10])
    assert [word.text for word in whole] == TEXT.split()
    assert all(a.end_ms <= b.start_ms for a, b in pairwise(whole))


@pytest.mark.parametrize("last", [9.6, 10.0])
def test_last_word_of_one_letter_begins_where_it_is_spoken(last: float) -> None:
    """Positions are averages over neighbours, of which a last letter has none after it."""
    text = "plan a or b"
    places = np.minimum(spoken([0.0, 6.0, 10.0, 14.0], 30, text), np.float32(last))
    told = follow(places, sound(30, (80, 120)), [12, 17, 24], text=text)
    assert [word.text for word in told] == text.split()
    assert begins(told)[-1] == pytest.approx(14, abs=1.5)
    assert told[-1].end_ms == 20 * FRAME_MS


@pytest.mark.parametrize(
    ("cut_off", "told"),
    [(False, [("one", 0.0, 400.0), ("two", 400.0, 400.0)]), (True, [("one", 0.0, 400.0)])],
)
def test_no_word_ends_after_the_audio(cut_off: bool, told: list[tuple[str, float, float]]) -> None:
    """A stream's last rows may be of frames that are not spoken."""
    tracker = WordTracker("one two", 0, CODEC, CODEC.sample_rate)
    tracker.push(spoken([0.0, 12.0], 20, "one two"))
    words = [*tracker.on_sent(sound(10), 0), *tracker.finish(cut_off=cut_off)]
    assert [(w.text, w.start_ms, w.end_ms) for w in words] == told


@pytest.mark.parametrize("cut_off", [False, True])
def test_utterance_without_audio_has_no_words(cut_off: bool) -> None:
    tracker = WordTracker("one two", 0, CODEC, CODEC.sample_rate)
    tracker.push(spoken([0.0, 2.0], 4, "one two"))
    assert tracker.finish(cut_off=cut_off) == []


def test_word_in_trimmed_silence_begins_with_the_audio() -> None:
    tracker = WordTracker("one two", 0, CODEC, CODEC.sample_rate)
    tracker.push(spoken([0.0, 5.0], 20, "one two"))
    told = tracker.on_sent(sound(20, (0, 80)), 0, 3 * CODEC.hop_length)
    told += tracker.finish(cut_off=False)
    assert [(w.start_ms, w.end_ms) for w in told] == [(0.0, 80.0), (80.0, 680.0)]


def test_times_count_from_context_start_at_playback_speed() -> None:
    tracker = WordTracker("two words", 100, CODEC, 2 * CODEC.sample_rate)
    tracker.push(spoken([0.0, 10.0], 20, "two words"))
    told = [*tracker.on_sent(sound(20), 48_000), *tracker.finish(cut_off=False)]
    assert told == [
        WordTiming("two", 100, 103, 1000.0, 1200.0),
        WordTiming("words", 104, 109, 1200.0, 1400.0),
    ]


def test_times_exclude_trimmed_samples() -> None:
    tracker = WordTracker("two words", 100, CODEC, CODEC.sample_rate)
    tracker.push(spoken([3.0, 12.0], 20, "two words"))
    heard, hop = sound(20, (0, 14)), CODEC.hop_length
    told = tracker.on_sent(heard[:hop], 0, hop)  # trims a whole frame, then two and a half more
    told += tracker.on_sent(heard[hop:], 0, 5 * hop // 2)
    told += tracker.finish(cut_off=False)
    assert told == [
        WordTiming("two", 100, 103, 0.0, 340.0),
        WordTiming("words", 104, 109, 340.0, 660.0),
    ]


def test_text_without_words_has_no_timings() -> None:
    tracker = WordTracker("...", 0, CODEC, CODEC.sample_rate)
    tracker.push(np.zeros(5, np.float32))
    assert tracker.on_sent(sound(5), 0) + tracker.finish(cut_off=False) == []
