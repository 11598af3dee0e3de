"""The codes with which a talker begins in silence, as the codec has them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.engines.contracts import Engines
from talker.shape import CheckpointError

#: Levels of the noise that counts as silence, beside digital silence: -60 and -50 dBFS.
_LEVELS = (0.0, 0.001, 0.003)
#: Seconds of it that are encoded at each level.
_SECONDS = 1.0
#: At most this share of the first codebook is silence. The most frequent codes are.
_MAX_SHARE = 1 / 4


@dataclass(slots=True)
class LeadingSilence:
    """The first codebook's ``codes`` that no utterance may begin with."""

    codes: tuple[int, ...] = ()

    async def learn(self, engines: Engines) -> None:
        """Encode silence and faint noise. Raises CheckpointError if the talker cannot leave codes
        out, or the codec cannot encode.
        """
        if not engines.talker.spec.masks_codes:
            raise CheckpointError("mask_silence_frames: this talker cannot leave out codes")
        if not engines.codec.can_encode:
            raise CheckpointError("mask_silence_frames: this codec cannot encode silence")
        spec = engines.codec.spec
        dice = np.random.default_rng(0)
        found = np.zeros(spec.codebook_sizes[0], np.int64)
        for level in _LEVELS:
            noise = dice.uniform(-level, level, round(_SECONDS * spec.sample_rate))
            codes = (await engines.codec.encode(noise.astype(np.float32))).codes[0]
            found += np.bincount(codes, minlength=len(found))
        most = np.argsort(-found, kind="stable")[: max(1, int(_MAX_SHARE * len(found)))]
        self.codes = tuple(int(code) for code in most if found[code])
