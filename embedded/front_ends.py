"""The text front ends that checkpoints may name."""

from __future__ import annotations

import functools

from embedded.pronunciation import sounds
from embedded.text import normalise

#: An utterance is split by its length in words, checked and made into a prompt in quick succession.
#: With this cache it is read only once for all of these.
_KEPT = 64
#: By the name in generation_config.json (``text_frontend``): one writes words, the other their
#: sounds.
FRONT_ENDS = {
    "english": functools.lru_cache(_KEPT)(normalise),
    "english-sounds": functools.lru_cache(_KEPT)(sounds),
}
