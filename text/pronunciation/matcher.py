"""The application of rules to marked-up text as it arrives: elements in, elements out."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence

from text.markup.elements import Closed, Element, Phoneme, Substitute, Text
from text.pronunciation.rules import EDGE, RuleSet, alike, folded, is_edge

#: A match: where it begins, minus where it ends, the number of its set and of its rule. The least
#: of several is the one that applies: the first, the longest, and the earliest rule.
_Match = tuple[int, int, int, int]


class Pronouncer:
    """Replaces what rules match in the text of one context.

    Of matches that overlap, the leftmost and then the longest applies. Only ``Text`` is matched,
    also across formatting without a sound, but neither what other markup has replaced nor across
    it. The elements do not depend on how the text is divided. As much text is held back as may
    become a match, so at most the longest rule.

    Args:
        sets: Sets of rules, of which an earlier one comes first.
    """

    def __init__(self, sets: Sequence[RuleSet]) -> None:
        self._sets = tuple(sets)
        self._automatons = [
            (number, automaton)
            for number, rules in enumerate(self._sets)
            for automaton in rules.automatons
        ]
        #: The text that may become a match, and the place of each of its characters in the
        #: client's.
        self._text = ""
        self._places: list[int] = []
        #: Ends of elements, each with the length of the text before it.
        self._ends: deque[tuple[int, Closed]] = deque()
        #: The character before the text.
        self._before = ""
        #: Elements that have not been returned.
        self._done: list[Element] = []
        self._begin(0)

    def _begin(self, at: int) -> None:
        """Read the text from here on as if nothing were before it."""
        #: Number of the text's characters that are returned, and that were read.
        self._returned = self._read = at
        self._states = [0] * len(self._automatons)
        self._found: _Match | None = None

    @property
    def pending_chars(self) -> int:
        """Number of characters held back."""
        return len(self._text)

    def push(self, elements: Iterable[Element]) -> list[Element]:
        """Add elements. Returns those that are complete, in order."""
        if not self._automatons:
            return list(elements)
        for element in elements:
            if type(element) is Text and not element.is_mark:
                self._text += element.text
                self._places += range(element.start, element.end)
            elif isinstance(element, Closed):
                self._ends.append((len(self._text), element))
            else:
                self._read_on(is_final=True)
                self._before = ""
                self._done.append(element)
        self._read_on()
        return self._take()

    def flush(self) -> list[Element]:
        """End the text here. Returns the rest."""
        self._read_on(is_final=True)
        self._before = ""
        return self._take()

    def _take(self) -> list[Element]:
        done, self._done = self._done, []
        return done

    # -- matching

    def _read_on(self, *, is_final: bool = False) -> None:
        """Read what has come, and return all that cannot become a match any more."""
        text = alike(self._text)
        while True:
            while self._read < len(text):
                char = text[self._read]
                if is_edge(text[self._read - 1] if self._read else self._before, char):
                    self._step(EDGE, EDGE)
                self._read += 1
                self._step(char, folded(char))
                if self._found is not None and self._found[0] < self._open_from():
                    self._replace()
            if is_final:
                self._step(EDGE, EDGE)
                if self._found is not None:
                    self._replace()
                    continue
            break
        if is_final:
            self._return_text(len(text))
            self._begin(len(text))
        else:
            at = self._open_from()
            self._return_text(at if self._found is None else min(at, self._found[0]))
        self._forget()

    def _step(self, symbol: str, small: str) -> None:
        """Read a character, also as a small letter, or an edge of a word."""
        for at, (number, automaton) in enumerate(self._automatons):
            state = automaton.after(self._states[at], small if automaton.folds else symbol)
            self._states[at] = state
            if (rule := automaton.rule[state]) >= 0:
                match = (self._read - automaton.length[state], -self._read, number, rule)
                if self._found is None or match < self._found:
                    self._found = match

    def _open_from(self) -> int:
        """Where the first match begins that may still end in text to come."""
        longest = max(
            automaton.chars[state]
            for state, (_, automaton) in zip(self._states, self._automatons, strict=True)
        )
        return self._read - longest

    # -- elements out

    def _replace(self) -> None:
        """Return the match found, and read on after it."""
        assert self._found is not None
        start, minus_end, number, at = self._found
        end = -minus_end
        self._return_text(start)
        rule, first, last = self._sets[number].rules[at], self._places[start], self._places[end - 1]
        if rule.alias is not None:
            self._done.append(Substitute(first, last + 1, rule.alias))
        else:
            written, phonemes = self._text[start:end], rule.phonemes or ""
            self._done.append(Phoneme(first, last + 1, written, rule.alphabet, phonemes))
        while self._ends and self._ends[0][0] < end:  # an end within a match has no text of its own
            self._ends.popleft()
        self._begin(end)

    def _return_text(self, end: int) -> None:
        """Return the text before ``end`` as it is written."""
        while self._returned < end or (self._ends and self._ends[0][0] <= end):
            begin = self._returned
            stop = min(end, self._ends[0][0]) if self._ends else end
            if stop > begin:
                self._return_run(begin, stop)
            self._returned = stop
            if self._ends and self._ends[0][0] == stop:
                self._done.append(self._ends.popleft()[1])

    def _return_run(self, begin: int, stop: int) -> None:
        """Return text without ends of elements in it, in parts that are one in the client's."""
        places = self._places
        if places[stop - 1] - places[begin] == stop - 1 - begin:
            cuts = [begin, stop]
        else:
            inner = range(begin + 1, stop)
            cuts = [begin, *(at for at in inner if places[at] > places[at - 1] + 1), stop]
        for first, last in itertools.pairwise(cuts):
            start = places[first]
            self._done.append(Text(start, start + last - first, self._text[first:last]))

    def _forget(self) -> None:
        """Forget the text that was returned."""
        done = self._returned
        if not done:
            return
        self._before = self._text[done - 1]
        self._text, self._places = self._text[done:], self._places[done:]
        self._ends = deque((at - done, end) for at, end in self._ends)
        self._returned, self._read = 0, self._read - done
        if self._found is not None:
            start, minus_end, number, rule = self._found
            self._found = (start - done, minus_end + done, number, rule)
