"""Words, acronyms and mixtures of letters and digits, as spoken words."""

from __future__ import annotations

import functools
import re

from text.english import numbers
from text.english.lexicon import lexicon
from text.english.vocabulary import (
    LETTERS,
    SHORT_NAMES,
    SHORT_WORDS,
    SOUNDS,
    SPELLED,
    SPELLED_ALONE,
    WORDS,
)
from text.vocabulary import ABBREVIATED, ACRONYMS_TOO, MEASURES_TOO, words_of

_ONSETS = words_of(
    """
    b bl br c ch cl cr chr d dr dw f fl fr g gh gl gn gr h j k kl kn kr l m n p ph pl pr q qu r
    rh s sc sch scr sh shr sk sl sm sn sp sph spl spr squ st str sw t th thr tr ts tw v w wh wr
    x y z
    """
)
_CODAS = words_of(
    """
    b bs c ch ck cks cs ct cts d ds dth f ff ffs fs ft fts g gh ghs ght gs h hn hns k ks l ld
    lds lf lk lks ll lls lm lms ln lp lps ls lt lth lts lve m mb mbs mp mps mpt ms n nc nch nct
    nd nds ng ngs ngth nk nks nn ns nt nth nts p ps pt pts r rb rbs rc rch rd rds rf rfs rg rk
    rks rl rls rm rms rn rns rp rps rr rs rse rsh rst rt rth rts s sh sk sks sm sms sp sps ss st
    sts t tch th ths ts tt tts v w wd wk wl wls wn wns ws
    x xt z zz
    """
)
#: "y" is a vowel unless it begins the word.
_PARTS = re.compile(r"[aeiou]+|(?<!^)y+|^y|[b-df-hj-np-tv-xz]+")
_VOWEL = re.compile(r"[aeiouy]")
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: Names with an inner capital that are not split there.
_NAME = re.compile(r"(?:Mc|Mac|De|Di|Du|La|Le|Van|Von|Fitz|O')[A-Z][a-z]+")
#: One of these in capitals is in nearly every sentence in capitals.
_SMALL_WORD = re.compile(
    r"\b(?:THE|AN?|AND|OR|NOT?|DO|IS|ARE|BE|TO|OF|IN|ON|AT|BY|FOR|FROM|WITH|I|WE|YOU|YOUR|MY|ME"
    r"|HE|SHE|THEY|THIS|THAT|ALL|NOW|PLEASE|CALL|STOP)\b"
)
#: Letters of words in capitals that are looked up: shorter ones are mostly initialisms.
_MIN_KNOWN, _MAX_KNOWN = 5, 20
#: Beginnings and ends of words of four letters that are looked up too: KHAN, WEBB, SIGN.
_RARE_ONSETS = words_of("dh gw hs hw kh kw sv vl zh")
_RARE_CODAS = words_of(
    """
    bb bbs bt dd dds dt gg ggs gn hl hm hr lb lc lz mm mn nx nz pp rcs rx rz sc tz
    """
)
_ALL_ONSETS, _ALL_CODAS = _ONSETS | _RARE_ONSETS, _CODAS | _RARE_CODAS
_DRAWN = re.compile(r"([a-z])\1{2,}")
_PLURAL = re.compile(r"([A-Z]{2,})s")
#: Initialisms that end with a small letter: PCIe, NVMe.
_SMALL_END = re.compile(r"[A-Z]{2,}[a-rt-z]")
_PIECES = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*|\d+")


def spell(letters: str) -> str:
    """The letters' names: ``spell("FBI")`` is "eff bee eye"."""
    return " ".join(LETTERS[letter] for letter in letters.lower())


def read_word(token: str, *, shouting: bool = False) -> str:
    """Read one written word, of letters and inner apostrophes.

    ``shouting``: the text around it is in capitals, so capitals do not mean an acronym. Reading the
    result word by word does not change it: ``read_word(read_word(x)) == read_word(x)``.
    """
    base, apostrophe, ending = token.partition("'")
    if apostrophe and token.lower() in WORDS:
        return WORDS[token.lower()]
    if ending.lower() == "s" and base:
        # "IT'S" is no acronym's, unlike "IT's"
        return f"{read_word(base, shouting=shouting or ending == 'S')}'s"
    if apostrophe:
        return token.lower()
    lower = token.lower()
    is_acronym = token.isupper() and lower in (MEASURES_TOO if shouting else ACRONYMS_TOO)
    is_acronym = is_acronym or is_plural_acronym(token)
    if lower in ABBREVIATED and not is_acronym:
        return ABBREVIATED[lower]
    if lower in WORDS:
        return WORDS[lower]
    if len(token) == 1:
        return lower if lower in "ai" else LETTERS[lower]
    if token.isupper():
        is_word = _is_word_in_capitals(lower, shouting) or _is_drawn_out(lower)
        return lower if is_word else spell(lower)
    if lower == token or lower[1:] == token[1:] or _NAME.fullmatch(token):
        return lower if _VOWEL.search(lower) or _is_sound(lower) else spell(lower)
    if plural := _PLURAL.fullmatch(token):
        return read_word(plural[1], shouting=shouting) + "s"
    if _SMALL_END.fullmatch(token):
        return spell(token)
    return " ".join(read_word(part) for part in _CAMEL.findall(token))


