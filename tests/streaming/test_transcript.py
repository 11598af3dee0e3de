from __future__ import annotations

from streaming.transcript import TYPICAL_CHARS_PER_S, Transcript
from streaming.word_timing import WordTiming
from text.markup.elements import Closed, Element, Substitute, Text
from text.markup.reader import MarkupReader
from text.markup.rendering import Rendering

RATE = 1000


def of(text: str) -> Transcript:
    """The transcript of a client's text, with its markup."""
    made, reader = Transcript(RATE), MarkupReader()
    made.receive(text)
    elements: list[Element] = reader.push(text) + reader.flush(is_last=True)
    for element in Rendering().render(elements):
        if isinstance(element, Text | Substitute):
            made.append(element)
        elif isinstance(element, Closed):
            made.close(element.end)
    return made


def transcript() -> Transcript:
    made = of("First one. Second one.  Third")
    for utterance, samples in (("First one.", 1000), ("Second one.", 3000)):
        made.on_sent(made.locate(utterance), samples)
    return made


def test_utterances_are_located_in_order() -> None:
    made = of("no. no. no.")
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
    made = of("\u4f60\u597d\uff0c\u4e16\u754c\u3002Hello there\u3002")
    made.on_sent(made.locate(made.text), 1800)
    heard = [made.split(played, 1800, None)[0] for played in range(0, 1800, 100)]
    assert heard[1:6] == [made.text[:1], made.text[:1], made.text[:3], made.text[:4], made.text[:4]]
    assert set(heard) == {made.text[:end] for end in (0, 1, 3, 4, 6, 11, 12)}


def test_split_leaves_rest_of_cut_utterance_until_later_audio_is_heard() -> None:
    made = of("One two three four five. Next.")
    end = made.locate("One two three four five.")
    made.on_cut(end, 1000, has_words=False)  # a second has 14 characters
    assert made.split(1000, 1000, None)[0] == "One two three "
    assert made.split(500, 1000, None)[0] == "One two"
    made.on_sent(made.locate("Next."), 2000)
    assert made.split(1000, 2000, None)[0] == "One two three "
    assert made.split(1500, 2000, None)[0] == "One two three four five. "
    assert made.split(2000, 2000, None)[0] == made.text


def test_split_after_cut_utterance_has_its_timed_words() -> None:
    made = of("One two three four five.")
    for word, samples in ((3, 300), (7, 600)):
        made.on_sent(word, samples)
    made.on_cut(made.locate(made.text), 1000, has_words=True)
    assert made.split(1000, 1000, None) == ("One two", " three four five.")
    assert made.split(599, 1000, None)[0] == "One "


MARKED = "I am <b>Ann</b>. <spell>A7X9</spell> is <sub alias='the big old code'>it all</sub>! Bye."


def test_split_is_of_the_clients_text() -> None:
    made = of(MARKED)
    assert made.text == "I am Ann. A-7-X-9 is the big old code! Bye."
    made.on_sent(made.locate("I am Ann."), 1000)
    made.on_sent(made.locate("A-7-X-9 is the big old code!"), 2000)

    def heard(text: str) -> str:
        """What is told after the audio up to the end of this spoken text."""
        cut = made.text.index(text) + len(text)
        first, last = (0, 9) if cut <= 9 else (9, 38)
        played = -(-(cut - first) * 1000 // (last - first)) + (1000 if first else 0)
        spoken, rest = made.split(played, 2000, None)
        assert spoken + rest == MARKED
        return spoken

    assert heard("I am") == "I am"
    assert heard("Ann.") == "I am <b>Ann</b>."
    assert heard("A-7-") == "I am <b>Ann</b>. ", "a code is heard as a whole"
    assert heard("A-7-X-9") == "I am <b>Ann</b>. <spell>A7X9</spell>"
    assert heard("big old ") == MARKED[: MARKED.index("all")]
    assert heard("code!") == MARKED[: MARKED.index(" Bye")]


def test_words_are_of_the_clients_text() -> None:
    made = of(MARKED)

    def word(text: str) -> tuple[str, int, int]:
        at = made.text.index(text)
        told = made.in_source(WordTiming(text, at, at + len(text), 1.0, 2.0))
        assert MARKED[told.start : told.end] == told.text
        assert (told.start_ms, told.end_ms) == (1.0, 2.0)
        return told.text, told.start, told.end

    assert word("am") == ("am", 2, 4)
    assert word("Ann") == ("Ann", 8, 11)
    assert word("A-7-X-9") == ("A7X9", 24, 28)
    assert word("the big old code")[0] == "it all"
    assert word("Bye.")[0] == "Bye."


def test_substitutes_count_from_the_beginning_of_their_utterance() -> None:
    made = of(MARKED)
    assert made.substitutes(0, 9) == []
    assert made.substitutes(10, 38) == [(0, 7), (11, 27)]
    assert made.substitutes(12, 30) == [(0, 5), (9, 18)]
