"""The commands of the upstream serving guides, unchanged, against the embedded voice.

``upstream_commands.txt`` holds them. curl's configuration redirects their addresses to the
service. Like the upstream servers, it serves the model by the guides' name, answers with WAV by
default and has the guides' clips in its folder of references.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import requests

from tests.e2e.live import Service, service

pytestmark = pytest.mark.long
COMMANDS = Path(__file__).with_name("upstream_commands.txt")
MODEL = "bosonai/higgs-audio-v3-tts-4b"
CLIPS = ("male-voice.wav", "female-voice.wav", "ref_voice.wav")
BLOCK = re.compile(r"^## (.+) -> (.+)\n((?:.+\n)+)", re.MULTILINE)
#: Shorter than any spoken word.
LEAST_S = 0.3


def blocks() -> list[tuple[str, str, str]]:
    """The name, outcome and text of each command."""
    return BLOCK.findall(COMMANDS.read_text())


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of a voice-like tone, as a reference."""
    file = tmp_path_factory.mktemp("clip") / "voice_sample.wav"
    at = np.arange(48_000) / 24_000
    tone = np.sum([np.sin(2 * np.pi * 120 * n * at) / n for n in range(1, 12)], 0)
    with wave.open(str(file), "wb") as written:
        written.setparams((1, 2, 24_000, 0, "NONE", ""))
        written.writeframes((6_000 * tone).astype("<i2").tobytes())
    return file


@pytest.fixture(scope="module")
def upstream(clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("references")
    (folder / "docs" / "_static" / "audio").mkdir(parents=True)
    for name in CLIPS:
        shutil.copy(clip, folder / "docs" / "_static" / "audio" / name)
    with service(
        TALKWIRE_SERVED_MODEL_NAMES=MODEL,
        TALKWIRE_DEFAULT_RESPONSE_FORMAT="wav",
        TALKWIRE_REFERENCES_DIR=str(folder),
    ) as running:
        yield running


def run(upstream: Service, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    here = f"127.0.0.1:{upstream.port}"
    lines = [f'connect-to = "localhost:{port}:{here}"' for port in (8000, 8091)]
    (folder / ".curlrc").write_text("\n".join([*lines, "silent", "max-time = 240", ""]))
    return subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=os.environ | {"CURL_HOME": str(folder), "no_proxy": "*"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def assert_is_speech(pcm: bytes, rate: int) -> None:
    samples = np.frombuffer(pcm, "<i2").astype(np.float64)
    assert len(samples) > LEAST_S * rate
    assert np.sqrt(np.mean(samples**2)) > 100, "it is silent"


def assert_is_wav(file: Path) -> None:
    with wave.open(str(file)) as heard:
        assert (heard.getnchannels(), heard.getsampwidth()) == (1, 2)
        assert_is_speech(heard.readframes(1 << 30), heard.getframerate())


def test_upstream_commands_have_documented_outcome(
    upstream: Service, clip: Path, tmp_path: Path
) -> None:
    """The commands run in order, since some depend on the results of others."""
    done = 0
    for name, outcome, command in blocks():
        stands_for = command.replace("/path/to/voice_sample.wav", str(clip))
        for old in tmp_path.glob("*.*"):
            old.unlink()
        ran = run(upstream, stands_for, tmp_path)
        assert ran.returncode == 0, (name, ran.stderr)
        written = [file for file in tmp_path.iterdir() if file.name != ".curlrc"]
        kind, _, what = outcome.partition(" ")
        if kind == "json":
            assert what in json.loads(ran.stdout), (name, ran.stdout)
        elif kind == "error":
            told = written[0].read_text() if written else ran.stdout
            error = json.loads(told)["error"]
            assert error["code"] == what, (name, error)
        elif outcome.endswith(".pcm"):
            assert_is_speech((tmp_path / outcome).read_bytes(), 24_000)
        else:
            assert_is_wav(tmp_path / outcome)
        done += 1
    assert done == COMMANDS.read_text().count("\n## ")


def test_upstream_cookbook_client_streams_pcm_with_sample_rate(
    upstream: Service,
) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "voice": "default",
        "input": "Get the trust fund to the bank early.",
        "references": [{"audio_path": f"docs/_static/audio/{CLIPS[0]}", "text": "Hey, Adam here."}],
        "stream": True,
        "response_format": "pcm",
    }
    url = f"http://127.0.0.1:{upstream.port}/v1/audio/speech"
    with requests.post(url, json=body, stream=True, timeout=240) as answer:
        answer.raise_for_status()
        assert answer.headers["content-type"] == "audio/pcm"
        rate = int(answer.headers["x-sample-rate"])
        assert rate == 24_000
        assert_is_speech(b"".join(answer.iter_content(chunk_size=None)), rate)


def test_upstream_openai_client_writes_wav_file(upstream: Service, tmp_path: Path) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{upstream.port}/v1", api_key="EMPTY") as client:
        spoken = client.audio.speech.create(
            model=MODEL, voice="default", input="Hello, how are you?", response_format="wav"
        )
        spoken.write_to_file(tmp_path / "output.wav")
    assert_is_wav(tmp_path / "output.wav")
