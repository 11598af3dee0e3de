"""Makes the lexicon of ``text.english.sounds``: ``python -m training.lexicon``.

It is misaki's American one (hexgrad, Apache-2.0), its verified entries before its guessed ones, and
``corrections.txt`` before both. Names are also found in lower case. Of words with several
pronunciations the usual one is kept; ``text.english.heteronyms`` has the others.

misaki leaves most names to espeak-ng. These come from ``names.txt`` and from the CMU Pronouncing
Dictionary (Carnegie Mellon University, BSD-2-Clause: ``embedded/lexicon.LICENSE``), as it is in the
npm package cmu-pronouncing-dictionary 3.0.0.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from text.english.lexicon import FILE
from text.english.sounds import derived, written
from training import cmudict

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
_SOURCES = ("us_gold.json", "us_silver.json")
NAMES = Path(__file__).with_name("names.txt")
CORRECTIONS = Path(__file__).with_name("corrections.txt")
#: Guessed entries have endings that no English word has: "typed" with "pd", "graphs" with "fz".
_UNVOICED = (
    (re.compile("(?<=[ptkfθsʃʧ])d$"), "t"),
    (re.compile("(?<=[ptkfθ])z$"), "s"),
)
#: Dictionaries vary in weak vowels, secondary stress and flaps, and in whether "cot" and "caught"
#: sound alike.
_WEAK = re.compile("(?<!ˈ)[ᵊᵻɪʌɛE]")
_ALIKE = str.maketrans("ɾɔ", "tɑ", "ˌ")
#: From so many letters on, sounds that are derived are right more often than the dictionary's where
#: these differ.
_LONG = 11
Entries = Mapping[str, "str | Mapping[str, str | None]"]


def entries(sources: list[Entries]) -> dict[str, str]:
    """Return ``{word: sounds}`` from the first source that has a word. A word in lower case takes
    precedence over a name with the same letters. The endings -s and -d are made voiceless after
    voiceless sounds.
    """
    found: dict[str, str] = {}
    for source in sources:
        for is_name in (False, True):
            for word, sounds in source.items():
                small = word.lower()
                if (small != word) is not is_name or not _WORD.fullmatch(small):
                    continue
                usual = sounds if isinstance(sounds, str) else sounds.get("DEFAULT")
                if usual:
                    for ending, unvoiced in _UNVOICED:
                        usual = ending.sub(unvoiced, usual)
                    found.setdefault(small, written(usual))
    return found


def with_names(
    words: Mapping[str, str],
    names: Mapping[str, Sequence[str]],
    dictionary: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Add to ``words`` the names, and then the dictionary's words, that are not there yet.

    A word that can be derived (``text.english.sounds``) is left out if the dictionary says it
    alike, if it is long, or if the same rules derive the dictionary's entry from the dictionary's
    own stem: misaki's stem is then the better one. "Ragged" is kept, since it would be derived from
    "rag", and so is "Moris", which is no plural. All this was measured on words that misaki has
    too.
    """
    found = dict(words)
    for word, phones in names.items():
        found.setdefault(word, written(cmudict.to_misaki(phones)))
    theirs = {word: written(cmudict.to_misaki(phones)) for word, phones in dictionary.items()}
    for word in sorted(theirs, key=len):  # stems are shorter than what is derived from them
        if word in found:
            continue
        sounds = theirs[word]
        ours, regular = derived(word, found), derived(word, theirs)
        if ours and (len(word) >= _LONG or _alike(sounds, ours) or _alike(sounds, regular)):
            continue
        found[word] = sounds
    return found


def corrected(words: Mapping[str, str], corrections: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return ``words`` with the sounds of ``corrections`` instead of their own."""
    right = {word: written(cmudict.to_misaki(phones)) for word, phones in corrections.items()}
    return {**words, **right}


def agreement(
    words: Mapping[str, str], dictionary: Mapping[str, Sequence[str]]
) -> tuple[int, int, int]:
    """Return how many words both have, how many of these sound the same in both, and how many do
    but for differences of no weight.
    """
    both = [
        (sounds, written(cmudict.to_misaki(dictionary[word])))
        for word, sounds in words.items()
        if word in dictionary
    ]
    return len(both), sum(a == b for a, b in both), sum(_alike(a, b) for a, b in both)


def _alike(one: str, other: str | None) -> bool:
    return other is not None and _outline(one) == _outline(other)


def _outline(sounds: str) -> str:
    """Return sounds without what dictionaries vary in."""
    return _WEAK.sub("ə", sounds.translate(_ALIKE))


def pack(words: Mapping[str, str]) -> bytes:
    """Pack one word per line, sorted, so that the same words give the same bytes."""
    lines = "".join(f"{word} {sounds}\n" for word, sounds in sorted(words.items()))
    return gzip.compress(lines.encode(), compresslevel=9, mtime=0)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cmudict", type=Path, required=True, help="package/index.js")
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    import misaki.data

    folder = Path(misaki.data.__path__[0])
    sources = [json.loads((folder / name).read_text(encoding="utf-8")) for name in _SOURCES]
    words = entries(sources)
    with options.cmudict.open(encoding="utf-8") as lines:
        dictionary = cmudict.words_of(lines)
    both, same, alike = agreement(words, dictionary)
    names = cmudict.names_of(NAMES.read_text(encoding="utf-8").splitlines())
    corrections = cmudict.names_of(CORRECTIONS.read_text(encoding="utf-8").splitlines())
    found = with_names(corrected(words, corrections), names, dictionary)
    options.out.write_bytes(pack(found))
    print(
        f"{len(found)} words, {len(words)} of them misaki's. Of {both} that the dictionary has "
        f"too, {same / both:.1%} sound the same, {alike / both:.1%} nearly."
    )


if __name__ == "__main__":
    main()
