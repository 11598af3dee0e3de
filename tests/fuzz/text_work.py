"""Counts the work of the functions that read a client's text: lines of Python and regular
expressions' steps. Prints what grows faster than the text, as JSON.

Run as a program, because ``re`` must count before the modules that use it are imported. Every
pattern that the project's modules compile, at their import or later, counts its steps, and its
repeats give fragments for the texts, so that a new pattern needs no entry here.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.regex_steps import Steps, fragments, parse

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("streaming.", "text.", "talker.", "service.")
#: Fragments of ordinary texts, and of texts that are made to be costly.
ORDINARY = (
    " ", "\n", " \n", "1", "1,", "1.", "1,5 ", "a", "A", "A.", "a b ", "a. ", "\"", "' ", "<", "<|",
    "<|a|>", "[", "](", "-", "—", "$", "1/", "/a", "a@", "a.b", "http://a/", "#", "**a", "`", "é",
    "\u0301", "中", "。", "😀", "½", "Dr. ", "1st ", "10:30 ", "$1.5 ",
)  # fmt: skip
HOSTILE = (
    "a.", "1-", "(", "1:1", "@a.", "'", "M", "US$", "http://", "a@a.", "+1 ", "a-", "May ", "1 ",
    "/", "I", "%", "J. ", "1 1/2 ", "US ", "U.S. ", "Dr. A ", "5 May ", "Elm St. ", "N Elm ",
    "5 W ", "Mon-", "May 5 – ", "9 AM-", "$1k-", "5 km–", "1-800-A", "800-A-", "1/5 and ",
    "on 1/5 ", "B. ", "Seat 5B ", "x² ", "**2", "a.b/c.", "a.co/.a", "5%-", "<b", "<b>", "<b a=",
    "<a b='", "a='b' ", "<b ", "<!--", "<!a ", "&#1", "&a", "&amp;", "http://a@", "http://a.",
    "http://1.", "www.", "http://[:", "![", "[a](", "[a](/", "](/", "](/a(", "](/ \"", "[^",
    "[a](/b)", " > A", "* 3 ", "1x", "1 x ", "1\"x", "1s", "A1s", "A1-", "1-1-", "1in ",
    "1 ft 1 in ", "code 1234 ", "call 911 or ", "$1 USD ", "1,5", "½-", "1 Cor. ", "-p 1:1 ", "•• ",
    "$A", "Mon/", "Mon and ", "5 A Ave N ", "1/5 ", "./", " .a", "->", "max. ", "\\(", "\\[", "$a",
    "\\frac{", "$x$", "Nf3 ", "H2",
)  # fmt: skip
FIXED = (*ORDINARY, *HOSTILE)
#: Characters of the shorter text: more than the reach of the normaliser's rules and most lengths
#: that patterns limit, so that what is limited has stopped growing; and enough for all of them.
LENGTH, LONG = 160, 800
#: Functions that begin with another of these: the ordinary fragments do for what they add.
READ_ELSEWHERE = ("english-sounds",)
#: Growth at twice the length: 2 if linear, 4 if quadratic. Work below one step per character is no
#: harm, whatever its growth.
MOST_GROWTH = 2.9

work: Counter[str] = Counter()
patterns: dict[tuple[str | bytes, int], CountingPattern] = {}


class CountingPattern:
    """A compiled pattern whose methods count their steps, and check them against ``re``."""

    def __init__(self, real: re.Pattern[Any]) -> None:
        self.real, self.steps = real, Steps(real.pattern, real.flags)
        self.name = repr(real.pattern)
        self.pattern, self.flags, self.groupindex = real.pattern, real.flags, real.groupindex

    def _attempt(self, text: Any, at: int, end: int, *, full: bool = False) -> int:
        shown = text.decode("latin-1") if isinstance(text, bytes) else text
        before, trace = self.steps.count, sys.gettrace()
        sys.settrace(None)
        found = self.steps.match(shown, at, end, full=full)
        work[self.name] += self.steps.count - before
        sys.settrace(trace)
        return found

    def _one(self, method: str, text: Any, at: int, end: int) -> re.Match[Any] | None:
        end = min(end, len(text))
        match: re.Match[Any] | None = getattr(self.real, method)(text, at, end)
        starts = range(at, end + 1) if method == "search" else (at,)
        is_full = method == "fullmatch"
        found = next(
            ((s, e) for s in starts if (e := self._attempt(text, s, end, full=is_full)) >= 0), None
        )
        assert found == (match and match.span()), (self.pattern, text, at, found, match)
        return match

    def match(self, text: Any, at: int = 0, end: int = sys.maxsize) -> re.Match[Any] | None:
        return self._one("match", text, at, end)

    def fullmatch(self, text: Any, at: int = 0, end: int = sys.maxsize) -> re.Match[Any] | None:
        return self._one("fullmatch", text, at, end)

    def search(self, text: Any, at: int = 0, end: int = sys.maxsize) -> re.Match[Any] | None:
        return self._one("search", text, at, end)

    def finditer(self, text: Any, at: int = 0, end: int = sys.maxsize) -> Iterator[re.Match[Any]]:
        end = min(end, len(text))
        for match in self.real.finditer(text, at, end):
            for start in range(at, match.start() + 1):
                self._attempt(text, start, end)
            yield match
            at = match.end() + (match.start() == match.end())
        for start in range(at, end + 1):
            self._attempt(text, start, end)

    def _passed(self, text: Any, count: int = 0) -> None:
        for number, _ in enumerate(self.finditer(text), 1):
            if number == count:
                break

    def findall(self, text: Any) -> list[Any]:
        self._passed(text)
        return self.real.findall(text)

    def sub(self, new: Any, text: Any, count: int = 0) -> Any:
        self._passed(text, count)
        return self.real.sub(new, text, count)

    def subn(self, new: Any, text: Any, count: int = 0) -> Any:
        self._passed(text, count)
        return self.real.subn(new, text, count)

    def split(self, text: Any, most: int = 0) -> list[Any]:
        self._passed(text, most)
        return self.real.split(text, most)


def count_patterns() -> None:
    """Let the project's modules compile CountingPatterns from now on."""
    compile_ = re.compile

    def counting(pattern: Any, flags: int = 0) -> Any:
        if isinstance(pattern, CountingPattern):
            return pattern
        caller = sys._getframe(1)
        if caller.f_code.co_filename == __file__:
            caller = sys._getframe(2)
        real = compile_(pattern, flags)
        if not caller.f_globals.get("__name__", "").startswith(PACKAGES):
            return real
        return patterns.setdefault((real.pattern, real.flags), CountingPattern(real))

    re.compile = counting
    for name in ("match", "fullmatch", "search", "finditer", "findall", "sub", "subn", "split"):
        wrapped = getattr(re, name)

        def function(
            pattern: Any, *rest: Any, name: str = name, wrapped: Any = wrapped, **more: Any
        ) -> Any:
            flags = more.pop("flags", 0)
            return getattr(counting(pattern, flags), name)(*rest, **more)

        setattr(re, name, function)


