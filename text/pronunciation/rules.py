"""Rules of pronunciation, and sets of them that are ready to be matched."""

from __future__ import annotations

import itertools
import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from text.pronunciation.alphabets import AlphabetError, to_ipa
from text.segmenter import is_wide

#: The most rules of a set, and characters that they match.
MAX_RULES, MAX_SET = 1000, 20_000
#: Limits of what is written, of an alias and of phonemes, in characters.
MAX_WRITTEN, MAX_ALIAS, MAX_PHONEMES = 100, 400, 100
#: Stands for the edge of a word in what the automatons read.
EDGE = "\x00"
#: Bits of a character's number.
_CHAR_BITS = 21
_CHAR = (1 << _CHAR_BITS) - 1
#: Characters that are compared as another one, in any set.
_ALIKE = str.maketrans(
    {"\u2019": "'", "\u02bc": "'", **dict.fromkeys("\t\n\r\x0b\x0c\xa0\u2009\u202f", " ")}
)


class RuleError(ValueError):
    """A rule that is none. ``field`` is what is wrong; the text says what is allowed."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


@dataclass(frozen=True, slots=True)
class Rule:
    """How a word or phrase is spoken. Raises RuleError.

    Attributes:
        written: The word or phrase. Any whitespace equals a space, and any apostrophe another.
        alias: The text that is spoken instead.
        phonemes: Or its phonemes, a word's apart by spaces.
        alphabet: ``ipa`` or ``cmu-arpabet``.
        case_sensitive: Whether capitals count.
        word_boundaries: Whether it is matched as whole words only.
    """

    written: str
    alias: str | None = None
    phonemes: str | None = None
    alphabet: str = "ipa"
    case_sensitive: bool = True
    word_boundaries: bool = True

    def __post_init__(self) -> None:
        if not 1 <= len(self.written) <= MAX_WRITTEN or self.written != self.written.strip():
            allowed = f"1 to {MAX_WRITTEN} characters without spaces around them"
            raise RuleError("written", f"{allowed}, not {self.written[:40]!a}")
        if EDGE in self.written:
            raise RuleError("written", "characters other than U+0000")
        if (self.alias is None) == (self.phonemes is None):
            raise RuleError("alias", "give either an alias or phonemes")
        if self.alias is not None and not 1 <= len(self.alias) <= MAX_ALIAS:
            raise RuleError("alias", f"1 to {MAX_ALIAS} characters, not {len(self.alias)}")
        if self.phonemes is None:
            return
        if not 1 <= len(self.phonemes.strip()) <= MAX_PHONEMES:
            raise RuleError("phonemes", f"1 to {MAX_PHONEMES} characters, not {len(self.phonemes)}")
        try:
            to_ipa(self.alphabet, self.phonemes)
        except AlphabetError as error:
            raise RuleError("phonemes", str(error)) from error


class Automaton:
    """Finds texts in a stream of characters, by Aho and Corasick.

    A state stands for the longest end of the stream that is a beginning of one of the texts. Each
    character leads to a new state, in one step on average, whatever the texts are.
    """

    def __init__(self, *, folds: bool) -> None:
        #: Whether capitals are read as small letters.
        self.folds = folds
        #: The state after a state and a character.
        self.following: dict[int, int] = {}
        #: For each state, the state of its longest proper end.
        self.shorter = array("i", [0])
        #: For each state, the number of its characters, which edges of words are not.
        self.chars = array("i", [0])
        #: For each state, the number of the rule whose text is the longest to end there, or -1.
        self.rule = array("i", [-1])
        #: For each state, the length of that text.
        self.length = array("i", [0])

    def add(self, symbols: str, rule: int) -> None:
        """Add a text. Of two that are alike the first counts."""
        state = 0
        for symbol in symbols:
            step = _step(state, symbol)
            if step not in self.following:
                self.following[step] = len(self.rule)
                self.shorter.append(0)
                self.chars.append(self.chars[state] + (symbol != EDGE))
                self.rule.append(-1)
                self.length.append(0)
            state = self.following[step]
        if self.rule[state] < 0:
            self.rule[state], self.length[state] = rule, self.chars[state]

    def link(self) -> None:
        """Complete the states, once all texts are added."""
        depth = array("i", [0]) * len(self.rule)
        for step, after in self.following.items():  # in the order of their beginnings
            depth[after] = depth[step >> _CHAR_BITS] + 1
        for step, after in sorted(self.following.items(), key=lambda one: depth[one[1]]):
            state = step >> _CHAR_BITS
            if state:
                end = self.after(self.shorter[state], chr(step & _CHAR))
                self.shorter[after] = end
            if self.rule[after] < 0:
                end = self.shorter[after]
                self.rule[after], self.length[after] = self.rule[end], self.length[end]

    def after(self, state: int, symbol: str) -> int:
        """Return the state after one more character, or edge of a word."""
        while (found := self.following.get(_step(state, symbol))) is None:
            if not state:
                return 0
            state = self.shorter[state]
        return found


def _step(state: int, symbol: str) -> int:
    return state << _CHAR_BITS | ord(symbol)


class RuleSet:
    """An immutable set of rules, ready to be matched. Raises RuleError if there are too many.

    If two rules match the same text, the earlier one applies.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules: Sequence[Rule] = tuple(rules)
        if len(self.rules) > MAX_RULES:
            raise RuleError("rules", f"{MAX_RULES} rules at most, not {len(self.rules)}")
        #: Number of characters that the rules match, with which the set's memory grows.
        self.chars = sum(len(rule.written) for rule in self.rules)
        if self.chars > MAX_SET:
            raise RuleError("rules", f"{MAX_SET} characters of written at most, not {self.chars}")

    @cached_property
    def automatons(self) -> Sequence[Automaton]:
        """One for the rules that heed capitals, one for the others, if there are any."""
        built: list[Automaton] = []
        for folds in (False, True):
            automaton = Automaton(folds=folds)
            for number, rule in enumerate(self.rules):
                if rule.case_sensitive is not folds:
                    automaton.add(symbols_of(rule), number)
            if automaton.following:
                automaton.link()
                built.append(automaton)
        return tuple(built)


def symbols_of(rule: Rule) -> str:
    """Return what an automaton reads for the text of a rule, its edges of words included."""
    text = alike(rule.written)
    text = text if rule.case_sensitive else "".join(map(folded, text))
    symbols = [text[0]]
    for before, char in itertools.pairwise(text):
        symbols += [EDGE, char] if is_edge(before, char) else [char]
    edge = EDGE if rule.word_boundaries else ""
    return edge + "".join(symbols) + edge


def alike(text: str) -> str:
    """Return a text as it is compared, with plain spaces and apostrophes, at the same length."""
    return text.translate(_ALIKE)


def folded(char: str) -> str:
    """Return a small letter for a capital."""
    lower = char.lower()
    return lower if len(lower) == 1 else char


def is_edge(before: str, char: str) -> bool:
    """Whether a word begins or ends between two characters; the first may be empty."""
    return not (_continues(before) and _continues(char))


def _continues(char: str) -> bool:
    """Whether it is part of a word, in scripts with spaces between words."""
    if char.isalnum() or char == "_":
        return not is_wide(char)
    return char > "\u02ff" and unicodedata.category(char)[0] == "M"
