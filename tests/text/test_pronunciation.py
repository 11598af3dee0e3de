"""Rules of pronunciation: what they match, in any parts of the text, and how much work it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.text.pronunciation_oracle import parts, replaced
from text.markup.elements import Element, Phoneme, Substitute, Text
from text.markup.reader import MarkupReader
from text.pronunciation.alphabets import AlphabetError, to_ipa
from text.pronunciation.matcher import Pronouncer
from text.pronunciation.rules import (
    MAX_ALIAS,
    MAX_PHONEMES,
    MAX_RULES,
    MAX_SET,
    MAX_WRITTEN,
    Rule,
    RuleError,
    RuleSet,
)


def pronounced(sets: Sequence[RuleSet], texts: Iterable[str], **own: Any) -> str:
    """Return a text in parts with what rules replace in braces, and assert that the elements are
    the client's text in order.
    """
    reader, pronouncer = MarkupReader(**own), Pronouncer(sets)
    read: list[Element] = []
    source = ""
    for text in texts:
        source += text
        read += pronouncer.push(reader.push(text))
    read += pronouncer.push(reader.flush(is_last=True)) + pronouncer.flush()
    assert not pronouncer.pending_chars
    shown, last = "", 0
    for element in read:
        match element:
            case Text(start, end, text):
                assert source[start:end] == text
                shown += text
            case Substitute(start, end, text):
                shown += f"{{{text}}}"
            case Phoneme(start, end, word, _, phonemes):
                assert word
                shown += f"{{/{phonemes}/}}"
            case _:
                continue
        assert last <= start <= end
        last = end
    return shown


def alias(written: str, said: str = "", **options: Any) -> Rule:
    """Return a rule that is seen in the result by its alias."""
    return Rule(written, said or written.upper(), **options)


SMALL: dict[str, Any] = {"case_sensitive": False}
INSIDE: dict[str, Any] = {"word_boundaries": False}
RULES = RuleSet(
    [
        Rule("Worcester", phonemes="ˈwʊstər"),
        Rule("New York", phonemes="nˈu jˈɔɹk"),
        alias("New York City", "the city"),
        alias("k8s", "kubernetes", **SMALL),
        alias("C++", "see plus plus"),
        alias("o'clock", "on the clock"),
        alias("ough", "uff", **INSIDE),
        alias("東京", "Tokyo"),
        alias("k8s", "never, since it is the second"),
        alias("U.S.", "United States"),
        alias("résumé", "resume"),
    ]
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Worcester sauce", "{/ˈwʊstər/} sauce"),
        ("worcester, WORCESTER", "worcester, WORCESTER"),
        ("Worcesters", "Worcesters"),
        ("Worcester's (Worcester)", "{/ˈwʊstər/}'s ({/ˈwʊstər/})"),
        ("in Worcester", "in {/ˈwʊstər/}"),
        ("K8S, k8s, k8sy", "{kubernetes}, {kubernetes}, k8sy"),
        ("New York, New York City", "{/nˈu jˈɔɹk/}, {the city}"),
        ("New York Citi", "{/nˈu jˈɔɹk/} Citi"),
        ("New\nYork", "{/nˈu jˈɔɹk/}"),
        ("New  York", "New  York"),
        ("Newcastle, New Yorker", "Newcastle, New Yorker"),
        ("C++, C++11 and C+", "{see plus plus}, {see plus plus}11 and C+"),
        ("five o\u2019clock", "five {on the clock}"),
        ("enough, through", "en{uff}, thr{uff}"),
        ("在東京住", "在{Tokyo}住"),
        ("The U.S. is", "The {United States} is"),
        ("a résumé", "a {resume}"),
        ("a re\u0301sume\u0301", "a re\u0301sume\u0301"),
        ("New <b>York</b>!", "{/nˈu jˈɔɹk/}!"),
        ("<b>New</b> York", "{/nˈu jˈɔɹk/}"),
        ("Wor<b>cester</b>s", "Worcesters"),
        ("Wor<b>cester</b>", "{/ˈwʊstər/}"),
        ("New <break time='1s'/>York", "New York"),
        ("<sub alias='Worcester'>k8s</sub> k8s", "{Worcester} {kubernetes}"),
        ("<phoneme ph='x'>k8s</phoneme>k8s", "{/x/}{kubernetes}"),
        ("<spell>k8s</spell>", "{K-8-S}"),
        ("", ""),
    ],
)
def test_rules_match_the_first_and_longest(text: str, shown: str) -> None:
    assert pronounced([RULES], [text]) == shown
    assert pronounced([RULES], text) == shown
    for at in range(1, len(text)):
        assert pronounced([RULES], [text[:at], text[at:]]) == shown, at


def test_an_earlier_set_comes_first() -> None:
    first = RuleSet([alias("data", "one"), alias("k8s", "1", **SMALL)])
    second = RuleSet([alias("data", "two"), alias("data base", "2"), alias("k8s", "second")])
    text = "data, data base, k8s"
    assert pronounced([first, second], text) == "{one}, {2}, {1}"
    assert pronounced([second, first], text) == "{two}, {2}, {second}"


def test_marks_of_the_family_are_not_matched() -> None:
    rules = RuleSet([alias("anger", "fury"), alias("a b", "AB")])
    own = frozenset({"<|emotion:anger|>"})
    for text in ("<|emotion:anger|>anger", ["<|emotion:", "anger|>anger"]):
        assert pronounced([rules], text, own=own) == "<|emotion:anger|>{fury}"
    assert pronounced([rules], "a <|emotion:anger|>b a b", own=own) == "a <|emotion:anger|>b {AB}"


def test_a_turn_ends_words() -> None:
    reader, pronouncer = MarkupReader(), Pronouncer([RULES])
    read = pronouncer.push(reader.push("New Worcester"))
    assert [e.text for e in read if isinstance(e, Text)] == ["New "]
    assert pronouncer.pending_chars == len("Worcester")
    read = pronouncer.push(reader.flush()) + pronouncer.flush()
    assert [type(e) for e in read] == [Phoneme]
    read = pronouncer.push(reader.push("York Worcester's"))
    assert [type(e) for e in read] == [Text, Phoneme, Text]
    assert read[1] == Phoneme(18, 27, "Worcester", "ipa", "ˈwʊstər")


def test_text_is_held_only_while_it_may_match() -> None:
    reader, pronouncer = MarkupReader(), Pronouncer([RULES])
    longest = max(len(rule.written) for rule in RULES.rules)
    for char in "The New York of enough Worcester k8s " * 20:
        pronouncer.push(reader.push(char))
        assert pronouncer.pending_chars <= longest
    pronouncer.push(reader.push("of tha"))
    assert pronouncer.pending_chars == 0


_WORDS = st.text(st.sampled_from("abA é-'’ \n中\u0301"), min_size=1, max_size=5).filter(
    lambda text: text == text.strip()
)
_RULES = st.builds(alias, _WORDS, case_sensitive=st.booleans(), word_boundaries=st.booleans())


@given(
    st.lists(_RULES, max_size=8),
    st.text(st.sampled_from("abA é-'’ \n中\u0301"), max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
)
@example([alias("a", **INSIDE), alias("ab b", **INSIDE), alias("b", **INSIDE)], "ab ab b", [3])
def test_matches_are_those_of_the_oracle(rules: list[Rule], text: str, cuts: list[int]) -> None:
    shown, at = "", 0
    for start, end, rule in replaced(text, rules):
        shown += f"{text[at:start]}{{{rule.alias}}}"
        at = end
    shown += text[at:]
    assert pronounced([RuleSet(rules)], parts(text, cuts)) == shown


class _CountedStates(dict[int, int]):
    """The states after each, which count how often they are looked up."""

    looked_up = 0

    def get(self, *args: object) -> int | None:  # type: ignore[override]
        _CountedStates.looked_up += 1
        return super().get(*args)  # type: ignore[call-overload]


def _work(rules: list[Rule], text: str) -> float:
    """Return the number of steps for each character of a text."""
    compiled = RuleSet(rules)
    for automaton in compiled.automatons:
        automaton.following = _CountedStates(automaton.following)
    _CountedStates.looked_up = 0
    pronouncer = Pronouncer([compiled])
    pronouncer.push([Text(0, len(text), text)])
    pronouncer.flush()
    return _CountedStates.looked_up / len(text)


#: Rules that are as long and as many as they may be, and differ at their ends only.
_COUNT = MAX_SET // MAX_WRITTEN
_NEARLY = [alias("a" * (MAX_WRITTEN - 4) + f"b{number}", "x", **INSIDE) for number in range(_COUNT)]
#: A thousand shorter ones.
_MANY = [alias("a b " * 4 + f"c{number}") for number in range(MAX_RULES)]


@pytest.mark.parametrize(
    ("rules", "text", "most"),
    [
        (_NEARLY, "a" * 100_000, 3),
        (_NEARLY, ("a" * (MAX_WRITTEN - 5) + "c") * 1000, 3),
        (_NEARLY, ("a" * (MAX_WRITTEN - 4) + "b") * 1000, 3),
        (_MANY, "a b " * 25_000, 6),
        # what a match leaves over is read again, as often as the longest rule has characters
        ([*_NEARLY[:-1], alias("a", "x", **INSIDE)], "a" * 10_000, MAX_WRITTEN),
    ],
)
def test_work_does_not_grow_with_the_number_of_rules(
    rules: list[Rule], text: str, most: float
) -> None:
    assert _work(rules, text) <= most


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"written": "", "alias": "a"}, "written"),
        ({"written": " a", "alias": "a"}, "written"),
        ({"written": "a" * (MAX_WRITTEN + 1), "alias": "a"}, "written"),
        ({"written": "a\0b", "alias": "a"}, "written"),
        ({"written": "a"}, "alias"),
        ({"written": "a", "alias": "b", "phonemes": "c"}, "alias"),
        ({"written": "a", "alias": ""}, "alias"),
        ({"written": "a", "alias": "a" * (MAX_ALIAS + 1)}, "alias"),
        ({"written": "a", "phonemes": " "}, "phonemes"),
        ({"written": "a", "phonemes": "a" * (MAX_PHONEMES + 1)}, "phonemes"),
        ({"written": "a", "phonemes": "a", "alphabet": "x-sampa"}, "phonemes"),
        ({"written": "a", "phonemes": "W UH3", "alphabet": "cmu-arpabet"}, "phonemes"),
    ],
)
def test_wrong_rule_names_its_field(options: dict[str, str], field: str) -> None:
    with pytest.raises(RuleError) as caught:
        Rule(**options)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_set_is_bounded() -> None:
    RuleSet([alias("a")] * MAX_RULES)
    with pytest.raises(RuleError, match="1000 rules at most"):
        RuleSet([alias("a")] * (MAX_RULES + 1))
    with pytest.raises(RuleError, match="20000 characters of written at most, not 20100"):
        RuleSet([alias("a" * MAX_WRITTEN)] * 201)


@pytest.mark.parametrize(
    ("alphabet", "phonemes", "ipa"),
    [
        ("ipa", " ˈwʊstər ", "ˈwʊstər"),
        ("IPA", "a", "a"),
        ("cmu-arpabet", "W UH1 S T ER0", "wˈʊstəɹ"),
        ("arpabet", "b er1 d", "bˈɜɹd"),
        ("cmu-arpabet", "AH0 B AH1 V", "əbˈʌv"),
        ("cmu-arpabet", "CH EY2 N JH", "tʃˌeɪndʒ"),
    ],
)
def test_alphabets_become_ipa(alphabet: str, phonemes: str, ipa: str) -> None:
    assert to_ipa(alphabet, phonemes) == ipa


@pytest.mark.parametrize(
    ("alphabet", "phonemes", "message"),
    [
        ("cmu-arpabet", "W1", "'W1' is no symbol"),
        ("cmu-arpabet", "WUH1", "'WUH1' is no symbol"),
        ("x-sampa", "a", "ipa or cmu-arpabet, not 'x-sampa'"),
    ],
)
def test_other_phonemes_are_refused(alphabet: str, phonemes: str, message: str) -> None:
    with pytest.raises(AlphabetError, match=message):
        to_ipa(alphabet, phonemes)
