"""Training sentences: WordNet's definitions and examples, its words, and everyday phrases.

WordNet 3.0 (Princeton University, free for any purpose with its notice) is Debian's package
``wordnet-base``. Everything is written in the voice's letters: ``a-z``, the apostrophe and
``, . ? !``. The order depends only on the seed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

WORDNET = Path("/usr/share/wordnet")
_PARTS = ("noun", "verb", "adj", "adv")
_LONGEST, _SHORTEST = 90, 8

#: Word lists, and phrases with gaps: {n} a first name, {s} a surname, {p} a place, {t} a thing,
#: {d} a day, {c} a number, {u} a unit, {m} a month, {o} an ordinal, {w} any word.
_LISTS: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("phrases.json").read_text(encoding="utf-8")
)
_GAPS = {
    "n": "names", "s": "surnames", "p": "places", "t": "things", "d": "days", "u": "units",
    "m": "months", "o": "ordinals",
}  # fmt: skip


def number(value: int) -> str:
    """Return an English cardinal below a million."""
    if value < 20:
        return _LISTS["ones"][value]
    if value < 100:
        tens, ones = divmod(value, 10)
        return _LISTS["tens"][tens - 2] + (" " + _LISTS["ones"][ones] if ones else "")
    for unit, name in ((1000, "thousand"), (100, "hundred")):
        if value >= unit:
            head, rest = divmod(value, unit)
            return f"{number(head)} {name}" + (" " + number(rest) if rest else "")
    raise AssertionError(value)


def plain(text: str) -> str | None:
    """Write ``text`` in the voice's letters; None if they cannot express it."""
    text = re.sub(r"\([^)]*\)", " ", text.lower()).replace("`", "'").replace(";", ",")
    text = re.sub(r"\s*-+\s*|:\s*", " ", text)
    text = re.sub(r"\s+([,.?!])", r"\1", re.sub(r"\s+", " ", text)).strip(" ,'")
    if not re.fullmatch(r"[a-z' ,.?!]+", text) or re.search(
        r"[,.?!]{2}|(?<![a-z])'(?![a-z])", text
    ):
        return None
    if not _SHORTEST <= len(text) <= _LONGEST or len(text.split()) < 2:
        return None
    return text if text[-1] in ".?!" else text + "."


def wordnet() -> tuple[list[str], list[str]]:
    """Return sentences (definitions and examples), and single words that consist of letters."""
    sentences: dict[str, None] = {}
    words: dict[str, None] = {}
    for part in _PARTS:
        for line in (WORDNET / f"data.{part}").read_text(encoding="ascii").splitlines():
            head, _, gloss = line.partition(" | ")
            if not gloss or line.startswith("  "):
                continue
            word = head.split()[4]
            if re.fullmatch(r"[a-z]{3,12}", word):
                words[word] = None
            for piece in [*re.findall(r'"([^"]+)"', gloss), re.sub(r'"[^"]*"', "", gloss)]:
                for clause in piece.split(";"):
                    sentence = plain(clause)
                    if sentence:
                        sentences[sentence] = None
    return list(sentences), list(words)


def _filled(phrase: str, words: list[str], random: Random) -> str:
    pools = {gap: _LISTS[name] for gap, name in _GAPS.items()} | {"w": words}

    def pick(match: re.Match[str]) -> str:
        if match[1] == "c":
            return number(
                random.choice(
                    (random.randrange(20), random.randrange(100), random.randrange(10000))
                )
            )
        return random.choice(pools[match[1]])

    return re.sub(r"\{(\w)\}", pick, phrase)


def sentences(count: int, seed: int, without: frozenset[str] = frozenset()) -> list[str]:
    """Return ``count`` different sentences, none of them in ``without``.

    Half are WordNet's examples and definitions (shorter ones are more likely), a quarter everyday
    phrases, and a quarter sequences of words, for the spelling of rare ones.
    """
    random = Random(seed)
    natural, words = wordnet()
    random.shuffle(natural)
    natural.sort(key=lambda text: len(text) > 60)
    found: dict[str, None] = dict.fromkeys(natural[: count // 2])
    while len(found) < 3 * count // 4:
        found[_filled(random.choice(_LISTS["phrases"]), words, random)] = None
    while len(found) < count + len(without):
        row = random.sample(words, random.randint(2, 7))
        found[random.choice((", ", " ", " ")).join(row) + random.choice(".?!.")] = None
    kept = [text for text in found if text not in without][:count]
    random.shuffle(kept)
    return kept
