"""Qwen3-TTS' prompts against its makers' package: the inputs of each position.

Both load one tiny checkpoint. The makers' code, which also tokenises, runs in a child process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from codec.families import open_speaker_encoder
from talker.checkpoint import open_checkpoint
from talker.prompts import Prompt, ReferenceVoice
from tests.codec.speaker_clips import voiced
from tests.talker import tiny_qwen3_tts as tiny_qwen
from tests.talker.qwen3_tts_oracle import Qwen3TTSReference

_INSTALLED = Path(__file__).parents[2] / ".venv-reference"
TEXT = "hello world, it is 3: the end."
SAID = "It was the hello world, or 7 of them!"
CALM, SECRET = "Calm, like a friend.", "Whisper.\n\nIt is a secret!"
#: Arguments of the makers' wrapper, and our names of the language.
CUSTOM_VOICE: list[dict[str, Any]] = [
    {"speaker": speaker, "language": language, "instruct": instruct}
    for speaker in ("ryan", "eric")
    for language in ("auto", "english", "chinese")
    for instruct in (None, CALM, SECRET)
]
VOICE_DESIGN: list[dict[str, Any]] = [
    {"language": language, "instruct": instruct}
    for language in ("auto", "english")
    for instruct in (CALM, SECRET)
]
#: With a transcript, and as a vector alone, which ignores it.
BASE: list[dict[str, Any]] = [
    {"language": language, "ref_text": said, "x_vector_only_mode": is_bare}
    for language in ("auto", "english")
    for said, is_bare in ((None, True), (SAID, True), (SAID, False))
]
LANGUAGES = {"auto": None, "english": "en", "chinese": "zh"}


def prompts_of_makers(folder: Path, requests: list[dict[str, Any]]) -> list[np.ndarray]:
    """What the makers' talker is given, for each request."""
    inputs, outputs = folder / "requests.json", folder / "outputs.npz"
    inputs.write_text(json.dumps([{"text": TEXT, **request} for request in requests]))
    program = Path(__file__).with_name("qwen3_tts_prompt_child.py")
    child = subprocess.run(
        [sys.executable, program, _INSTALLED, folder, inputs, outputs],
        env=os.environ | {"PYTHONPATH": str(_INSTALLED), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    made = np.load(outputs)
    return [made[str(at)] for at in range(len(requests))]


@pytest.mark.parametrize(
    ("kind", "size", "requests"),
    [
        ("custom_voice", "1b7", CUSTOM_VOICE),
        ("custom_voice", "0b6", CUSTOM_VOICE[:3]),
        ("voice_design", "1b7", VOICE_DESIGN),
    ],
)
def test_qwen3_tts_prompt_equals_makers(
    tmp_path: Path, kind: str, size: str, requests: list[dict[str, Any]]
) -> None:
    """The small model's makers drop instructions, which this project refuses."""
    folder = tiny_qwen.write_checkpoint(tmp_path, kind=kind, size=size)
    opened = open_checkpoint(str(folder))
    builder, oracle = opened.prompt_builder(1024), Qwen3TTSReference(folder)
    prompts = prompts_of_makers(folder, requests)
    for request, theirs in zip(requests, prompts, strict=True):
        prompt = builder.build(
            TEXT,
            speaker=request.get("speaker"),
            language=LANGUAGES[request["language"]],
            instructions=request["instruct"] if builder.takes_instructions else None,
        )
        check(inputs_of(folder, oracle, prompt), theirs, request)


@pytest.mark.parametrize("width", [64, 48])
def test_qwen3_tts_clone_prompt_equals_makers(tmp_path: Path, width: int) -> None:
    """Their vector of the clip is made by their speaker encoder, ours by ours."""
    folder = tiny_qwen.write_checkpoint(tmp_path, kind="base", width=width)
    builder, oracle = open_checkpoint(str(folder)).prompt_builder(1024), Qwen3TTSReference(folder)
    samples = voiced(140, 1, 1.1)
    dice = np.random.default_rng(0)
    codes = dice.integers(0, tiny_qwen.CODES, (14, tiny_qwen.BOOKS)).astype(np.int16)
    np.savez(folder / "clip.npz", samples=samples, codes=codes)
    encoder = open_speaker_encoder(str(folder))
    assert encoder is not None
    vector = encoder.encode(samples)
    for request, theirs in zip(BASE, prompts_of_makers(folder, BASE), strict=True):
        said = None if request["x_vector_only_mode"] else request["ref_text"]
        voice = ReferenceVoice(codes, said, vector)
        prompt = builder.build(TEXT, voice, language=LANGUAGES[request["language"]])
        assert len(prompt.clips) == (said is not None)
        check(inputs_of(folder, oracle, prompt), theirs, request)


def inputs_of(folder: Path, oracle: Qwen3TTSReference, prompt: Prompt) -> np.ndarray:
    """The input of each position, ``[N, D]``."""
    config = json.loads((folder / "config.json").read_text())
    talker, pad = config["talker_config"], config["tts_pad_token_id"]
    codec = {0: None, 1: talker["codec_pad_id"], 2: talker["codec_bos_id"]}
    places: list[Any] = [
        (pad, i & 0x3FFFF) if i >> 18 == 3 else (i & 0x3FFFF, codec[i >> 18]) for i in prompt.ids
    ]
    for vector, at in prompt.vectors:
        places[at] = (pad, vector)
    for rows, at in prompt.clips:
        places[at : at + len(rows)] = [(pad, row) for row in rows]
    return torch.stack([oracle._embed(*place) for place in places]).numpy()


def check(own: np.ndarray, theirs: np.ndarray, request: dict[str, Any]) -> None:
    assert own.shape == theirs.shape, request
    assert np.abs(own - theirs).max() < 1e-5 * theirs.std(), request
