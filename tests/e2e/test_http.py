"""The real service with OpenAI's client, compared with the native protocol."""

from __future__ import annotations

import base64
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import openai

from tests.e2e.live import Service
from tests.service.audio.listening import PADDING, decoded, likeness

TEXT = "The quick brown fox jumps over the lazy dog. Then it sleeps, and dreams of hens."
#: Decoded in one piece, so that no seam depends on the machine's speed.
SAME: dict[str, Any] = {"seed": 7, "temperature": 0.7, "mode": "whole"}


def test_openai_client_gets_native_audio_in_each_format(speaking: Service, tmp_path: Path) -> None:
    out = tmp_path / "native.wav"
    sampling = ("--temperature", "0.7", "--seed", "7")
    speaking.say(TEXT, out, *sampling, "--mode", "whole")
    with wave.open(str(out)) as file:
        native = file.readframes(file.getnframes())
    want = np.frombuffer(native, "<i2").astype(np.float32) / 32767
    with openai.OpenAI(base_url=f"http://127.0.0.1:{speaking.port}/v1", api_key="any") as api:

        def speak(name: Any) -> bytes:
            return api.audio.speech.create(
                model="tts-1", voice="alloy", input=TEXT, response_format=name, extra_body=SAME
            ).content

        assert speak("pcm") == native
        for lossless in ("wav", "flac"):
            assert np.max(np.abs(decoded(speak(lossless))[0] - want)) < 1e-4
        for lossy in ("mp3", "opus", "aac"):
            got, _ = decoded(speak(lossy))
            assert 0 <= len(got) - len(want) <= PADDING
            assert likeness(got, want) > 0.9, lossy
        assert likeness(want[::-1], want) < 0.5


def test_openai_events_stream_during_generation(speaking: Service) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{speaking.port}/v1", api_key="any") as api:
        request = api.audio.speech.with_streaming_response.create(
            model="gpt-4o-mini-tts",
            voice="nova",
            input=TEXT * 4,  # which is spoken for seconds
            response_format="pcm",
            stream_format="sse",
        )
        with request as answer:
            lines = answer.iter_lines()
            first = json.loads(next(lines).removeprefix("data: "))
            assert speaking.metric("tts_contexts_active ") == 1
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    audio = b"".join(base64.b64decode(event["audio"]) for event in (first, *events[:-1]))
    assert events[-1]["type"] == "speech.audio.done"
    assert len(audio) > 2 * 24_000
    speaking.until("the place is free", "tts_contexts_active ", 0)
