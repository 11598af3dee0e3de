"""Talker families with tiny random checkpoints: native, HTTP, shipped voices, cloned voices."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from codec.families.fish.config import FishConfig
from service.voices.shipped import SHIPPED, read_list
from talkwire_client import ChunkingOptions, ReferenceOptions, SyncClient
from tests.codec.fish_checkpoint import write_codec_safetensors
from tests.codec.higgs_checkpoint import bundle_codec, write_standalone_codec
from tests.e2e.live import Service, service
from tests.service.voices import clips
from tests.talker import tiny, tiny_fish, tiny_v2

#: The published rates, so that clips have as few frames as with the published codec.
CODEC = FishConfig(
    semantic_size=tiny_fish.SIZE, residual_size=tiny_fish.SIZE, dim=32, layers=2, head_dim=8,
    feed_forward=48, window=8, decoder_dim=48, encoder_dim=4, encoder_layers=2,
    encoder_head_dim=16, encoder_window=16,
)  # fmt: skip
TEXT = "The quick brown fox."
FRAMES = 60
#: Tolerance: two steps of 16-bit samples, for rounding in the codec.
STEP = 2 / 32768
SAID = "A tone that grows louder."
#: Small, since a message of the native protocol has at most 64 KiB.
CLIP = clips.encoded("ogg_opus", clips.tone(1.5))
#: Prompts of tiny checkpoints have a position per letter and must leave room for a clip.
SHORT = {"TALKWIRE_MAX_SEGMENT_CHARS": "100"}
SHIPPED_NAMES = ("woman", "man", "deep_man")


@contextmanager
def higgs_v3(folder: Path) -> Iterator[Service]:
    tiny.write_checkpoint(folder)
    bundle_codec(folder)
    with service("--model", str(folder), **SHORT) as started:
        yield started


@contextmanager
def higgs_v2(folder: Path) -> Iterator[Service]:
    codec = write_standalone_codec(folder / "codec")
    tiny_v2.write_checkpoint(folder)
    more = {"TALKWIRE_CODEC_MODEL": str(codec), "TALKWIRE_TALKER_MAX_POSITIONS": "2048"}
    with service("--model", str(folder), **SHORT, **more) as started:
        yield started


@contextmanager
def fish_s2(folder: Path) -> Iterator[Service]:
    tiny_fish.write_checkpoint(folder)
    write_codec_safetensors(folder, CODEC)
    with service("--model", str(folder), **SHORT) as started:
        yield started


class Voice:
    """A service of one family; requests return samples in [-1, 1]."""

    def __init__(self, own: Service, family: str, rate: int) -> None:
        self.own, self.family, self.rate = own, family, rate

    def native(self, **options: Any) -> tuple[np.ndarray, int]:
        """Samples and number of chunks over the native WebSocket."""
        sampling = {"temperature": 0.0, "seed": 3, "max_frames": FRAMES}
        with (
            SyncClient(self.own.url) as client,
            client.speak(TEXT, **sampling, **options) as speech,
        ):
            assert client.server.sample_rate == self.rate
            chunks = [chunk.data for chunk in speech]
        return np.frombuffer(b"".join(chunks), "<i2") / 32768, len(chunks)

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.own.port}{path}",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return bytes(answer.read())

    def http(self, **fields: Any) -> np.ndarray:
        """Samples over OpenAI's API, by the official client."""
        asked = {"temperature": 0, "seed": 3, "max_frames": FRAMES, "mode": "whole", **fields}
        voice = asked.pop("voice", openai.omit)
        with openai.OpenAI(base_url=f"http://127.0.0.1:{self.own.port}/v1", api_key="any") as api:
            wav = api.audio.speech.create(
                model="tts-1", voice=voice, input=TEXT, response_format="wav", extra_body=asked
            ).content
        assert int.from_bytes(wav[24:28], "little") == self.rate
        return np.frombuffer(wav[44:], "<i2") / 32768


FAMILIES: dict[str, tuple[Callable[[Path], Any], int]] = {
    "higgs_v3": (higgs_v3, 24_000),
    "higgs_v2": (higgs_v2, 24_000),
    "fish_s2": (fish_s2, 44_100),
}


#: The other families take a minute, and their parts are tested in tests/talker and tests/codec.
LONG = [pytest.param(name, marks=pytest.mark.long) for name in FAMILIES if name != "higgs_v3"]


