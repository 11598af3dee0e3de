"""Utterances of one or two words without an end mark are read with a full stop."""

from __future__ import annotations

import pytest

from text.english.normaliser import ended, normalise
from text.english.sounds import sounds
from text.front_end import origins, spoken_lengths
from text.registry import FRONT_ENDS

ENGLISH, SOUNDS = FRONT_ENDS["english"], FRONT_ENDS["english-sounds"]


@pytest.mark.parametrize(
    ("source", "spoken"),
    [
        ("Yes", "yes."),
        ("Mm-hmm", "mm hmm."),
        ("No way", "no way."),
        ("3", "three."),
        ("42", "forty two."),
        ("  OK \n", "okay."),
        ("**Sure**", "sure."),
        ("Yes 😀", "yes."),
        ("Dr. Lee", "doctor lee."),
        # a pause at the end is a stop too
        ("Yes,", "yes."),
        ("Well —", "well."),
        # two sentences, the second without a mark
        ("No. Sorry", "no. sorry."),
        # marks that are there
        ("Yes.", "yes."),
        ("Really?", "really?"),
        ("No way!", "no way!"),
        ("Hmm…", "hmm."),
        ("(Yes!)", "yes!"),
        # longer ones, and those with nothing to say
        ("I don't know", "i don't know"),
        ("$3.50", "three dollars and fifty cents"),
        ("Yes, of course,", "yes, of course,"),
        ("", ""),
        ("😀", ""),
        ("...", ""),
        # a stop would make an item of a list of these
        ("a", "a"),
        ("ii", "ii"),
    ],
)
def test_short_utterance_has_an_end_mark(source: str, spoken: str) -> None:
    assert ENGLISH(source).text == spoken
    assert ENGLISH(spoken).text == spoken


def test_sounds_have_the_same_marks() -> None:
    assert SOUNDS("No way").text == sounds("No way.").text == "nˈO wˈA."
    assert SOUNDS("Really?").text == sounds("Really?").text
    assert SOUNDS("I don't know").text == sounds("I don't know").text


@pytest.mark.parametrize("source", ["Yes", "No way", "  OK,\n", "42", "Dr. Lee", "**Sure** 😀"])
def test_offsets_are_those_of_the_text_as_written(source: str) -> None:
    """Word timings and the text spoken so far are found by the words' sources, and the stop is
    spoken with the last of them.
    """
    for front_end, unended in ((ENGLISH, normalise), (SOUNDS, sounds)):
        reading, plain = front_end(source), unended(source)
        assert reading.text.endswith(".")
        assert reading.spans == plain.spans == ended(plain).spans
        assert spoken_lengths(front_end, source) == spoken_lengths(unended, source)
        places = origins(reading, len(source))
        last = reading.spans[-1]
        assert places[: last.end] == origins(plain, len(source))[: last.end]
        assert places[-1] == min(last.source_end, len(source) - 1)
