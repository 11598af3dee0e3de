"""Recognition of the spoken sentence, so that tests check the speech itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.e2e.sentences import SENTENCES
from tests.official.turns import TURN
from training.evaluation import recogniser
from training.evaluation.metrics import letter_error_rate

#: Threshold of the letter error rate: misheard speech of a text reaches .4, other speech at best
#: .65.
_FAR = 0.58


class Ears(recogniser.Recogniser):
    """A recogniser that finds which of some texts is spoken.

    The embedded voice is sometimes misheard, but only by a letter or a similar word.
    """

    def words(self, pcm: bytes | npt.NDArray[np.float32], rate: int = 24_000) -> str:
        """The words in mono audio: s16le bytes, or float samples [N] from -1 to 1."""
        if isinstance(pcm, bytes):
            pcm = (np.frombuffer(pcm, "<i2") / 32768).astype(np.float32)
        return self.hear([pcm], rate)[0]

    def which(
        self,
        pcm: bytes | npt.NDArray[np.float32],
        rate: int = 24_000,
        among: Sequence[str] = (*SENTENCES, TURN),
    ) -> str:
        """The text of ``among`` that is spoken, or a message with the words if none is."""
        heard = self.words(pcm, rate)
        nearest = min(among, key=lambda text: letter_error_rate(text, heard))
        far = letter_error_rate(nearest, heard) > _FAR
        return f"nothing known, but: {heard!r}" if far else nearest
