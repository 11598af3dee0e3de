"""Encodings of the native protocol with real speech, compared with float PCM."""

from __future__ import annotations

import struct
from statistics import fmean

import av
import numpy as np
import pytest
import soxr

from service.audio.encoder import audio_frame
from streaming.spec import Encoding, Samples
from talkwire_client import Client
from tests.e2e.live import Service
from tests.e2e.sentences import SENTENCES
from tests.service.audio.audio_signal import spectrum_error_db
from training.evaluation.metrics import letter_error_rate
from training.evaluation.recogniser import Recogniser

RATE, CLOCK = 24_000, 48_000
#: Opus' default in docs/reference/protocol.md, in bits per second.
BIT_RATE = 48_000


async def spoken(service: Service, text: str, encoding: Encoding) -> list[bytes]:
    async with (
        Client(service.url) as client,
        client.speak(text, encoding=encoding, temperature=0) as speech,
    ):
        return [chunk.data async for chunk in speech]


def decoded(codec: str, rate: int, packets: list[bytes]) -> Samples:
    """The samples at ``rate``, decoded by ffmpeg."""
    decoder = av.AudioCodecContext.create(codec, "r")
    assert isinstance(decoder, av.AudioCodecContext)
    decoder.sample_rate, decoder.layout = rate, "mono"
    if codec == "opus":
        decoder.extradata = struct.pack("<8sBBHIHB", b"OpusHead", 1, 1, 0, CLOCK, 0, 0)
    frames = [frame for packet in packets for frame in decoder.decode(av.Packet(packet))]
    whole = np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])
    return (whole / (32768 if whole.dtype == np.int16 else 1)).astype(np.float32)


def encoded_at_once(samples: Samples) -> list[bytes]:
    """The packets that ffmpeg makes of all ``samples`` with its own libopus."""
    encoder = av.AudioCodecContext.create("libopus", "w")
    encoder.sample_rate, encoder.layout, encoder.format = RATE, "mono", "flt"
    encoder.bit_rate, encoder.options = BIT_RATE, {"application": "audio"}
    samples = np.pad(samples, (0, -len(samples) % 480 + 480))
    frames = [audio_frame(part, RATE, 480 * i) for i, part in enumerate(samples.reshape(-1, 480))]
    return [bytes(packet) for frame in [*frames, None] for packet in encoder.encode(frame)]


def correlation(one: Samples, other: Samples) -> float:
    return float(np.corrcoef(one, other)[0, 1])


@pytest.mark.long
async def test_opus_and_mulaw_match_pcm_in_signal_and_words(
    speaking: Service, ears: Recogniser
) -> None:
    heard: dict[str, list[str]] = {"pcm": [], "opus": [], "pcm_mulaw": []}
    for text in SENTENCES[:3]:
        pcm = b"".join(await spoken(speaking, text, Encoding.PCM_F32LE))
        wanted = np.frombuffer(pcm, "<f4")
        opus = decoded("opus", CLOCK, await spoken(speaking, text, Encoding.OPUS))
        mulaw = decoded("pcm_mulaw", 8000, await spoken(speaking, text, Encoding.PCM_MULAW))
        opus = opus[312:][: 2 * len(wanted)]
        at_once = decoded("opus", CLOCK, encoded_at_once(wanted))[312:][: 2 * len(wanted)]
        assert len(opus) == len(at_once) == 2 * len(wanted)
        assert abs(len(mulaw) - len(wanted) / 3) <= 1
        at_48000 = soxr.resample(wanted, RATE, CLOCK)
        # How much Opus keeps of a voice depends on the voice, and a little on libopus' version.
        assert correlation(at_48000, opus) > correlation(at_48000, at_once) - 0.003
        at_8000 = soxr.resample(wanted, RATE, 8000)
        assert spectrum_error_db(at_8000, mulaw, 8000, 3400) < -25
        for name, samples, rate in [
            ("pcm", wanted, RATE),
            ("opus", opus, CLOCK),
            ("pcm_mulaw", mulaw, 8000),
        ]:
            heard[name] += ears.hear([samples], rate)
    errors = {
        name: fmean(map(letter_error_rate, SENTENCES[:3], words)) for name, words in heard.items()
    }
    assert errors["opus"] <= errors["pcm"] + 0.1, heard
    assert errors["pcm_mulaw"] < 0.6, heard  # without the upper octave
    print(errors)  # shown on failure
