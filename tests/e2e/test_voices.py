"""Voice cloning on the real service: voices survive restarts and use the prefix cache."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codec.engine import CodecWorkerEngine
from codec.families.higgs.checkpoint import open_higgs
from service.settings import EMBEDDED_MODEL
from service.voices.clip_reader import ClipReader
from service.voices.cloning import Cloner, NewVoice
from service.voices.registry import VoiceLibrary
from service.voices.store import Consent, unpack
from streaming.ports import Sampling, SpeechRequest
from talker.engine import TalkerProcessEngine
from talker.settings import TalkerSettings
from tests.e2e.live import Service, service
from tests.service.voices import clips
from tests.service.voices.voice_server import files_in
from text.registry import FRONT_ENDS

SAID = "Hello there, how are you?"
CONSENT = {"by": "The embedded voice", "statement": "It is nobody's."}
RESTARTS = 'tts_worker_restarts_total{worker="talker"}'
SPEAK = {
    "input": "One two three.", "response_format": "pcm", "mode": "whole", "temperature": 0.7,
    "seed": 5, "max_frames": 60,
}  # fmt: skip


def ask(own: Service, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{own.port}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


def speak(own: Service, **fields: Any) -> bytes:
    status, audio = ask(own, "POST", "/v1/audio/speech", SPEAK | fields)
    assert status == 200, audio
    return audio


@pytest.mark.long
def test_voice_is_identical_after_talker_and_service_restart(tmp_path: Path) -> None:
    folder, clip = tmp_path / "voices", tmp_path / "clip.wav"
    env: dict[str, Any] = {"TALKWIRE_VOICES_DIR": str(folder)}
    with service(**env) as own:
        own.say(SAID, clip, "--seed", "3", "--temperature", "0.3")
        audio = base64.b64encode(clip.read_bytes()).decode()
        new = {"name": "anna", "audio_sample": audio, "ref_text": SAID, "consent": CONSENT}
        status, answer = ask(own, "POST", "/v1/audio/voices", new)
        assert status == 201, answer
        voice = json.loads(answer)
        spoken = speak(own, voice="anna")
        assert len(spoken) > 2 * 24_000 / 2
        assert spoken == speak(own, voice=voice["id"]) != speak(own)
        assert spoken == speak(own, ref_audio=audio, ref_text=SAID)  # as a one-off reference
        assert json.loads(ask(own, "GET", "/v1/audio/voices")[1])["data"][-1] == voice

        own.worker("talker.process").kill()
        own.until("the talker was started again", RESTARTS, 1)
        own.until_ready()
        assert speak(own, voice="anna") == spoken

    (file,) = files_in(folder)
    kept = unpack(file.read_bytes())
    samples = asyncio.run(ClipReader(24_000).read(clip.read_bytes()))
    assert np.array_equal(
        kept.codes, open_higgs(str(EMBEDDED_MODEL)).load_encoder().encode(samples)
    )
    with service(**env) as own:
        assert speak(own, voice="anna") == spoken
        status, deleted = ask(own, "DELETE", "/v1/audio/voices/anna")
        assert status == 200
        gone = json.loads(deleted)["id"]
        status, refused = ask(own, "POST", "/v1/audio/speech", SPEAK | {"voice": gone})
        assert (status, json.loads(refused)["error"]["code"]) == (400, "unknown_voice")
    assert not files_in(folder)


@asynccontextmanager
async def engines(library: VoiceLibrary) -> AsyncIterator[tuple[TalkerProcessEngine, Cloner]]:
    """The real engines, with vLLM's statistics enabled."""
    talker = TalkerProcessEngine(
        str(EMBEDDED_MODEL),
        TalkerSettings(statistics=True),
        voices=library,
        front_ends=FRONT_ENDS,
    )
    codec = CodecWorkerEngine(str(EMBEDDED_MODEL))
    await asyncio.gather(talker.start(), codec.start())
    await library.open(codec.spec, codec.fingerprint, talker.spec.folder)
    try:
        yield talker, Cloner(library, ClipReader(24_000), codec, talker, 90)
    finally:
        await library.close()
        await asyncio.gather(talker.stop(), codec.stop())


@pytest.mark.long
async def test_prefix_cache_serves_second_use_of_voice() -> None:
    library = VoiceLibrary(None, 10)
    async with engines(library) as (talker, cloner):
        consent = Consent("x", "x", "x")
        for name, hertz in (("anna", 300.0), ("bert", 500.0)):
            clip = clips.wav(clips.tone(4.0, hertz))
            await cloner.add(NewVoice(name, clip, consent, text="A tone, said of nobody."))
        voice = library.get("anna")
        assert voice is not None

        async def cached(voice: str, text: str) -> int:
            """Number of prompt positions served by the prefix cache."""
            before = talker.last_step.cached
            sampling = Sampling(temperature=0.7, seed=1)
            request = SpeechRequest("r", text, voice, sampling=sampling, max_frames=20)
            async for _ in talker.generate(request):
                pass
            return talker.last_step.cached - before

        rows = len(voice.frames) + 7
        assert await cached("anna", "Hello there.") == 0
        again = await cached("anna", "Something else altogether.")
        # all full blocks of the voice's part of the prompt
        assert rows * 0.7 < again <= 2 + len("A tone, said of nobody.") + rows
        shared = await cached("bert", "Hello there.")
        assert shared < 33  # same reference text, other rows
        assert await cached("bert", "Something else.") > rows * 0.7


@pytest.mark.parametrize("seconds", [0.5, 31.0])
def test_clip_too_short_or_too_long_is_refused(speaking: Service, seconds: float) -> None:
    clip = clips.as_base64(clips.wav(clips.tone(seconds)))
    status, answer = ask(speaking, "POST", "/v1/audio/speech", SPEAK | {"ref_audio": clip})
    assert (status, json.loads(answer)["error"]["code"]) == (400, "invalid_audio")
