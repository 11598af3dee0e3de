"""The synchronous client with the real service."""

from __future__ import annotations

import wave
from pathlib import Path

from talkwire_client import SyncClient
from tests.e2e.live import Service

TEXT = "The quick brown fox jumps over the lazy dog."


def test_sync_client_gets_audio_of_async_client_and_cancels(
    speaking: Service, tmp_path: Path
) -> None:
    out = tmp_path / "other.wav"
    speaking.say(TEXT, out, "--temperature", "0.7", "--seed", "7", "--mode", "whole")
    with wave.open(str(out)) as file:
        wanted = file.readframes(file.getnframes())
    with SyncClient(speaking.url) as client:
        words = (f"{word} " for word in TEXT.split())
        with client.speak(words, temperature=0.7, seed=7, mode="whole") as speech:
            assert speech.read() == wanted

        with client.speak() as speech:
            speech.append(TEXT * 5)
            speech.end()
            next(iter(speech))
            told = speech.cancel()
        assert told is not None
        assert told.text_spoken + told.text_remaining == TEXT * 5
    speaking.until("nothing is left", "tts_contexts_active ", 0)