def _is_drawn_out(lower: str) -> bool:
    """Whether letters are a word or a sound drawn out: "GOOOAL", "NOOO", "SHHHH"."""
    once = _DRAWN.sub(r"\1", lower)
    if once == lower or lower in SPELLED:
        return False
    if once in SHORT_WORDS or _is_sound(lower):
        return True
    return len(once) > 3 and is_pronounceable(once) and once in lexicon()


def _is_sound(lower: str) -> bool:
    return lower in SOUNDS or any(_DRAWN.sub(r"\1" * n, lower) in SOUNDS for n in (1, 2, 3))


def is_plural_acronym(token: str) -> bool:
    """Whether a token is the plural of an acronym that is also an abbreviation: "MRs"."""
    return token[-1:] == "s" and token[:-1].isupper() and token[:-1].lower() in ACRONYMS_TOO


def read_mixed(token: str) -> str:
    """Read letters and digits without a space between them: "MP3", "4K", "B2B", "x86"."""
    words = []
    for piece in _PIECES.findall(token):
        if piece.isdigit():
            words.append(numbers.amount(piece))
        elif piece.lower() in WORDS:
            words.append(WORDS[piece.lower()])
        elif piece in ("a", "A") or not _is_readable(piece.lower()):
            words.append(spell(piece) if piece.isalpha() else read_word(piece))
        else:
            words.append(read_word(piece))
    return " ".join(words)


def _is_readable(lower: str) -> bool:
    """Whether letters beside digits are a word; an abbreviation is not: "INC0012345"."""
    return (is_pronounceable(lower) or is_known(lower)) and lower not in ABBREVIATED


@functools.lru_cache(maxsize=2)
def is_shouting(text: str) -> bool:
    """Whether a text of several words is mostly in capitals, and no list of acronyms."""
    if not _SMALL_WORD.search(text):
        return False
    capitals = sum(map(str.isupper, text))
    small = sum(map(str.islower, text))
    return capitals > 3 * small and len(text.split()) > 2 and (capitals > 12 or not small)


def is_pronounceable(
    lower: str, onsets: frozenset[str] = _ONSETS, codas: frozenset[str] = _CODAS
) -> bool:
    """Whether lower-case letters look like an English word, judged by its vowels and consonants."""
    parts = _PARTS.findall(lower)
    if not any(_VOWEL.match(part) for part in parts) or any(len(part) > 3 for part in parts):
        return False
    if not any(vowel in lower for vowel in "aeiou") and ("yy" in lower or len(lower) < 4):
        return lower in SHORT_WORDS  # "sky", but "py" and "nyc"
    first, last = parts[0], parts[-1]
    begins = first[0] in "aeiou" or first in onsets
    return begins and (bool(_VOWEL.match(last)) or last in codas or last[-1] == "y")


def _is_word_in_capitals(lower: str, shouting: bool) -> bool:
    if lower in SPELLED:
        return False
    if lower in SHORT_WORDS and lower not in SPELLED_ALONE:
        return True
    if shouting and (lower in SPELLED_ALONE or is_pronounceable(lower)):
        return True
    if lower in SHORT_NAMES or (len(lower) > 3 and is_pronounceable(lower)):
        return True
    if len(lower) == _MIN_KNOWN - 1:
        return is_pronounceable(lower, _ALL_ONSETS, _ALL_CODAS) and lower in lexicon()
    return is_known(lower) or (lower.endswith("s") and is_known(lower[:-1]))


def is_known(lower: str) -> bool:
    """Whether a word, in lower case, is in the lexicon and too long for most initialisms."""
    return _MIN_KNOWN <= len(lower) <= _MAX_KNOWN and lower in lexicon()
