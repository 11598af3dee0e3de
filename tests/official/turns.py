"""What agents are made to say in these tests."""

from __future__ import annotations

import re

from tests.e2e.sentences import SENTENCES

ONE, OTHER = SENTENCES[2], SENTENCES[8]
#: A voice that is refused by any server: the id of one that was added here and is gone.
GONE = "voice_0123456789abcdef"
#: Both; a framework finds sentences by their capitals, too.
TURN = f"{ONE.capitalize()} {OTHER.capitalize()}"
#: Long enough to be interrupted.
LONG = " ".join(sentence.capitalize() for sentence in SENTENCES)


def tokens(text: str) -> list[str]:
    """A text in the pieces that an LLM might write."""
    return re.findall(r"\s*\S{1,4}", text)
