"""The forms of dictionaries: TOML, PLS, and the files of added ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.pronunciations.dictionary import (
    MAX_FILE_BYTES,
    Dictionary,
    DictionaryError,
    Version,
    pack,
    read_pls,
    read_toml,
    unpack,
    write_pls,
)
from text.pronunciation.rules import MAX_RULES, MAX_SET, Rule, RuleSet

TOML = """
description = "Names of places."

[[rules]]
written = "Worcester"
phonemes = "ˈwʊstər"

[[rules]]
written = "k8s"
alias = "kubernetes"
case_sensitive = false
word_boundaries = false

[[rules]]
written = "Nguyen"
phonemes = "W IH1 N"
alphabet = "cmu-arpabet"
"""


def test_toml_has_rules() -> None:
    rules, description = read_toml(TOML.encode())
    assert description == "Names of places."
    assert rules.rules == (
        Rule("Worcester", phonemes="ˈwʊstər"),
        Rule("k8s", alias="kubernetes", case_sensitive=False, word_boundaries=False),
        Rule("Nguyen", phonemes="W IH1 N", alphabet="cmu-arpabet"),
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("rules = [", "not TOML: Invalid value (at end of document)"),
        ("a = 1\na = 2", "not TOML: Cannot overwrite a value (at "),
        ("\udcff", "not TOML: "),
        ("", "rules: Field required"),
        ("words = 1\nrules = []", "words: Extra inputs are not permitted"),
        ("rules = [{}]", "rules.0.written: Field required"),
        ("rules = [{written = 'a'}]", "rules.0.alias: give either an alias or phonemes"),
        ("rules = [{written = 'a', alias = 'b', phonemes = 'c'}]", "rules.0.alias: give either"),
        ("rules = [{written = 'a', alias = 'b', case = true}]", "rules.0.case: Extra inputs"),
        ("rules = [{written = 'a', alias = 'b', case_sensitive = 1}]", "valid boolean"),
        ("rules = [{written = 'a', phonemes = 'W3', alphabet = 'cmu-arpabet'}]", "'W3' is no symb"),
        ("rules = [{written = 'a', phonemes = 'a', alphabet = 'x'}]", "'ipa' or 'cmu-arpabet'"),
        ("rules = [{written = '" + "a" * 101 + "', alias = 'b'}]", "at most 100 characters"),
        ("rules = [" + "{written = 'a', alias = 'b'}," * (MAX_RULES + 1) + "]", "at most 1000"),
        ("rules = [1]", "rules.0: "),
        ("a = " + "[" * 5000, "not TOML"),
    ],
)
def test_wrong_toml_is_told_with_its_place(text: str, fault: str) -> None:
    with pytest.raises(DictionaryError) as caught:
        read_toml(text.encode("utf-8", "surrogateescape"))
    assert fault in str(caught.value)


PLS = """<?xml version="1.0" encoding="UTF-8"?>
<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon"
         xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" alphabet="ipa" xml:lang="en-GB">
  <meta name="author" content="Ann"/>
  <lexeme>
    <grapheme>Worcester</grapheme><grapheme>
      Worcestershire  sauce</grapheme>
    <phoneme>ˈwʊstə</phoneme>
  </lexeme>
  <!-- two readings -->
  <lexeme role="x:noun"><grapheme>bow</grapheme>
    <phoneme>baʊ</phoneme><phoneme prefer="true" alphabet="cmu-arpabet">B OW1</phoneme>
    <example>Tie a bow.</example>
  </lexeme>
  <lexeme><grapheme>W3C</grapheme><alias>World Wide Web &amp; Co.</alias></lexeme>