def functions() -> dict[str, Callable[[str], object]]:
    """The functions that a client's text passes through, by what they do."""
    import service.transport.http_routes as http_routes
    import streaming.word_timing as word_timing
    import talker.families.fish_s2.prompts as fish_s2
    import talker.families.higgs_v2.normalisation as higgs_v2
    import talker.families.higgs_v2.prompts as higgs_v2_prompts
    import talker.families.higgs_v3.prompts as higgs_v3
    import text.english.phonemes as phonemes
    import text.english.sounds  # noqa: F401  # else compiled with the first text, uncounted
    import text.markup.elements as elements
    import text.pronunciation.matcher as matcher
    import text.pronunciation.rules as rules
    import text.segmenter as segmenter
    import text.turns as turns
    from streaming.protocol.field_errors import describe
    from text.markup.reader import MarkupReader
    from text.markup.segments import MarkedSegmenter
    from text.registry import FRONT_ENDS

    def read_markup(text: str) -> None:
        cutter = MarkedSegmenter(MarkupReader(), segmenter.SegmentSettings(80))
        cutter.push(text)
        cutter.flush()

    def segment(text: str) -> None:
        cutter = segmenter.Segmenter(segmenter.SegmentSettings(80, first_max_chars=40))
        cutter.push(text)
        cutter.flush()

    def take_turns(text: str) -> None:
        pending = turns.PendingText(turns.TurnSettings(100, {"<|a|>": "emotion"}))
        pending.add(text, 0.0)
        pending.delivery([text, text], "")

    def split(text: str) -> None:
        segmenter.split_long(text, [2 * place for place in range(len(text) + 1)], 80)

    def pronounce(text: str) -> None:
        pronouncer = matcher.Pronouncer([rules.RuleSet([rules.Rule("a.b " * 20 + "a", "b")])])
        pronouncer.push([elements.Text(0, len(text), text)])
        pronouncer.flush()

    return {
        **{name: inspect.unwrap(one.read) for name, one in FRONT_ENDS.items()},
        "markup": read_markup,
        "phonemes": phonemes.signs_of,
        "pronunciations": pronounce,
        "segmenter": segment,
        "split": split,
        "turns": take_turns,
        "words": word_timing.find_words,
        "Higgs v2": higgs_v2.normalise,
        "Higgs v2, speakers": lambda text: [
            higgs_v2_prompts._SPEAKER.findall(text),
            higgs_v2_prompts._DESCRIBED.findall(text),
        ],
        "Higgs v3, tags": higgs_v3.HiggsV3PromptBuilder.tag_set.split,
        "Fish S2, speakers": fish_s2._SPEAKER.search,
        "tokens of a body": lambda text: http_routes._TOKEN.findall(text.encode()),
        "error": describe,
    }


