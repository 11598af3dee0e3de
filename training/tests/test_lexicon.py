"""Conversion of misaki's lexicon and of the CMU Pronouncing Dictionary."""

from __future__ import annotations

import gzip

import pytest

from text.english.lexicon import lexicon
from training import lexicon as training
from training.cmudict import names_of, to_misaki, words_of
from training.lexicon import agreement, corrected, entries, pack, with_names


def _phones(entries: dict[str, str]) -> dict[str, list[str]]:
    return {word: phones.split() for word, phones in entries.items()}


def test_entries_take_usual_sounds_of_first_source() -> None:
    certain: dict[str, str | dict[str, str | None]] = {
        "read": {"DEFAULT": "ɹˈid", "VBD": "ɹˈɛd"},
        "Mark": "mˈɑɹk",
        "mark": "mˈɑɹk",
        "AA": {"DEFAULT": None},
        "9th": "nˈInθ",
        "Paul": "pˈɔl",
    }
    guessed = {"read": "no", "blorp": "blˈɔɹp"}
    assert entries([certain, guessed]) == {
        "read": "rˈEd",
        "mark": "mˈɑrk",
        "paul": "pˈɔl",
        "blorp": "blˈɔrp",
    }


def test_entries_end_voiceless_after_voiceless_sounds() -> None:
    guessed = {"typed": "tˈIpd", "raced": "ɹˈAsd", "graphs": "ɡɹˈæfz", "races": "ɹˈAsᵻz"}
    assert entries([guessed]) == {
        "typed": "tˈIpt",
        "raced": "rˈAst",
        "graphs": "grˈæfs",
        "races": "rˈAsᵻz",
    }


def test_corrected_prefers_corrections_to_words() -> None:
    words = {"anna": "ˈɑnə", "paul": "pˈɔl"}
    assert corrected(words, _phones({"anna": "AE1 N AH0"})) == {"anna": "ˈænə", "paul": "pˈɔl"}


@pytest.mark.parametrize(
    ("phones", "sounds"),
    [
        ("M AE1 TH Y UW0", "mˈæθju"),
        ("JH IH1 M AH0", "ʤˈɪmə"),
        ("P IY1 T ER0", "pˈiɾəɹ"),  # flaps
        ("M AA1 R T IY0", "mˈɑɹɾi"),
        ("AE2 N T W AH0 N EH1 T", "ˌæntwənˈɛt"),  # no flap
        ("HH IH1 L T AH0 N", "hˈɪltᵊn"),
        ("M IH1 CH AH0 L", "mˈɪʧᵊl"),  # weak vowels
        ("P AH0 T EH1 L", "pətˈɛl"),
        ("S EH1 S IH0 L IY0", "sˈɛsəli"),
        ("F L EH1 M IH0 NG", "flˈɛmɪŋ"),
        ("P AE1 T R IH0 K", "pˈætɹɪk"),
        ("HH AA1 JH IH0 Z", "hˈɑʤᵻz"),
        ("L AE1 R IY0", "lˈɛɹi"),  # before r
        ("M AY1 R Z", "mˈIəɹz"),
        ("HH UH1 R L IY0", "hˈʊɹli"),
        ("B ER1 N ER0", "bˈɜɹnəɹ"),
        ("IH2 N T EH1 L", "ɪntˈɛl"),  # secondary stress
        ("M IY2 G EY1 L", "miɡˈAl"),
        ("V EH2 L AH0 S K EH1 Z", "vˌɛləskˈɛz"),
        ("OW1 SH IY2", "ˈOʃi"),
        ("HH AA1 S AA0 N", "hˈɑsˌɑn"),
        ("F AO1 R T W ER1 TH", "fˌɔɹtwˈɜɹθ"),  # one primary stress
        ("JH AH0 N", "ʤˈʌn"),
    ],
)
def test_to_misaki_writes_as_misaki_does(phones: str, sounds: str) -> None:
    assert to_misaki(phones.split()) == sounds