</lexicon>
"""


def test_pls_has_rules() -> None:
    assert read_pls(PLS.encode()).rules == (
        Rule("Worcester", phonemes="ˈwʊstə"),
        Rule("Worcestershire sauce", phonemes="ˈwʊstə"),
        Rule("bow", phonemes="B OW1", alphabet="cmu-arpabet"),
        Rule("W3C", alias="World Wide Web & Co."),
    )
    assert (
        read_pls(PLS.replace("UTF-8", "UTF-16").encode("utf-16")).rules
        == read_pls(PLS.encode()).rules
    )


_BOMB = '<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY d "&b;&b;">]><lexicon>&d;</lexicon>'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: not XML: no element found"),
        ("<lexicon>\n<lexeme></lexicon>", "line 2: not XML: mismatched tag"),
        ("<html/>", "line 1: the root is lexicon, not 'html'"),
        (_BOMB, "line 1: a document type is not allowed"),
        ("\n<!DOCTYPE lexicon SYSTEM 'file:///etc/passwd'><lexicon/>", "line 2: a document type"),
        ("<lexicon>&a;</lexicon>", "line 1: not XML: undefined entity"),
        ("<lexicon>\n<lexeme><grapheme>a</grapheme></lexeme></lexicon>", "line 2: lexeme: a graph"),
        ("<lexicon><lexeme><alias>a</alias></lexeme></lexicon>", "line 1: lexeme: a grapheme"),
        (
            "<lexicon alphabet='x-sampa'><lexeme><grapheme>a</grapheme><phoneme>a</phoneme>"
            "</lexeme></lexicon>",
            "line 1: phonemes: the alphabet is ipa or cmu-arpabet, not 'x-sampa'",
        ),
        (
            f"<lexicon><lexeme><grapheme>a</grapheme><alias>{'a' * 500}</alias></lexeme></lexicon>",
            "line 1: alias: 1 to 400 characters",
        ),
        (
            "<lexicon>" + "<lexeme><grapheme>a</grapheme><alias>b</alias></lexeme>" * 1002
            + "</lexicon>",
            "1000 graphemes at most",
        ),
        ("<lexicon>" + "<a>" * 100, "more than 16 elements in each other"),
    ],
)  # fmt: skip
def test_wrong_pls_is_told_with_its_line(text: str, fault: str) -> None:
    with pytest.raises(DictionaryError) as caught:
        read_pls(text.encode())
    assert fault in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_dictionary_or_an_error(data: bytes) -> None:
    for read in (read_toml, read_pls, unpack):
        try:
            read(data)
        except DictionaryError:
            continue


def test_pls_that_is_written_reads_the_same() -> None:
    rules = (
        Rule("a<b & 'c'", alias='"d" > e'),
        Rule("Worcester", phonemes="ˈwʊstər"),
        Rule("Nguyen", phonemes="W IH1 N", alphabet="cmu-arpabet"),
    )
    assert read_pls(write_pls(rules)).rules == rules


def test_added_dictionary_is_read_as_it_was_written() -> None:
    first = RuleSet([Rule("a", "b"), Rule("ü", phonemes="a", case_sensitive=False)])
    second = RuleSet([Rule("c", "d", word_boundaries=False)])
    versions = (Version("0" * 16, first, 1), Version("1" * 16, second, 2))
    made = Dictionary(
        "dict_" + "a" * 16, "Names", versions, "acme", None, "key_1", 1, is_added=True
    )
    read = unpack(pack(made))
    assert replace(read, versions=()) == replace(made, versions=())
    assert [(v.id, v.rules.rules, v.created_at) for v in read.versions] == [
        (v.id, v.rules.rules, v.created_at) for v in versions
    ]
    assert read.chars == made.chars == 3
    assert read.version(None) is read.latest
    assert read.version("0" * 16) is read.versions[0]
    assert read.version("2" * 16) is None
    with pytest.raises(DictionaryError, match="damaged"):
        unpack(pack(made)[:-9])


def test_largest_dictionary_fits_its_file() -> None:
    written = MAX_SET // MAX_RULES
    rules = RuleSet([Rule("\U0010ffff" * written, alias="\U0001f600" * 400)] * MAX_RULES)
    versions = tuple(Version(f"{number:016x}", rules, 1) for number in range(5))
    data = pack(Dictionary("dict_" + "a" * 16, "Names", versions, is_added=True))
    assert len(data) < MAX_FILE_BYTES
