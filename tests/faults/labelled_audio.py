"""Fake engines with traceable audio: codes are labels of context and frame, samples hold codes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from loadtest.fakes.codec import FakeDecoder
from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from streaming.ports import SpeechRequest, TalkerSpec
from streaming.spec import CodecSpec, Codes, Samples

#: How a LiteralDecoder divides the 15 bits of a sample: 2 ** 10 codes, 2 ** 5 positions.
_CODES, _PLACES = 1 << 10, 1 << 5
#: No text of a test is cut off.
_SPEC = replace(FAKE_SPEC, max_frames=1 << 20)


@dataclass(kw_only=True, eq=False)
class LabelTalker(FakeTalker):
    """A fake talker whose frames identify their context and position: see ``labelled``.

    The numbers in an utterance's text are the voice (a label of the context), the part and the
    number of frames. A text with fewer than three numbers is spoken as by a FakeTalker.
    """

    spec: TalkerSpec = _SPEC

    def frames_of(self, request: SpeechRequest, before: str = "") -> Codes:
        """See FakeTalker."""
        numbers = [int(number) for number in re.findall(r"\d+", request.text)]
        if len(numbers) < 3:
            return super().frames_of(request, before)
        voice, part, frames = numbers[:3]
        return labelled(voice, part, frames, self.num_codebooks)


def labelled(voice: int, part: int, frames: int, num_codebooks: int = 8) -> Codes:
    """Codes ``[frames, K]`` of ten bits, with K >= 6.

    A frame has the codes of voice (two), part, frame (two), the sum of these, and zeros.
    """
    index = np.arange(frames)
    codes = np.zeros((frames, num_codebooks), np.int16)
    codes[:, 0], codes[:, 1], codes[:, 2] = voice % 1024, voice // 1024, part
    codes[:, 3], codes[:, 4] = index % 1024, index // 1024
    codes[:, 5] = codes[:, :5].sum(axis=1, dtype=np.int64) % 1024
    return codes


class LiteralDecoder(FakeDecoder):
    """A fake ``CodecDecoder`` whose samples contain the codes.

    A frame's samples repeat its codes: sample ``j`` is code ``j % K`` in the lower ten bits and
    ``j // K + 1``, its position in the frame, in the five above, divided by 32767. So 16-bit audio
    holds it exactly, any K consecutive samples identify context and position, and no sample is
    quiet enough to be dropped as silence.
    """

    def __init__(self, spec: CodecSpec) -> None:
        groups, rest = divmod(spec.hop_length, spec.num_codebooks)
        if rest or groups >= _PLACES or max(spec.codebook_sizes) > _CODES:
            raise ValueError("a frame must be at most 31 times its codes, of ten bits each")
        self._spec = spec

    def _decode(self, codes: Codes, lookahead: int = 0) -> Samples:
        groups = self._spec.hop_length // self._spec.num_codebooks
        places = np.arange(1, groups + 1, dtype=np.float32)[None, :, None] * _CODES
        samples: Samples = (places + codes.T[:, None, :].astype(np.float32)) / np.float32(32767)
        return samples.reshape(-1)
