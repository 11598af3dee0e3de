"""A backtracking matcher that counts its steps, for regular expressions as ``re`` parses them.

It tries alternatives in the order of Python's own engine, so that its steps grow as that engine's
time does, without a clock. It is slow. Its results are compared with the real engine's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

#: Continues after a node at a position; returns the end of the match, or -1.
Then = Callable[[int], int]
_CATEGORIES = {
    op.CATEGORY_DIGIT: str.isdecimal,
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
}
_OPPOSITES = {
    op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT,
    op.CATEGORY_NOT_SPACE: op.CATEGORY_SPACE,
    op.CATEGORY_NOT_WORD: op.CATEGORY_WORD,
}
_ONE_CHARACTER = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
#: Characters of which a class is represented by the first that it holds.
_SAMPLES = "aA1 .,-'\"\n\t:;!?()[]{}<>|/\\*_#$%&+=@^`~é–—•°½²Ⅳ"


def parse(pattern: str | bytes, flags: int) -> Any:
    """Return the tree of a pattern, and its flags."""
    return _parser.parse(pattern, flags & ~re.UNICODE if isinstance(pattern, bytes) else flags)


class Steps:
    """A compiled pattern. ``count`` is the number of steps of all attempts so far."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        tree = parse(pattern, flags)
        self.count = 0
        self._text, self._end, self._is_full = "", 0, False
        self._groups: dict[int, tuple[int, int]] = {}
        flags = tree.state.flags
        self._run = self._branch([(_first(tree, flags), self._sequence(tree, flags, self._accept))])

    def match(self, text: str, at: int, end: int, *, full: bool = False) -> int:
        """Return the end of the match that begins at ``at``, or -1."""
        self._text, self._end, self._is_full = text, end, full
        self._groups.clear()
        self.count += 1
        return self._run(at)

    def _accept(self, at: int) -> int:
        return -1 if self._is_full and at != self._end else at

    def _sequence(self, nodes: Sequence[Any], flags: int, then: Then) -> Then:
        for kind, value in reversed(nodes):
            then = self._node(kind, value, flags, then)
        return then

    def _node(self, kind: Any, value: Any, flags: int, then: Then) -> Then:
        if kind in _ONE_CHARACTER:
            return self._repeat(1, 1, _predicate(kind, value, flags), then)
        if kind in _REPEATS:
            least, most, body = value
            if kind is op.POSSESSIVE_REPEAT:
                return self._atomic([(op.MAX_REPEAT, value)], flags, then)
            if len(body) == 1 and body[0][0] in _ONE_CHARACTER:
                one, of = body[0]
                holds = _predicate(one, of, flags)
                lazy = kind is op.MIN_REPEAT
                return self._repeat(least, most, holds, then, is_lazy=lazy)
            return self._loop(least, most, body, flags, then, is_lazy=kind is op.MIN_REPEAT)
        if kind is op.SUBPATTERN:
            group, added, removed, body = value
            flags = (flags | added) & ~removed
            return self._group(group, body, flags, then) if group else (
                self._sequence(body, flags, then)
            )  # fmt: skip
        if kind is op.BRANCH:
            return self._branch(
                [(_first(way, flags), self._sequence(way, flags, then)) for way in value[1]]
            )
        if kind is op.ATOMIC_GROUP:
            return self._atomic(value, flags, then)
        if kind in (op.ASSERT, op.ASSERT_NOT):
            direction, nodes = value
            return self._look(direction, nodes, flags, then, wanted=kind is op.ASSERT)
        if kind is op.AT:
            return self._at(value, flags, then)
        if kind is op.GROUPREF:
            return self._reference(value, flags, then)
        raise NotImplementedError(kind)

    def _repeat(
        self,
        least: int,
        most: Any,
        holds: Callable[[str], bool],
        then: Then,
        *,
        is_lazy: bool = False,
    ) -> Then:
        def run(at: int) -> int:
            text, limit = self._text, self._end
            if most < limit - at:
                limit = at + int(most)
            here = at
            furthest = at + least if is_lazy else limit
            while here < min(furthest, limit) and holds(text[here]):
                here += 1
            self.count += here - at + 1
            if here - at < least:
                return -1
            if is_lazy:
                while (found := then(here)) < 0 and here < limit and holds(text[here]):
                    self.count += 1
                    here += 1
                return found
            for place in range(here, at + least - 1, -1):
                self.count += 1
                if (found := then(place)) >= 0:
                    return found
            return -1

        return run

    def _loop(
        self, least: int, most: Any, body: Any, flags: int, then: Then, *, is_lazy: bool
    ) -> Then:
        turn, began = 0, -1  # of this loop's innermost run

        def again(at: int) -> int:
            nonlocal turn, began
            self.count += 1
            mine = turn, began
            if is_lazy and turn >= least and (found := then(at)) >= 0:
                return found
            if turn < most and (turn < least or at != began):
                turn, began = turn + 1, at
                found = one(at)
                turn, began = mine
                if found >= 0:
                    return found
            return then(at) if turn >= least and not is_lazy else -1

        def run(at: int) -> int:
            nonlocal turn, began
            mine, (turn, began) = (turn, began), (0, -1)
            found = again(at)
            turn, began = mine
            return found

        one = self._sequence(body, flags, again)
        return run

    def _group(self, group: int, body: Any, flags: int, then: Then) -> Then:
        begins: list[int] = []

        def close(at: int) -> int:
            before, begin = self._groups.get(group), begins.pop()
            self._groups[group] = begin, at
            found = then(at)
            begins.append(begin)
            if found < 0:
                if before is None:
                    del self._groups[group]
                else:
                    self._groups[group] = before
            return found

        def run(at: int) -> int:
            begins.append(at)
            found = inner(at)
            begins.pop()
            return found

        inner = self._sequence(body, flags, close)
        return run

    def _branch(self, ways: list[tuple[Callable[[str], bool] | None, Then]]) -> Then:
        @cache
        def possible(char: str) -> list[Then]:
            return [way for holds, way in ways if holds is None or (char and holds(char))]

        def run(at: int) -> int:
            for way in possible(self._text[at : min(at + 1, self._end)]):
                self.count += 1
                if (found := way(at)) >= 0:
                    return found
            return -1

        return run

    def _atomic(self, body: Any, flags: int, then: Then) -> Then:
        inner = self._sequence(body, flags, lambda at: at)

        def run(at: int) -> int:
            found = inner(at)
            return found if found < 0 else then(found)

        return run

    def _look(self, direction: int, body: Any, flags: int, then: Then, *, wanted: bool) -> Then:
        inner = self._sequence(body, flags, lambda at: at)
        width = body.getwidth()[0] if direction < 0 else 0

        def run(at: int) -> int:
            self.count += 1
            is_found = at >= width and inner(at - width) >= 0
            return then(at) if is_found is wanted else -1

        return run

    def _at(self, place: Any, flags: int, then: Then) -> Then:
        is_word = _predicate(op.IN, [(op.CATEGORY, op.CATEGORY_WORD)], flags)
        lines = bool(flags & re.MULTILINE)

        def holds(at: int) -> bool:
            text, end = self._text, self._end
            if place is op.AT_BEGINNING_STRING or (place is op.AT_BEGINNING and not lines):
                return at == 0
            if place is op.AT_BEGINNING:
                return at == 0 or text[at - 1] == "\n"
            if place is op.AT_END_STRING:
                return at == end
            if place is op.AT_END:
                return at == end or (text[at] == "\n" and (lines or at == end - 1))
            before = at > 0 and is_word(text[at - 1])
            after = at < end and is_word(text[at])
            return (before != after) is (place is op.AT_BOUNDARY)

        def run(at: int) -> int:
            self.count += 1
            return then(at) if holds(at) else -1

        return run

    def _reference(self, group: int, flags: int, then: Then) -> Then:
        def run(at: int) -> int:
            self.count += 1
            if group not in self._groups:
                return -1
            begin, end = self._groups[group]
            written, here = self._text[begin:end], self._text[at : at + end - begin]
            is_same = written == here or (
                bool(flags & re.IGNORECASE) and written.lower() == here.lower()
            )
            return then(at + end - begin) if is_same else -1

        return run


