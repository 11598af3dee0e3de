"""Speech of the real talker on vLLM and the real codec, over the native WebSocket."""

from __future__ import annotations

import asyncio
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming.spec import Samples
from talkwire_client import ChunkingOptions, Client, SyncClient
from tests.e2e.live import Service
from tests.e2e.sentences import SENTENCES
from training.evaluation.metrics import intelligibility, letter_error_rate
from training.evaluation.recogniser import Recogniser

THREE = SENTENCES[:3]
RECEPTIVE_FIELD = 10
RATE = 24_000


def test_chunked_speech_is_as_intelligible_as_whole_speech(
    speaking: Service, ears: Recogniser, tmp_path: Path
) -> None:
    heard: dict[str, list[str]] = {"chunked": [], "whole": []}
    for mode, words in heard.items():
        for number, sentence in enumerate(THREE):
            out = tmp_path / f"{mode}{number}.wav"
            figures = speaking.say(sentence, out, "--mode", mode, "--temperature", "0")
            assert figures["audio_s"] > 1
            words += ears.hear([samples(out)], RATE)
    streamed, one_shot = (intelligibility(THREE, heard[mode]).word_error_rate for mode in heard)
    assert streamed <= 0.5, heard["chunked"]  # a random guess of as many words is near 1
    assert streamed <= one_shot + 0.1, heard


def test_recogniser_understands_neither_reversed_speech_nor_silence(
    speaking: Service, ears: Recogniser, tmp_path: Path
) -> None:
    """The recogniser distinguishes speech from other audio and has no memory between clips."""
    speaking.say(THREE[1], tmp_path / "said.wav", "--temperature", "0")
    said = samples(tmp_path / "said.wav")
    heard = ears.hear([said, said[::-1], np.zeros(RATE, np.float32), said], RATE)
    rates = [letter_error_rate(THREE[1], words) for words in heard]
    assert rates[0] < 0.4 < 0.6 < min(rates[1], rates[2]), heard
    assert heard[3] == heard[0]


def spoken(speaking: Service, text: str, **options: Any) -> tuple[np.ndarray, int]:
    """16-bit samples and number of chunks over the native WebSocket."""
    with SyncClient(speaking.url) as client, client.speak(text, **options) as speech:
        chunks = [chunk.data for chunk in speech]
    return np.frombuffer(b"".join(chunks), "<i2").astype(np.float64), len(chunks)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_streamed_audio_with_full_lookahead_equals_whole_audio(
    speaking: Service, temperature: float
) -> None:
    text = "The quick brown fox jumps over the lazy dog. Then it sleeps, and dreams of hens."
    sampling: dict[str, Any] = {"temperature": temperature, "seed": 7}
    # Limits on chunks, whose size otherwise depends on the machine's speed.
    exact = ChunkingOptions(
        first_chunk_frames=12,
        max_chunk_frames=12,
        first_lookahead_frames=RECEPTIVE_FIELD,
        lookahead_frames=RECEPTIVE_FIELD,
    )
    streamed, chunks = spoken(speaking, text, chunking=exact, **sampling)
    whole, pieces = spoken(speaking, text, mode="whole", **sampling)
    assert pieces == 6, "two sentences, the pause between them, and the end of each when stretched"
    assert chunks > 4
    assert np.array_equal(streamed, whole)


def test_embedded_voice_chunks_equal_whole_audio_without_lookahead(speaking: Service) -> None:
    """The embedded voice's decoder is causal and needs no lookahead."""
    text = "The quick brown fox jumps over the lazy dog near the river bank."
    small = ChunkingOptions(first_chunk_frames=12, max_chunk_frames=12)
    got, chunks = spoken(speaking, text, temperature=0.0, chunking=small)
    want, _ = spoken(speaking, text, temperature=0.0, mode="whole")
    assert chunks > 2
    assert np.array_equal(got, want)


def samples(path: Path) -> Samples:
    """The samples of a file, from -1 to 1."""
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getsampwidth(), file.getnchannels()) == (RATE, 2, 1)
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return (pcm / 32768).astype(np.float32)


async def test_concurrent_contexts_equal_sequential_contexts(speaking: Service) -> None:
    options: dict[str, Any] = {
        "temperature": 0.7,
        "seed": 3,
        "chunking": ChunkingOptions(lookahead_frames=RECEPTIVE_FIELD),
        "max_lead_ms": 100_000,
    }
    texts = [f"This is voice number {word}." for word in ("one", "two", "three", "four")]

    async def speak(client: Client, text: str) -> bytes:
        async with client.speak(text, **options) as speech:
            return await speech.read()

    async with Client(speaking.url) as client:
        alone = [await speak(client, text) for text in texts]
        together = await asyncio.gather(*(speak(client, text) for text in texts))
    assert all(len(pcm) > 24_000 for pcm in alone)
    assert together == alone
