"""The text front ends that checkpoints may name.

Their rules are imported with the first text, since compiling them takes a quarter of a second.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from text.front_end import FrontEnd

if TYPE_CHECKING:
    from text.reader import Normalised

#: An utterance is split by its length in words, checked and made into a prompt in quick succession.
#: With this cache it is read only once for all of these.
_KEPT = 64


@functools.lru_cache(_KEPT)
def _words(text: str) -> Normalised:
    from text.english.normaliser import ended, normalise

    return ended(normalise(text))


@functools.lru_cache(_KEPT)
def _sounds(text: str) -> Normalised:
    from text.english.normaliser import ended
    from text.english.sounds import sounds

    return ended(sounds(text))


@functools.lru_cache(_KEPT)
def _signs_of(ipa: str) -> tuple[str, ...] | None:
    from text.english.phonemes import signs_of

    return signs_of(ipa)


#: By the name in generation_config.json (``text_frontend``): one writes words, the other their
#: sounds.
FRONT_ENDS = {
    "english": FrontEnd(_words, languages=("en",)),
    "english-sounds": FrontEnd(_sounds, _signs_of, ("en",)),
}
