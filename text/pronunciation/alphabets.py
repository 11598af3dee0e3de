"""The alphabets in which clients write phonemes. All are converted to the International one."""

from __future__ import annotations

import re

#: The symbols of the CMU dictionary (Arpabet): vowels with their stress, and consonants.
_VOWELS = {
    "AA": "ɑ", "AE": "æ", "AH": "ʌ", "AO": "ɔ", "AW": "aʊ", "AX": "ə", "AY": "aɪ", "EH": "ɛ",
    "ER": "ɜɹ", "EY": "eɪ", "IH": "ɪ", "IX": "ɨ", "IY": "i", "OW": "oʊ", "OY": "ɔɪ", "UH": "ʊ",
    "UW": "u",
}  # fmt: skip
_CONSONANTS = {
    "B": "b", "CH": "tʃ", "D": "d", "DH": "ð", "DX": "ɾ", "F": "f", "G": "ɡ", "HH": "h",
    "JH": "dʒ", "K": "k", "L": "l", "M": "m", "N": "n", "NG": "ŋ", "P": "p", "R": "ɹ", "S": "s",
    "SH": "ʃ", "T": "t", "TH": "θ", "V": "v", "W": "w", "Y": "j", "Z": "z", "ZH": "ʒ",
}  # fmt: skip
#: Vowels that are weaker without stress.
_WEAK = {"AH": "ə", "ER": "əɹ"}
_STRESS = {"": "", "0": "", "1": "ˈ", "2": "ˌ"}
_SYMBOL = re.compile(r"([A-Z]{1,2})([0-2]?)")

#: Names of alphabets, and the name of each in messages.
ALPHABETS = {"ipa": "ipa", "cmu-arpabet": "cmu-arpabet", "arpabet": "cmu-arpabet"}


class AlphabetError(ValueError):
    """Phonemes that are none of their alphabet. The text says which, and what is allowed."""


def to_ipa(alphabet: str, phonemes: str) -> str:
    """Return phonemes in the International Phonetic Alphabet. Raises AlphabetError.

    >>> to_ipa("cmu-arpabet", "W UH1 S T ER0")
    'wˈʊstəɹ'
    """
    name = ALPHABETS.get(alphabet.lower())
    if name is None:
        raise AlphabetError(f"the alphabet is ipa or cmu-arpabet, not {alphabet[:40]!a}")
    return phonemes.strip() if name == "ipa" else "".join(map(_sound, phonemes.split()))


def _sound(symbol: str) -> str:
    match = _SYMBOL.fullmatch(symbol.upper())
    if match is not None:
        name, stress = match.groups()
        if not stress and (consonant := _CONSONANTS.get(name)) is not None:
            return consonant
        if (vowel := _VOWELS.get(name)) is not None:
            weak = _WEAK.get(name, vowel) if stress == "0" else vowel
            return _STRESS[stress] + weak
    raise AlphabetError(
        f"{symbol[:40]!a} is no symbol of cmu-arpabet, which are written with spaces between: "
        "W UH1 S T ER0"
    )