def test_words_of_reads_usual_pronunciations_of_the_package() -> None:
    lines = [
        "/** @type {{ [word: string]: string }} */",
        "export const dictionary = {",
        '  "\'bout": "B AW1 T",',
        '  "aalborg": "AO1 L B AO0 R G # place, danish",',
        '  "aalborg(2)": "AA1 L B AO0 R G",',
        '  "anna\'s": "AE1 N AH0 Z",',
        '  "b": "B IY1",',
        '  "fyi": "F AO1 R Y AO1 R IH2 N F ER0 M EY1 SH AH0 N",',
        '  "o\'hara": "OW0 HH EH1 R AH0",',
        '  "shh": "SH",',
        '  "zuma": "Z UW1 M AH0"',
        "}",
    ]
    assert {word: " ".join(phones) for word, phones in words_of(lines).items()} == {
        "aalborg": "AO1 L B AO0 R G",
        "o'hara": "OW0 HH EH1 R AH0",
        "zuma": "Z UW1 M AH0",
    }


def test_with_names_keeps_what_is_known_and_prefers_names_to_dictionary() -> None:
    found = with_names(
        {"anna": "ˈɑnə"},
        _phones({"anna": "AE1 N AH0", "isla": "AY1 L AH0"}),
        _phones({"anna": "AE1 N AH0", "isla": "IY1 L AH0", "zuma": "Z UW1 M AH0"}),
    )
    assert found == {"anna": "ˈɑnə", "isla": "ˈIlə", "zuma": "zˈUmə"}


def test_with_names_leaves_out_derivable_words_of_the_dictionary() -> None:
    known = {"hat": "hˈæt", "rag": "rˈæg", "annual": "ˈænJəwəl", "mori": "mˈɔrE"}
    known |= {"identifier": "IdˈɛntəfˌIər"}
    dictionary = {
        "hats": "HH AE1 T S",  # alike
        "annual": "AE1 N Y UW0 L",
        "annuals": "AE1 N Y UW0 L Z",  # not alike, but regular
        "identifiers": "AY0 D EH1 N AH0 F AY2 ER0 Z",  # long
        "ragged": "R AE1 G IH0 D",  # irregular
        "moris": "M AO1 R IH0 S",
        "zuma": "Z UW1 M AH0",
        "zumas": "Z UW1 M AH0 Z",  # from a word that is added
    }
    found = with_names(known, {}, _phones(dictionary))
    assert found == known | {"ragged": "rˈægəd", "moris": "mˈɔrəs", "zuma": "zˈUmə"}


def test_agreement_counts_same_and_nearly_same_sounds() -> None:
    words = {"paul": "pˈɔl", "peter": "pˈEtər", "xi": "zˈI", "zuma": "zˈUmə"}
    theirs = {"paul": "P AO1 L", "peter": "P IY1 T ER0", "xi": "SH IY1", "anna": "AE1 N AH0"}
    assert agreement(words, _phones(theirs)) == (3, 1, 2)


def test_every_name_of_the_list_is_in_the_lexicon() -> None:
    """The list was not changed without ``python -m training.lexicon``."""
    names = names_of(training.NAMES.read_text(encoding="utf-8").splitlines())
    assert len(names) > 250
    found = with_names({}, names, {})
    assert found == {word: lexicon().get(word) for word in names}


def test_every_correction_is_in_the_lexicon() -> None:
    """The list was not changed without ``python -m training.lexicon``."""
    corrections = names_of(training.CORRECTIONS.read_text(encoding="utf-8").splitlines())
    names = names_of(training.NAMES.read_text(encoding="utf-8").splitlines())
    assert len(corrections) > 50
    assert not corrections.keys() & names.keys()
    assert corrected({}, corrections) == {word: lexicon().get(word) for word in corrections}


def test_pack_is_deterministic() -> None:
    words = {"b": "bˈE", "a": "ə"}
    assert pack(words) == pack(dict(reversed(words.items())))
    assert gzip.decompress(pack(words)).decode() == "a ə\nb bˈE\n"
