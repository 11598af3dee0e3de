"""The synchronous client hears what the command line's asynchronous one does."""

from __future__ import annotations

import wave
from pathlib import Path

from clients.sync import SyncClient
from streaming import wire
from tests.e2e.live import Service

TEXT = "The quick brown fox jumps over the lazy dog."


def test_it_hears_what_the_other_client_hears(speaking: Service, tmp_path: Path) -> None:
    out = tmp_path / "other.wav"
    speaking.say(TEXT, out, "--temperature", "0.7", "--seed", "7", "--mode", "whole")
    with wave.open(str(out)) as file:
        wanted = file.readframes(file.getnframes())
    sampling = wire.SamplingOptions(temperature=0.7, seed=7)
    with SyncClient.connect(speaking.url) as client:
        words = (f"{word} " for word in TEXT.split())
        heard = b"".join(c.pcm for c in client.speak(words, sampling=sampling, mode="whole"))
        assert heard == wanted

        with client.context() as context:
            context.append(TEXT * 5)
            context.end()
            next(iter(context))
            told = context.cancel()
        assert told is not None
        assert told.text_spoken + told.text_remaining == TEXT * 5
    speaking.until("nothing is left", "tts_contexts_active ", 0)
