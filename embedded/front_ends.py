"""The text front ends that checkpoints may name, by their names."""

from __future__ import annotations

import functools

from embedded.pronunciation import sounds
from embedded.text import normalise

#: An utterance is parted by its length in words, checked and made into a prompt, one right after
#: the other: it is read once for all of these.
_KEPT = 64
#: As generation_config.json names them (``text_frontend``): one that writes words, and one that
#: writes how these sound.
FRONT_ENDS = {
    "english": functools.lru_cache(_KEPT)(normalise),
    "english-sounds": functools.lru_cache(_KEPT)(sounds),
}
