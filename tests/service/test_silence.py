"""Guards against silence: after an utterance's text, and before its first word."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from service.engines.contracts import Engines
from service.engines.leading_silence import LeadingSilence
from streaming.ports import RowGenerator, SilenceMask, SpeechRequest
from streaming.spec import Samples
from streaming.window import DecodeWindow
from talker.shape import CheckpointError
from tests.service.live import SPEC, client, gateway
from tests.service.scraping import scrape, value

TEXT = "A sentence that is spoken, and then room tone."
GUARDED = replace(FAKE_SPEC, end_silence_s=1.0)
#: So many frames of each utterance are audible.
AUDIBLE = 30


def fall_silent(codec: FakeCodecEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the codec decode silence after an utterance's first frames."""
    decode = codec.decode

    async def quiet(window: DecodeWindow, *more: Any) -> tuple[Samples, Any]:
        samples, stats = await decode(window, *more)
        first = max(0, AUDIBLE - window.first_frame) * SPEC.hop_length
        samples[first:] = 0.0
        return samples, stats

    monkeypatch.setattr(codec, "decode", quiet)


@pytest.mark.parametrize(
    ("spec", "settings", "ends"),
    [
        (GUARDED, {}, True),
        (FAKE_SPEC, {"end_silence_ms": 1000}, True),
        (GUARDED, {"end_silence_ms": 0}, False),
        (FAKE_SPEC, {}, False),
    ],
)
async def test_utterance_that_falls_silent_is_ended_and_counted(
    monkeypatch: pytest.MonkeyPatch, spec: Any, settings: dict[str, Any], ends: bool
) -> None:
    talker = FakeTalker(spec=spec, frames_per_character=30)
    frames = 30 * len(TEXT)
    async with gateway(talker, **settings) as server, client(server.url) as talk:
        fall_silent(server.codec, monkeypatch)
        handle = await talk.create()
        await talk.send("text.append", context_id="c", text=TEXT)
        await talk.send("context.end", context_id="c")
        done = await talk.until("context.done")
        await server.until_free()
        scraped = await scrape(server)
    assert done["reason"] == "complete"
    sent = sum(len(data) for _, data in talk.audio[handle]) / 4 / SPEC.hop_length
    second = round(1 / SPEC.frame_s)
    assert (AUDIBLE + second <= sent < frames / 2) if ends else sent == frames
    assert value(scraped, "tts_utterances_ended_by_silence_total") == float(ends)
    assert value(scraped, "tts_leading_silence_seconds_count", protocol="native") == 1


@dataclass(kw_only=True, eq=False)
class Asked(FakeTalker):
    """Keeps its requests' masks."""

    masks: list[SilenceMask | None] = field(default_factory=list)

    def generate(self, request: SpeechRequest) -> RowGenerator:
        self.masks.append(request.mask)
        return super().generate(request)


@pytest.mark.parametrize("frames", [0, 3])
async def test_requests_have_mask_of_encoded_silence(frames: int) -> None:
    talker = Asked(spec=replace(FAKE_SPEC, masks_codes=True))
    async with gateway(talker, mask_silence_frames=frames) as server, client(server.url) as talk:
        talker.masks.clear()  # of the warm-up
        zeros = await server.codec.encode(np.zeros(SPEC.hop_length, np.float32))
        await talk.create()
        await talk.send("text.append", context_id="c", text="Hello there.")
        await talk.send("context.end", context_id="c")
        await talk.until("context.done")
    (mask,) = talker.masks
    if not frames:
        assert mask is None
        return
    assert mask is not None
    assert mask.frames == 3
    assert int(zeros.codes[0, 0]) in mask.codes
    assert 1 < len(set(mask.codes)) == len(mask.codes) <= SPEC.codebook_sizes[0] / 4


@pytest.mark.parametrize(
    ("masks", "encodes", "told"), [(False, True, "this talker"), (True, False, "this codec")]
)
async def test_mask_is_refused_where_it_is_impossible(
    masks: bool, encodes: bool, told: str
) -> None:
    codec = FakeCodecEngine(SPEC)
    codec.can_encode = encodes
    engines = Engines(FakeTalker(spec=replace(FAKE_SPEC, masks_codes=masks)), codec)
    with pytest.raises(CheckpointError, match=f"mask_silence_frames: {told}"):
        await LeadingSilence().learn(engines)
