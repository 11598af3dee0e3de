"""Texts for agents to speak."""

from __future__ import annotations

import re

from tests.e2e.sentences import SENTENCES

ONE, OTHER = SENTENCES[2], SENTENCES[8]
#: A voice that any server refuses: the id of a deleted stored voice.
GONE = "voice_0123456789abcdef"
#: Both sentences, capitalised because the frameworks split sentences by capitals too.
TURN = f"{ONE.capitalize()} {OTHER.capitalize()}"
#: Long enough to be interrupted.
LONG = " ".join(sentence.capitalize() for sentence in SENTENCES)


def tokens(text: str) -> list[str]:
    """Split a text into pieces like the tokens of an LLM."""
    return re.findall(r"\s*\S{1,4}", text)
