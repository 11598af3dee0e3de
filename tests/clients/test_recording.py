"""What the Python client has read: bytes, and a player in notebooks."""

from __future__ import annotations

import base64
import copy
import io
import pickle
import re

import av
import numpy as np
import pytest

from talkwire_client import Client, Encoding, Recording
from talkwire_client import audio as audio_module
from tests.service.live import gateway


def played(recording: Recording) -> tuple[int, np.ndarray]:
    """Decode what the player of a notebook gets: its rate, and its samples as floats."""
    html = recording._repr_html_()
    assert html is not None
    found = re.fullmatch(r'<audio controls src="data:audio/wav;base64,([A-Za-z0-9+/=]+)">', html)
    assert found is not None
    with av.open(io.BytesIO(base64.b64decode(found[1], validate=True)), "r") as file:
        frames = [frame.to_ndarray()[0] for frame in file.decode(audio=0)]
        rate = file.streams.audio[0].rate
    samples = np.concatenate(frames)
    return rate, samples / (1 if samples.dtype == np.float32 else 32768)


@pytest.mark.parametrize("encoding", ["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"])
async def test_read_audio_is_bytes_that_a_notebook_plays(encoding: str) -> None:
    async with gateway() as server, Client(server.url) as client:
        async with client.speak("Hello there, you.", encoding=encoding) as speech:
            heard = await speech.read()
        async with client.speak("Hello there, you.", encoding=encoding) as speech:
            joined = b"".join([chunk.data async for chunk in speech])
    assert isinstance(heard, bytes)
    assert heard == joined
    assert (heard.encoding, heard.sample_rate) == (encoding, speech.sample_rate)
    rate, samples = played(heard)
    assert rate == speech.sample_rate
    width = {"pcm_s16le": 2, "pcm_f32le": 4}.get(encoding, 1)
    assert len(samples) == len(heard) // width
    assert np.abs(samples).max() > 0.01
    if encoding == "pcm_s16le":
        assert (samples * 32768 == np.frombuffer(heard, "<i2")).all()
    assert repr(heard) == f"<Recording: {len(heard)} bytes of {encoding} at {rate} Hz>"


def test_opus_empty_and_long_recordings_are_only_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audio_module, "_MAX_SHOWN_BYTES", 100)
    assert Recording(bytes(100), Encoding.PCM_S16LE, 24_000)._repr_html_() is not None
    assert Recording(bytes(102), Encoding.PCM_S16LE, 24_000)._repr_html_() is None
    assert Recording(b"", Encoding.PCM_S16LE, 0)._repr_html_() is None
    assert Recording(b"\xfc\xff\xfe", Encoding.OPUS, 48_000)._repr_html_() is None


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))]
)
def test_copies_keep_encoding_and_rate(copied: object) -> None:
    made = copied(Recording(b"\1\0", Encoding.PCM_ALAW, 8000))  # type: ignore[operator]
    assert (made, made.encoding, made.sample_rate) == (b"\1\0", Encoding.PCM_ALAW, 8000)
