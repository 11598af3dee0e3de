"""Rules for punctuation and Markdown in any language: marks that are pauses or silent, links,
headings, items of lists.
"""

from __future__ import annotations

import re

from text.rules import PAUSES, REACH, Match, Reading, Rule

_LONGEST_LINE = 160
#: A line of a heading, "## Results" or "**Results**", up to its end.
_HEADING = re.compile(r"(?:\A|\n)\s{0,3}(?:#{1,6}\s[^\n]+|\*\*[^*\n]+\*\*:?)\Z")
#: How a line begins that does not continue the one before it: "- ", "2. ", "b) ", "**Name:** ".
_NEW_LINE = re.compile(
    r"(?:[-*+#>]|\d{1,2}[.)]|\(?[A-Za-z]\)|\(?[ivx]{1,4}[.)]|\(\d{1,2}\)|[A-Ha-h]\.)\s+\S"
    r"|\*\*[A-Z][^*\n:]{0,36}(?::\*\*|\*\*:)"
)
#: A line that begins with a label, and the beginning of another one.
_LABELLED = re.compile(r"(?:\A|\n)[*_]{0,3}[A-Z][^\n:]{0,40}:[^\n]+\Z")
_LABEL = re.compile(r"[A-Z][\w'/-]{0,20}(?: [\w'/-]{1,20}){0,2}:\s")
#: The address in a Markdown link, with a title: an address, or a path within a site.
_TARGET = (
    r"\]\((?:[A-Za-z][\w+.-]{0,20}:|[#/?.]|(?=[^\s()]{1,200}[./]))[^\s()]{0,400}"
    r"(?:\([^\s()]{0,100}\)[^\s()]{0,200})?(?:\s\"[^\"\n]{0,200}\")?\)"
)


def _blank(match: Match) -> Reading:
    """An empty line ends a sentence, and so does the end of a heading's line. There is a pause
    before items of a list and lines that begin with a label, and at a hard break.
    """
    if match[0].count("\n") != 1:
        return ["."] if "\n" in match[0] else []
    text, start, end = match.string, match.start(), match.end()
    if _HEADING.search(text, max(0, start - _LONGEST_LINE), start):
        return ["."]
    is_hard = match[0].startswith("  ") or text[start - 1 : start] == "\\"
    following = text[end : end + REACH]
    if is_hard or _NEW_LINE.match(following):
        return [","]
    is_label = _LABEL.match(following) and _LABELLED.search(
        text, max(0, start - _LONGEST_LINE), start
    )
    return [","] if is_label else []


def _ellipsis(match: Match) -> Reading:
    """A stop, or a pause within a sentence."""
    following = match.string[match.end() : match.end() + 3]
    return [","] if re.match(r"\s*[a-z]|[,;:\d]", following) else ["."]


#: Most spaces, commas and stops, before all other rules, which is faster. None of these reads one.
COMMON: tuple[Rule, ...] = (
    Rule(r" (?=[A-Za-z0-9$(\"'])", ""),
    Rule(r",(?=\s)", ","),
    Rule(r"\.(?=\s[A-Za-z]|\Z)", ".", behind=r"[a-z]"),
)
#: Links, pictures, footnotes, tasks.
LINKS: tuple[Rule, ...] = (
    Rule(rf"!\[(?=[^\[\]\n]{{0,200}}{_TARGET})", ","),
    Rule(rf"\[(?=[^\[\]\n]{{1,200}}{_TARGET})", ""),
    Rule(_TARGET, ""),
    Rule(r"\[\^[^\]\s]{1,30}\]:?", ""),
    Rule(r"(?<=[-*+.] )\[[ xX]\](?=\s)", ""),
)
ARROWS: tuple[Rule, ...] = (
    Rule(r"[-=]{1,9}>", ","),
    Rule(r"[ \t]>[ \t](?=[*_\"'`]{0,4}[A-Z])", ",", behind=r"[A-Za-z0-9*_\"'`)]"),
)
BLANK = Rule(r"\s+", _blank)
DASH = Rule(r"[-–—]+", ",")
FACES: tuple[Rule, ...] = (
    Rule(r"[:;]-?[)(DPp](?=\s+[A-Z]|\s*$)", "."),
    Rule(r"[:;]-?[)(DPp](?!\w)", ""),
)
ELLIPSIS = Rule(r"\.{2,}|\.\s\.\s\.", _ellipsis)
BRACKET = Rule(r"[:;()\[\]{}|]", ",")
STOPS = tuple(Rule(re.escape(mark), mark) for mark in PAUSES)
