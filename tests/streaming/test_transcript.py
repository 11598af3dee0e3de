from __future__ import annotations

from streaming.transcript import TYPICAL_CHARS_PER_S, Transcript

RATE = 1000


def transcript() -> Transcript:
    made = Transcript(RATE)
    made.append("First one. Second one.  Third")
    for utterance, samples in (("First one.", 1000), ("Second one.", 3000)):
        made.on_sent(made.locate(utterance), samples)
    return made


def test_utterances_are_located_in_order() -> None:
    made = Transcript(RATE)
    made.append("no. no. no.")
    assert [made.locate("no.") for _ in range(3)] == [3, 7, 11]


def test_split_follows_played_audio() -> None:
    made = transcript()
    assert made.split(0, 3000, None) == ("", made.text)
    assert made.split(1000, 3000, None)[0] == "First one."
    assert made.split(999, 3000, None)[0] == "First "
    assert made.split(2500, 3000, None)[0] == "First one. Second "
    assert made.split(3000, 3000, None)[0] == "First one. Second one."
    assert made.split(9000, 3000, None)[0] == "First one. Second one."


def test_split_of_unfinished_utterance_assumes_typical_pace() -> None:
    made = transcript()
    end = made.locate("Third")
    seconds = (end - len("First one. Second one.")) / TYPICAL_CHARS_PER_S
    assert made.split(3000 + int(seconds * RATE) + 1, 3001, end) == (made.text, "")
    assert made.split(3001, 3100, end)[1] == "  Third"


def test_split_parts_join_to_text() -> None:
    made = transcript()
    for played in range(0, 3500, 7):
        assert "".join(made.split(played, 3000, None)) == made.text


def test_split_without_spaces_cuts_between_characters() -> None:
    made = Transcript(RATE)
    made.append("\u4f60\u597d\uff0c\u4e16\u754c\u3002Hello there\u3002")
    made.on_sent(made.locate(made.text), 1800)
    heard = [made.split(played, 1800, None)[0] for played in range(0, 1800, 100)]
    assert heard[1:6] == [made.text[:1], made.text[:1], made.text[:3], made.text[:4], made.text[:4]]
    assert set(heard) == {made.text[:end] for end in (0, 1, 3, 4, 6, 11, 12)}


def test_split_leaves_rest_of_cut_utterance_until_later_audio_is_heard() -> None:
    made = Transcript(RATE)
    made.append("One two three four five. Next.")
    end = made.locate("One two three four five.")
    made.on_cut(end, 1000, has_words=False)  # a second has 14 characters
    assert made.split(1000, 1000, None)[0] == "One two three "
    assert made.split(500, 1000, None)[0] == "One two"
    made.on_sent(made.locate("Next."), 2000)
    assert made.split(1000, 2000, None)[0] == "One two three "
    assert made.split(1500, 2000, None)[0] == "One two three four five. "
    assert made.split(2000, 2000, None)[0] == made.text


def test_split_after_cut_utterance_has_its_timed_words() -> None:
    made = Transcript(RATE)
    made.append("One two three four five.")
    for word, samples in ((3, 300), (7, 600)):
        made.on_sent(word, samples)
    made.on_cut(made.locate(made.text), 1000, has_words=True)
    assert made.split(1000, 1000, None) == ("One two", " three four five.")
    assert made.split(599, 1000, None)[0] == "One "