@pytest.fixture(scope="module", params=["higgs_v3", *LONG])
def voice(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Voice]:
    serve, rate = FAMILIES[request.param]
    with serve(tmp_path_factory.mktemp(request.param)) as own:
        yield Voice(own, request.param, rate)


def alike(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool(np.abs(one - other).max() <= STEP)


def test_family_streamed_audio_equals_whole_audio(voice: Voice) -> None:
    exact = ChunkingOptions(first_chunk_frames=2, first_lookahead_frames=10, lookahead_frames=10)
    streamed, chunks = voice.native(chunking=exact)
    whole, _ = voice.native(mode="whole")
    assert chunks > 1
    assert streamed.std() > 0.01
    assert alike(streamed, whole)


def test_family_audio_of_openai_client_equals_native(voice: Voice) -> None:
    assert alike(voice.http(voice="alloy"), voice.native(mode="whole")[0])


def test_family_speaks_with_shipped_voices(voice: Voice) -> None:
    with SyncClient(voice.own.url) as client:
        assert client.server.voices == ["default", *SHIPPED_NAMES, "smart_voice"]
    # sampled: the greedy codes of random weights may be the same after any clip
    default = voice.http(temperature=1)
    assert alike(default, voice.http(temperature=1, voice="woman"))
    assert not alike(default, voice.http(temperature=1, voice="man"))
    assert not alike(default, voice.http(temperature=1, voice="smart_voice"))
    # the shipped clip as a one-off reference
    clip = read_list()[0]
    audio = base64.b64encode((SHIPPED / clip.file).read_bytes()).decode()
    assert alike(default, voice.http(temperature=1, ref_audio=audio, ref_text=clip.text))


def refused(ask: Callable[[], object]) -> str:
    """The error code of a request that must be refused over HTTP."""
    with pytest.raises(openai.BadRequestError) as error:
        ask()
    return str(error.value.code)


def test_family_uses_reference_per_speaker_or_refuses(voice: Voice) -> None:
    audio = clips.as_base64(CLIP)
    other = clips.as_base64(clips.encoded("ogg_opus", clips.tone(1.0, 300.0)))
    pair = [{"audio": audio, "text": SAID}, {"audio": other, "text": "Another."}]
    if voice.family == "higgs_v3":
        assert refused(lambda: voice.http(references=pair)) == "unsupported"
        return
    both = voice.http(references=pair)
    assert not alike(both, voice.http(references=pair[:1]))
    references = [
        ReferenceOptions(CLIP, SAID),
        ReferenceOptions(base64.b64decode(other), "Another."),
    ]
    assert alike(both, voice.native(mode="whole", references=references)[0])


def test_family_applies_ras_options_or_refuses(voice: Voice) -> None:
    asked = {"temperature": 0.5, "ras_win_len": 16, "ras_max_repeat": 1}
    if voice.family == "higgs_v3":
        assert refused(lambda: voice.http(**asked)) == "unsupported"
        return
    watched, not_watched = voice.http(**asked), voice.http(temperature=0.5, ras_win_len=0)
    assert not alike(watched, not_watched)
    assert refused(lambda: voice.http(ras_win_len=17)) == "invalid_parameter"


def test_family_applies_scene_or_refuses(voice: Voice) -> None:
    if voice.family == "higgs_v2":
        assert not alike(voice.http(), voice.http(scene="A street at night."))
    else:
        assert refused(lambda: voice.http(scene="A street at night.")) == "unsupported"


def test_family_clone_is_same_over_native_http_and_stored_voice(voice: Voice) -> None:
    reference = ReferenceOptions(CLIP, SAID)
    cloned, _ = voice.native(mode="whole", reference=reference)
    assert not alike(cloned, voice.native(mode="whole")[0])
    audio = clips.as_base64(CLIP)
    assert alike(cloned, voice.http(ref_audio=audio, ref_text=SAID))
    assert not alike(cloned, voice.http(ref_audio=audio))  # the text is part of the prompt
    consent = {"by": "nobody", "statement": "It is a tone."}
    new = {"name": "tone", "audio_sample": audio, "ref_text": SAID, "consent": consent}
    added = json.loads(voice.post("/v1/audio/voices", new))
    assert added["duration_s"] == pytest.approx(1.5, abs=0.1)
    assert alike(cloned, voice.http(voice="tone"))