def measured(function: Callable[[str], object], text: str) -> Counter[str]:
    """Return the work of each function and pattern, in lines and steps."""
    work.clear()

    def trace(frame: Any, event: str, argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(str(ROOT)) or "/tests/" in code.co_filename:
            return None
        if event == "line":
            work[f"{code.co_filename.removeprefix(str(ROOT))} {code.co_qualname}"] += 1
        return trace

    sys.settrace(trace)
    try:
        function(text)
    finally:
        sys.settrace(None)
    return Counter(work)


def excess(
    function: Callable[[str], object], fragment: str, length: int = LENGTH
) -> dict[str, tuple[int, int]]:
    """Return the work that grows faster than the text, at ``length`` and twice that."""
    turns = -(-length // len(fragment))
    once, twice = (measured(function, f"It {fragment * count} x") for count in (turns, 2 * turns))
    limit = 2 * len(fragment) * turns
    return {
        name: (once[name], more)
        for name, more in twice.items()
        if more > MOST_GROWTH * once[name] and more - 2 * once[name] > limit
    }


def alike(fragment: str) -> str:
    """Return what patterns tell apart in a fragment. One word is much like another."""
    return re.sub("[A-Za-z]{3,}", "word", fragment)


def main(part: int, parts: int, names: list[str]) -> None:
    """Print the excesses of the functions with these names for one part of the fragments."""
    count_patterns()
    every = functions()
    texts = {}
    for pattern in list(patterns.values()):
        tree = parse(pattern.pattern, pattern.flags)
        for fragment in sorted(fragments(tree, tree.state.flags)):
            if len(fragment) < LENGTH // 6:
                texts.setdefault(alike(fragment), fragment)
    chosen = sorted({*FIXED, *texts.values()})[part::parts]
    faults = [
        (name, fragment, found)
        for name in names
        for fragment in (ORDINARY if name in READ_ELSEWHERE else chosen)
        if excess(every[name], fragment) and (found := excess(every[name], fragment, LONG))
    ]
    print(json.dumps({"patterns": len(patterns), "fragments": len(chosen), "faults": faults}))


if __name__ == "__main__":
    sys.setrecursionlimit(1_000_000)
    threading.stack_size(512 << 20)
    arguments = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    runner = threading.Thread(target=main, args=arguments)
    runner.start()
    runner.join()