def _first(nodes: Sequence[Any], flags: int) -> Callable[[str], bool] | None:
    """Whether a match of ``nodes`` may begin with a character; None if that is not known."""
    for kind, value in nodes:
        if kind in (op.ASSERT, op.ASSERT_NOT, op.AT):
            continue
        if kind in _ONE_CHARACTER:
            return _predicate(kind, value, flags)
        if kind is op.SUBPATTERN:
            return _first(value[3], (flags | value[1]) & ~value[2])
        if kind in _REPEATS and value[0]:
            return _first(value[2], flags)
        if kind is op.BRANCH:
            return _any([_first(way, flags) for way in value[1]])
        break
    return None


def _any(ways: list[Callable[[str], bool] | None]) -> Callable[[str], bool] | None:
    known = [holds for holds in ways if holds is not None]
    return (lambda char: any(holds(char) for holds in known)) if known == ways else None


def _predicate(kind: Any, value: Any, flags: int) -> Callable[[str], bool]:
    is_ascii = bool(flags & re.ASCII) or not flags & re.UNICODE

    def in_category(char: str, category: Any) -> bool:
        if category in _OPPOSITES:
            return not in_category(char, _OPPOSITES[category])
        return (char < "\x80" or not is_ascii) and bool(_CATEGORIES[category](char))

    def is_in(char: str, items: Any) -> bool:
        for item, argument in items:
            if item is op.LITERAL and ord(char) == argument:
                return True
            if item is op.RANGE and argument[0] <= ord(char) <= argument[1]:
                return True
            if item is op.CATEGORY and in_category(char, argument):
                return True
        return False

    @cache
    def holds(char: str) -> bool:
        if kind is op.ANY:
            return bool(flags & re.DOTALL) or char != "\n"
        items = value if kind is op.IN else [(op.LITERAL, value)]
        is_negated = kind is op.NOT_LITERAL or items[0][0] is op.NEGATE
        cases = {char, char.lower(), char.upper()} if flags & re.IGNORECASE else {char}
        return any(is_in(one, items) for one in cases if len(one) == 1) is not is_negated

    return holds


def fragments(tree: Sequence[Any], flags: int = re.UNICODE) -> set[str]:
    """Return short texts that keep the repeats of a pattern busy: for each repeat of many turns one
    turn, what stands before the repeat, and both.
    """
    found: set[str] = set()

    def sample(nodes: Sequence[Any]) -> str:
        before = ""
        for kind, value in nodes:
            before += one(kind, value, before)
        return before

    def one(kind: Any, value: Any, before: str) -> str:
        if kind in _ONE_CHARACTER:
            if kind is op.LITERAL:
                return chr(value)
            holds = _predicate(kind, value, flags)
            return next((char for char in _SAMPLES if holds(char)), "")
        if kind in _REPEATS:
            least, most, body = value
            turn = sample(body)
            if most > 8:
                found.update((turn, before, before + turn))
            return turn * max(1, least)
        if kind is op.SUBPATTERN:
            return sample(value[3])
        if kind is op.BRANCH:
            first, *_ = map(sample, value[1])  # all of them, for their repeats
            return first
        if kind is op.ATOMIC_GROUP:
            return sample(value)
        if kind in (op.ASSERT, op.ASSERT_NOT):
            sample(value[1])
        return ""

    sample(tree)
    return found - {""}
