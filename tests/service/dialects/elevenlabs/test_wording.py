"""ElevenLabs' responses with timestamps, without a gateway."""

from __future__ import annotations

import base64
import json
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from service.dialects.elevenlabs.messages import Aligner
from service.dialects.elevenlabs.timed_bodies import TimedWhole
from streaming.events import Done
from streaming.report import ContextReport
from tests.service.dialects.elevenlabs.talk import TEXT, words_in

DONE = Done("complete", ContextReport(None, None, None, 0.0, 0.0, None, 0.0, 0, 0))


@given(st.lists(st.integers(0, 200), max_size=8))
def test_timed_whole_encodes_base64_in_pieces(sizes: list[int]) -> None:
    """A single call for all audio would block the event loop for most of a second."""
    aligner, same = Aligner(), Aligner()
    wording = TimedWhole(aligner, is_wav=False)
    whole, encode, encoded = bytes(i % 251 for i in range(sum(sizes))), base64.b64encode, [0]

    def noted(data: bytes) -> bytes:
        encoded.append(len(data))
        return encode(data)

    words = words_in(TEXT)
    aligner.append(TEXT)
    same.append(TEXT)
    with patch.object(base64, "b64encode", noted):
        at = 0
        for size in sizes:
            assert wording.audio(whole[at : at + size]) == b""
            at += size
        wording.words(words)
        answer = wording.done(DONE)
    assert max(encoded) <= max([*sizes, 48]) + 2
    times = same.take(words)
    assert times is not None
    alignment = times.in_seconds()
    wanted = {
        "audio_base64": encode(whole).decode(),
        "alignment": alignment,
        "normalized_alignment": alignment,
    }
    assert answer == json.dumps(wanted).encode()
