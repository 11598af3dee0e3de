"""Which of some sentences was spoken: told by a recogniser, so that no dialect can fake it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from embedded.evaluation import recogniser
from embedded.evaluation.metrics import letter_error_rate
from tests.e2e.sentences import SENTENCES
from tests.official.turns import TURN

#: Between what misheard speech of a text reaches (.4) and the best of other speech (.65).
_FAR = 0.58


class Ears(recogniser.Recogniser):
    """Hears audio, and tells which text it speaks.

    A small voice is misheard now and then, but then by a letter or a word that sounds alike.
    """

    def words(self, pcm: bytes | npt.NDArray[np.float32], rate: int = 24_000) -> str:
        """The words in mono audio: s16le bytes, or float samples [N] from -1 to 1."""
        if isinstance(pcm, bytes):
            pcm = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
        return self.hear([pcm], rate)[0]

    def which(
        self,
        pcm: bytes | npt.NDArray[np.float32],
        rate: int = 24_000,
        among: Sequence[str] = (*SENTENCES, TURN),
    ) -> str:
        """The text among ``among`` that is heard; says what was heard if it is none of them."""
        heard = self.words(pcm, rate)
        nearest = min(among, key=lambda text: letter_error_rate(text, heard))
        far = letter_error_rate(nearest, heard) > _FAR
        return f"nothing known, but: {heard!r}" if far else nearest
