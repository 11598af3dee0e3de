"""Phonemes for the embedded voice: their signs, and words by their sounds within a text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text.front_ends import CASES, check
from text.english.lexicon import lexicon
from text.english.phonemes import MAX_SIGNS, signs_of
from text.english.sounds import sounds
from text.front_end import origins
from text.markup.elements import Ignored, Phoneme, Substitute, Text
from text.markup.reader import MarkupReader
from text.markup.rendering import Rendered, Rendering
from text.pronunciation.in_band import SOUNDED, sounded
from text.registry import FRONT_ENDS

VOICE = replace(Rendering(), signs_of=FRONT_ENDS["english-sounds"].signs_of)


@pytest.mark.parametrize(
    ("ipa", "signs"),
    [
        ("ˈwʊstər", "wˈʊstər"),
        ("wˈʊstəɹ", "wˈʊstər"),
        ("/ˈwʊs.tə/", "wˈʊstə"),
        ("ˈwʊstɚ", "wˈʊstər"),
        ("ˈt͡ʃɪldrən", "ʧˈɪldrən"),
        ("tʃɜːtʃ", "ʧɜrʧ"),
        ("bɝd", "bɜrd"),
        ("bɜːɹd", "bɜrd"),
        ("noʊˈvɛmbəɹ", "nOvˈɛmbər"),
        ("nOvˈɛmbəɹ", "nOvˈɛmbər"),
        ("ˈkaɪˌroʊ", "kˈIrˌO"),
        ("ˈbʌtn̩", "bˈʌtᵊn"),
        ("ˈdʒiː ˈjuː", "ʤˈE JˈU"),
        ("'sɪti", "sˈɪtE"),
        ("ˈɡoʊt", "gˈOt"),
        ("ˈs", "s"),
        ("lɒx", "lɑk"),
    ],
)
def test_ipa_becomes_the_voices_signs(ipa: str, signs: str) -> None:
    assert signs_of(ipa) == tuple(signs.split())


@pytest.mark.parametrize(
    "ipa", ["", " ", "ˈ", "ʘ", "aç", "W UH1", "a" * 1000, "a\U0010fff0", "1", "a,"]
)
def test_other_sounds_are_not_known(ipa: str) -> None:
    assert signs_of(ipa) is None


def test_words_of_the_lexicon_are_themselves() -> None:
    """misaki's form of a word is what the lexicon has of it, but for two sounds that are one."""
    ipa = str.maketrans({"E": "i", "U": "u", "J": "j", "r": "ɹ", "g": "ɡ"})
    joined = ("tʃ", "ɔɪ", "dʒ", "aɪ", "ɑɪ", "ɑʊ")
    words = [signs for signs in list(lexicon().values())[::97] if len(signs) <= MAX_SIGNS]
    apart = [signs for signs in words if not any(pair in signs for pair in joined)]
    assert len(apart) > 2000
    for signs in apart:
        assert signs_of(signs.translate(ipa)) == tuple(signs.split()), signs


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("In @.", "ɪn wˈʊstər."),
        ("the @ sauce", "ðə wˈʊstər sˈɔs"),
        ("@'s mayor", "wˈʊstərz mˈAər"),
        ("Dr. @ paid $2.", "dˈɑktər wˈʊstər pˈAd tˈU dˈɑlərz."),
        ("**@**, @?", "wˈʊstər, wˈʊstər?"),
        ("qaaaaaaaaaa @", None),
    ],
)
def test_words_by_their_sounds_are_read_as_they_are(text: str, spoken: str | None) -> None:
    word = sounded(["wˈʊstər"], is_capital=True)
    reading = sounds(text.replace("@", word))
    if spoken is None:
        assert reading.text.endswith(" wˈʊstər")
        assert reading.text.count("wˈʊstər") == 1
    else:
        assert reading.text == spoken
    source = text.replace("@", word)
    for span in reading.spans:
        if reading.text[span.start : span.end].startswith("wˈʊstər"):
            at = origins(reading, len(source))[span.start]
            assert source[at:].startswith(word)


_WORD = sounded(["wˈʊstər"], is_capital=False)


@given(
    st.lists(
        st.one_of(
            st.just(_WORD),
            st.sampled_from([_WORD[0], _WORD[-1], "qaaa", "Dr. ", "$", "1", "'s", " ", "@", "."]),
            st.text(max_size=5),
        ),
        max_size=8,
    ).map("".join)
)
def test_front_end_holds_its_promises_with_such_words(text: str) -> None:
    for front_end in CASES.values():
        check(front_end, text)


def _spoken(text: str, rendering: Rendering = VOICE) -> list[Rendered]:
    reader = MarkupReader()
    return list(rendering.render(reader.push(text) + reader.flush(is_last=True)))


def test_phonemes_are_spoken_by_who_can() -> None:
    text = '<phoneme ph="ˈwʊstər ˈʃɪə">Worcestershire</phoneme>'
    (word, _) = _spoken(text)
    assert isinstance(word, Substitute)
    assert text[word.start : word.end] == "Worcestershire"
    assert [match["sounds"] for match in SOUNDED.finditer(word.text)] == ["wˈʊstər", "ʃˈɪə"]
    ignored, written, _ = _spoken(text, Rendering())
    assert isinstance(ignored, Ignored)
    assert ignored.kind == "phoneme"
    assert written == Text(word.start, word.end, "Worcestershire")


@pytest.mark.parametrize(
    ("phonemes", "alphabet", "reason"),
    [
        ("ʘ", "ipa", "does not know all sounds of 'ʘ'"),
        ("W UH9", "cmu-arpabet", "'UH9' is no symbol of cmu-arpabet"),
        ("a", "x-sampa", "the alphabet is ipa or cmu-arpabet, not 'x-sampa'"),
        ("a" * 401, "ipa", "400 characters at most"),
    ],
)
def test_unknown_phonemes_are_reported(phonemes: str, alphabet: str, reason: str) -> None:
    ignored, word = VOICE.render([Phoneme(3, 5, "Ab", alphabet, phonemes)])
    assert isinstance(ignored, Ignored)
    assert ignored.kind == "phoneme"
    assert reason in ignored.message
    assert word == Text(3, 5, "Ab")


@pytest.mark.parametrize(
    "text",
    [
        _WORD,
        f"<sub alias='{_WORD}'>a</sub>",
        "<speak>&#x10FFF0;a&#x10FFF2;</speak>",
        "<sub alias='&#x10FFF0;a&#x10FFF2;'>a</sub>",
        f"<spell>{_WORD}</spell>",
        f"<phoneme ph='ʘ'>{_WORD}</phoneme>",
        f"<phoneme ph='{_WORD}'>a</phoneme>",
    ],
)
def test_no_text_of_a_client_is_read_as_sounds(text: str) -> None:
    said = "".join(e.text for e in _spoken(text) if isinstance(e, Text | Substitute))
    assert not SOUNDED.search(said)
