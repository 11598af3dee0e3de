"""Texts for front ends: the reading cases, and strategies of ordinary and of hostile texts."""

from __future__ import annotations

import string
from pathlib import Path

from hypothesis import strategies as st

_LINES = Path(__file__).with_name("reading_cases.txt").read_text().splitlines()
#: What is written, and what is said.
READING_CASES = [
    (source.replace("\\n", "\n"), spoken.strip())
    for source, arrow, spoken in (line.partition(" =>") for line in _LINES)
    if arrow and not source.startswith("# ")
]
_PIECES = [
    *(source for source, _ in READING_CASES),
    " ", "\n", "\n\n", ", ", ".", "...", "-", "–", "—", "/", ":",
    "'", '"', "(", ")", "$", "%", "#", "@", "1", "12", "1999", "07", "a", "A", "I", "st", "St.",
    "no.", "No.", "pm", "p.m.", "a.m.", "Mr.", "etc.", "km", "min.", "May", "Nov.", "XIV", "é",
    "no", "HR", "MS", "St", "Dr.", "Elm", "Then", "B.", "5B", "W", "Mon", "Mar.", "ext.", "AM",
    "FLOWERS", "800", "401k", "tsp",
    "x", "\"", "in", "ft", "code", "911", "Ave", "NW", "Mon", "max.",
    "et al.", "->", "[a](/b)", "[^1]", "* 3", "USD", "UTC", "&&", ".", "K8s", "10/10", "'09",
    "1080p", "$", "\\(", "\\)", "\\frac", "\\text", "\\int", "{", "}", "^", "_",
    "\u0301", "\u200d", "🙂", "ﬁ", "½", "²", "°", "日", "\ud800",
    "\x00", "<|sfx:cough|>", "<|", "<b>", "</b>", "<br/>", "<a x='1' ", "<!--", "-->", "&eacute;",
    "&#769;", "&amp;", "http://", "user:pw@", "localhost", ":80", "[::1]", "10.0.0.1",
]  # fmt: skip
WRITTEN = st.one_of(
    st.text(max_size=60),
    st.text(string.printable, max_size=60),
    st.text("0123456789.,:-/$%+() 'stndrhpkm", max_size=40),
    st.lists(st.sampled_from(_PIECES), max_size=8).map("".join),
    st.lists(st.sampled_from(_PIECES), max_size=8).map(" ".join),
)
#: Costly text: nothing to speak, numbers, unclosed markup, dots that may not end a sentence.
UNITS = (
    '"', "#1 ", "1,", "A ", "No. ", "@", "1-", "<|", "e.g. ", "$1 ", "[a](", "a@a.", "1/",
    "Sat. N", "(1", "\u200d", "http://", "<b ", "&#", "St. ", "1:", "I ", "\n- ", "''", "% ",
    "±1", "+1", "≥",
)  # fmt: skip
UNIT = st.one_of(st.sampled_from(UNITS), st.text(min_size=1, max_size=6))
