"""General properties of the normalisation rules, and their agreement with the segmenter."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text.written import READING_CASES
from text import vocabulary
from text.english import normaliser
from text.english.normaliser import READER, normalise
from text.english.vocabulary import LETTERS
from text.front_end import spoken_lengths
from text.rules import Rules
from text.segmenter import Segmenter, SegmentSettings

_SOURCES = [source for source, _ in READING_CASES]
DASHES = st.sampled_from(["-", "–", " - ", " – "])
DIGITS = st.integers(0, 9).map(str)


def _said(source: str) -> str:
    return normalise(source).text


@given(
    st.sampled_from(
        ["{}:00 AM", "{} pm", "{} a.m.", "{}%", "{} km", "{}kg", "{}°C", "${}k", "${}"]
    ),
    st.integers(1, 5),
    st.integers(6, 12),
    DASHES,
)
def test_dash_between_amounts_of_same_kind_is_read_as_to(
    form: str, low: int, high: int, dash: str
) -> None:
    ends = [form.format(number) for number in (low, high)]
    first, last = map(_said, ends)
    assert _said(dash.join(ends)) == f"{first.rstrip('.')} to {last}"


def test_no_other_rule_reads_common_spaces_and_marks() -> None:
    slow = replace(READER, signs=Rules(normaliser._SIGNS))
    assert all(slow.read(source) == normalise(source) for source in _SOURCES)


_DAYS = ["Monday", "Tuesday", "Saturday", "Mon", "Tues", "Thurs", "Fri", "Sun"]
_MONTHS = ["January", "March", "May", "September", "Jan", "Feb", "Mar", "Sept", "Dec"]


@given(
    st.sampled_from([(_DAYS, vocabulary.DAYS.values()), (_MONTHS, vocabulary.MONTHS)]),
    st.integers(0, 7),
    st.integers(0, 7),
    DASHES,
)
def test_dash_between_days_or_months_is_read_as_to(
    kind: tuple[list[str], list[str]], first: int, last: int, dash: str
) -> None:
    written, names = kind
    words = _said(written[first] + dash + written[last]).split()
    assert words[1] == "to"
    assert [word[:3] for word in words[::2]] == [written[at][:3].lower() for at in (first, last)]
    assert set(words[::2]) <= set(names)


@given(
    st.sampled_from(["ddd-ddd-dddd", "(ddd) ddd-dddd", "ddd.ddd.dddd", "ddd-dd-dddd", "ddd-dddd"]),
    st.lists(DIGITS, min_size=10, max_size=10),
    st.sampled_from([", or", ". Then", "; or", "? Then", " or", "! Then", ") or"]),
)
def test_phone_number_is_read_alike_before_any_punctuation(
    form: str, digits: list[str], rest: str
) -> None:
    left = iter(digits)
    written = "".join(next(left) if char == "d" else char for char in form)
    alone = _said(f"Call {written}")
    spoken = _said(f"Call {written}{rest}")
    assert spoken.startswith(alone)
    assert spoken[len(alone) :].strip(" ,.;?!") == rest[1:].strip().lower()


@given(st.sampled_from(["no", "nos", "art", "fig", "p"]), st.integers(2, 99))
def test_word_before_number_is_not_read_as_abbreviation(word: str, number: int) -> None:
    assert _said(f"with {word} {number}-day limit").split()[1] in (word, LETTERS["p"])


@pytest.mark.parametrize(
    "text",
    [
        "123 Main St., Apt. 4, Springfield.",
        "Our office is at 500 5th Ave. Ste. 200, New York.",
        "Let's meet Mon. at 5.",
        "Let's meet on Sat. Nov. 5 or Mar. 15.",
        "Open Tues. through Thurs. only, or Sat. and Sun. from 9.",
        "Wait 10 min. and call back in 2 hrs. or 30 sec. if you can.",
        "It weighs 5 lbs. and is red.",
        "A 12 oz. can, 2 tbsp. of oil and 1 tsp. of salt.",
        "It is $20/mo. billed annually.",
        "Pay min. $35 or max. $100, avg. 50, for 10 Elm Ln. in Dover.",
        "Ask your doctor—Dr. Patel—first, it’s late—i.e., after 9.",
        "It’s a 10–12‑min. walk, a 35-yd. line, a 20‑sec. break and a 14.5–16‑oz. can.",
        "Send it to 12 Baker St., Apt. #3, please.",
        "Fri.–Sat. it’s $229, Sat.-Sun. it’s $240, and Mon.–Fri. it’s less.",
        "Turn at 12 Oak Ct. and 9 Elm Pl. or 9 Lee Cir. today, then find Rm. 7.",
        "Drive from San Tomas Expy. and Mt. Hood to Pt. Reyes, **etc.** and so on.",
    ],
)
def test_segmenter_does_not_split_after_abbreviation(text: str) -> None:
    segmenter = Segmenter(SegmentSettings(min_chars=1))
    assert segmenter.push(text) + segmenter.flush() == [text]
    assert "." not in _said(text)[:-1]


@pytest.mark.parametrize("source", _SOURCES)
def test_utterances_do_not_depend_on_split_of_input(source: str) -> None:
    settings = SegmentSettings(90, spoken_lengths=partial(spoken_lengths, normalise))

    def spoken(*pieces: str) -> list[str]:
        segmenter = Segmenter(settings)
        return [said for piece in pieces for said in segmenter.push(piece)] + segmenter.flush()

    whole = spoken(source)
    assert all(spoken(source[:at], source[at:]) == whole for at in range(1, len(source)))
