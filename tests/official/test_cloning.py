"""Voices that the vendors' Python clients add: with consent where they have a place for it.

The service is the gateway with fake engines, whose codec has an encoder; the embedded voice's has
none.
"""

from __future__ import annotations

import io
import re
import subprocess
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cartesia
import pytest
from cartesia import Cartesia
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from openai import OpenAI

ROOT = Path(__file__).resolve().parents[2]
CONSENT = {"consent_by": "Anna", "consent_statement": "My voice may speak here."}


def clip() -> bytes:
    """Two seconds of a square wave as WAV."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 24_000, 0, "NONE", ""))
        out.writeframes((b"\x00\x20" * 60 + b"\x00\xe0" * 60) * 400)
    return file.getvalue()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    program = [str(ROOT / ".venv/bin/python"), "-m", "loadtest.fake_server"]
    with subprocess.Popen(program, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = re.search(r"127\.0\.0\.1:\d+", process.stderr.readline())
            assert found is not None
            yield f"http://{found[0]}"
        finally:
            process.terminate()


def test_elevenlabs_client_adds_voice_with_consent_in_labels(address: str) -> None:
    client = ElevenLabs(base_url=address, api_key="any")
    with pytest.raises(ApiError) as refused:
        client.voices.ivc.create(name="Anna", files=[clip()])
    body: Any = refused.value.body
    assert (refused.value.status_code, body["detail"]["code"]) == (400, "consent_required")
    assert "labels={" in body["detail"]["message"]
    made = client.voices.ivc.create(name="Anna", files=[clip()], labels=CONSENT)
    assert client.voices.get(made.voice_id).name == "Anna"
    assert b"".join(client.text_to_speech.convert(made.voice_id, text="Hello there."))
    client.voices.delete(made.voice_id)
    assert made.voice_id not in [voice.voice_id for voice in client.voices.get_all().voices]


def test_cartesia_client_adds_voice_with_consent_in_extra_body(address: str) -> None:
    with Cartesia(api_key="any", base_url=address, max_retries=0) as client:
        assert client.get_status().ok
        with pytest.raises(cartesia.BadRequestError) as refused:
            client.voices.clone(clip=clip(), name="Ben", language="en")
        body: Any = refused.value.body
        assert body["error_code"] == "consent_required"
        assert "extra_body={" in body["message"]
        made = client.voices.clone(clip=clip(), name="Ben", language="en", extra_body=CONSENT)
        assert made.name == "Ben"
        assert client.voices.get(made.id).id == made.id
        client.voices.delete(made.id)
        assert made.id not in [voice.id for voice in client.voices.list()]


def test_openai_client_adds_voice_with_consent_in_extra_body(address: str) -> None:
    with OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
        made = client.audio.voices.create(
            name="Carl", audio_sample=("clip.wav", clip()), consent="", extra_body=CONSENT
        )
        assert made.name == "Carl"
