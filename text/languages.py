"""Languages that voices read, by their names, and whether a text is in one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

#: Names of the languages of front ends and talkers, by ISO 639 code.
_NAMES = {
    "de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian",
    "ja": "Japanese", "ko": "Korean", "pt": "Portuguese", "ru": "Russian", "zh": "Chinese",
}  # fmt: skip
#: Their ISO 639 codes.
NAMED_LANGUAGES = tuple(_NAMES)
_CODES = {name.lower(): code for code, name in _NAMES.items()}
#: Values by which clients leave the language to the server.
_ANY = frozenset({"", "*", "auto", "default", "multi", "und"})
#: Letters before this one are Latin, and read by every front end.
_FIRST_NOT_LATIN = "\u0370"


def language_names(languages: Sequence[str]) -> str:
    """Return the names of languages: "English and German"."""
    names = [_NAMES.get(language, language) for language in languages]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def leaves_language(value: str | None) -> bool:
    """Whether a client's value of a field leaves the language to the server."""
    return value is None or value.strip().lower() in _ANY


def code_of_name(name: str) -> str | None:
    """Return the ISO 639 code of a language by its English name; None for another one."""
    return _CODES.get(name.lower())


def language_code(value: str) -> str:
    """Return the ISO 639 code of a language: of "en", "en-US", "en_GB" or "English" it is "en". A
    name that is not known is returned in lower case.
    """
    subtag = re.split(r"[-_]", value.strip().lower(), maxsplit=1)[0]
    return code_of_name(subtag) or subtag


def is_read(value: str, languages: Sequence[str]) -> bool:
    """Whether ``value`` names one of ``languages``, as ``language_code`` reads it."""
    return language_code(value) in languages


def is_mostly_left_out(text: str, spoken_lengths: Callable[[str], Sequence[int]]) -> bool:
    """Whether more than half of the letters of ``text`` are not spoken, since the front end does
    not read their script. ``spoken_lengths``: see text.front_end.
    """
    if text.isascii():
        return False
    letters = [at for at, char in enumerate(text) if char.isalpha()]
    if 2 * sum(text[at] >= _FIRST_NOT_LATIN for at in letters) <= len(letters):
        return False  # a reading takes longer
    lengths = spoken_lengths(text)
    return 2 * sum(lengths[at] == lengths[at + 1] != -1 for at in letters) > len(letters)
