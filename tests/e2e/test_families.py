"""Talker families with tiny random checkpoints: native, HTTP, shipped voices, cloned voices."""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.request
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from codec.families import open_codec, open_speaker_encoder
from codec.families.fish.config import FishConfig
from codec.families.qwen3_tts.checkpoint import FOLDER
from service.voices.clip_reader import ClipReader
from service.voices.shipped import SHIPPED, read_list
from talker.checkpoint import open_checkpoint
from talkwire_client import ChunkingOptions, ReferenceOptions, ServerError, SyncClient
from tests.codec.fish_checkpoint import write_codec_safetensors
from tests.codec.higgs_checkpoint import bundle_codec, write_standalone_codec
from tests.codec.qwen3_tts_checkpoint import write_codec
from tests.e2e.live import TALKWIRE, Service, service
from tests.service.voices import clips
from tests.talker import tiny, tiny_fish, tiny_qwen3_tts, tiny_v2
from tests.talker.qwen3_tts_oracle import Qwen3TTSReference, VoiceClip

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
SHORT: dict[str, Any] = {"TALKWIRE_MAX_SEGMENT_CHARS": "100"}
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
    more: dict[str, Any] = {
        "TALKWIRE_CODEC_MODEL": str(codec),
        "TALKWIRE_TALKER_MAX_POSITIONS": "2048",
    }
    with service("--model", str(folder), **SHORT, **more) as started:
        yield started


@contextmanager
def fish_s2(folder: Path) -> Iterator[Service]:
    tiny_fish.write_checkpoint(folder)
    write_codec_safetensors(folder, CODEC)
    with service("--model", str(folder), **SHORT) as started:
        yield started


@contextmanager
def qwen3_tts(folder: Path) -> Iterator[Service]:
    tiny_qwen3_tts.write_checkpoint(folder)
    write_codec(folder / FOLDER)
    with service("--model", str(folder), **SHORT) as started:
        yield started


class Voice:
    """A service of one family; requests return samples in [-1, 1]."""

    def __init__(self, own: Service, family: str, rate: int) -> None:
        self.own, self.family, self.rate = own, family, rate

    def native(self, **options: Any) -> tuple[np.ndarray, int]:
        """Samples and number of chunks over the native WebSocket."""
        sampling: dict[str, Any] = {"temperature": 0.0, "seed": 3, "max_frames": FRAMES}
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
    "qwen3_tts": (qwen3_tts, 24_000),
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


def test_family_audio_of_elevenlabs_and_batch_equals_openai(voice: Voice, tmp_path: Path) -> None:
    default: Any = openai.omit
    with openai.OpenAI(base_url=f"http://127.0.0.1:{voice.own.port}/v1", api_key="any") as api:
        wanted = api.audio.speech.create(
            model="tts-1", voice=default, input=TEXT, response_format="wav",
            extra_body={"seed": 3},
        ).content[44:]  # fmt: skip
    path = f"/v1/text-to-speech/default?output_format=pcm_{voice.rate}"
    heard = voice.post(path, {"text": TEXT, "seed": 3})
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n")
    captions = ["--captions", "srt"] if voice.family == "higgs_v3" else []  # the one with words
    ran = subprocess.run(
        [
            TALKWIRE, "batch", tmp_path / "texts.txt", "--out", tmp_path, "--seed", "3",
            *captions, "--url", f"http://127.0.0.1:{voice.own.port}",
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    if captions:
        assert TEXT in (tmp_path / "00001.srt").read_text()
    with wave.open(str(tmp_path / "00001.wav")) as spoken:
        assert spoken.getframerate() == voice.rate
        batch = spoken.readframes(spoken.getnframes())
    assert len(wanted) > voice.rate
    # a chunk's lookahead depends on when rows come, but not with a causal codec
    if voice.family == "qwen3_tts":
        assert alike(*(np.frombuffer(one, "<i2") / 32768 for one in (heard, wanted)))
        assert alike(*(np.frombuffer(one, "<i2") / 32768 for one in (batch, wanted)))
    assert len(heard) == len(batch) == len(wanted)


def test_family_speaks_with_own_speakers(voice: Voice) -> None:
    if voice.family != "qwen3_tts":
        assert refused(lambda: voice.http(voice="vivian")) == "unknown_voice"
        return
    names = ["vivian", "ryan", "eric", "dylan"]
    with SyncClient(voice.own.url) as client:
        assert client.server.voices == ["default", *names]
    listed = json.loads(voice.own.get("/v1/audio/voices"))
    assert listed["voice_names"] == ["default", *names]
    (eric,) = json.loads(voice.own.get("/v2/voices?search=sichuan"))["voices"]
    assert (eric["voice_id"], eric["labels"]) == ("eric", {"language": "zh"})
    default = voice.http()
    assert alike(default, voice.http(voice="Vivian"))
    assert not alike(default, voice.http(voice="ryan"))
    assert alike(voice.http(voice="eric"), voice.native(mode="whole", voice="eric")[0])


def test_family_speaks_with_shipped_voices(voice: Voice) -> None:
    if voice.family == "qwen3_tts":
        assert refused(lambda: voice.http(voice="woman")) == "unknown_voice"
        return
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


def test_family_speaks_in_named_language_or_follows_text(voice: Voice) -> None:
    if voice.family != "qwen3_tts":
        assert alike(voice.http(), voice.http(language="en"))
        return
    automatic, chinese = voice.http(), voice.http(language="zh-CN")
    assert not alike(automatic, chinese)
    assert not alike(chinese, voice.http(language="English"))
    assert alike(chinese, voice.native(mode="whole", language="zh")[0])
    # of Sichuan
    assert alike(voice.http(voice="eric"), voice.http(voice="eric", language="zh"))
    assert refused(lambda: voice.http(language="sv")) == "unsupported"


def test_family_follows_instructions_or_ignores_them(voice: Voice) -> None:
    plain, led = voice.http(), voice.http(instructions="Whisper.")
    if voice.family != "qwen3_tts":
        assert alike(plain, led)
        with pytest.raises(ServerError, match=r"unsupported \(instructions"):
            voice.native(instructions="Whisper.")
        return
    assert not alike(plain, led)
    assert not alike(led, voice.http(instructions="Shout."))
    assert alike(led, voice.native(mode="whole", instructions="Whisper.")[0])
    assert refused(lambda: voice.http(instructions=" ")) == "invalid_parameter"
    assert refused(lambda: voice.http(task_type="VoiceDesign")) == "unsupported"


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tiny_qwen3_tts.write_checkpoint(folder, kind="base")
    write_codec(folder / FOLDER)
    return folder


@pytest.fixture(scope="module")
def base(base_folder: Path) -> Iterator[Voice]:
    with service("--model", str(base_folder), **SHORT) as started:
        yield Voice(started, "qwen3_tts", 24_000)


@pytest.mark.long
def test_base_clones_by_vector_or_continues_clip(base: Voice) -> None:
    """A clip without its text is a vector; with it, its codes are in the prompt too."""
    audio = clips.as_base64(CLIP)
    alone, whole = base.http(ref_audio=audio), base.http(ref_audio=audio, ref_text=SAID)
    assert not alike(alone, whole)
    assert alike(alone, base.native(mode="whole", reference=ReferenceOptions(CLIP))[0])
    assert alike(whole, base.native(mode="whole", reference=ReferenceOptions(CLIP, SAID))[0])
    bare = base.http(ref_audio=audio, ref_text=SAID, x_vector_only_mode=True, task_type="Base")
    assert alike(alone, bare)
    for reference in (ReferenceOptions(CLIP), ReferenceOptions(CLIP, SAID)):
        streamed, chunks = base.native(
            reference=reference, chunking=ChunkingOptions(first_chunk_frames=1, chunk_ms=200)
        )
        assert chunks > 2
        assert alike(streamed, base.native(mode="whole", reference=reference)[0])


@pytest.mark.long
async def test_base_speech_is_that_of_oracles(base: Voice, base_folder: Path) -> None:
    """From clip to samples: the plain talker's codes after the clip's are decoded and cut."""
    samples = await ClipReader(24_000).read(CLIP)
    found, encoder = open_codec(str(base_folder)), open_speaker_encoder(str(base_folder))
    assert encoder is not None
    codes, vector = found.load_encoder().encode(samples), encoder.encode(samples)
    encode = open_checkpoint(str(base_folder)).prompt_builder(1024).encode
    talker, decoder = Qwen3TTSReference(base_folder), found.load_decoder()
    for said in (SAID, None):
        clip = VoiceClip(vector, encode(said), codes.T) if said else VoiceClip(vector)
        spoken = talker.speak(talker.prompt(encode(TEXT), None, clip=clip), FRAMES)
        stream = np.concatenate([np.array(clip.frames, np.int16).reshape(-1, 16), spoken.rows])
        (heard,) = decoder.decode([np.ascontiguousarray(stream.T)])
        heard = heard[len(clip.frames) * decoder.spec.hop_length :]
        given = {"ref_text": said} if said else {}
        assert alike(heard, base.http(ref_audio=clips.as_base64(CLIP), **given))


@pytest.mark.long
def test_base_speaks_with_shipped_and_stored_voices(base: Voice) -> None:
    with SyncClient(base.own.url) as client:
        assert client.server.voices == ["default", *SHIPPED_NAMES]
    assert alike(base.http(), base.http(voice="woman"))
    assert not alike(base.http(), base.http(voice="man"))
    assert refused(lambda: base.http(voice="smart_voice")) == "unknown_voice"
    clip = read_list()[0]
    audio = base64.b64encode((SHIPPED / clip.file).read_bytes()).decode()
    assert alike(base.http(), base.http(ref_audio=audio, ref_text=clip.text))
    consent = {"by": "nobody", "statement": "It is a tone."}
    for name, text in (("whole", SAID), ("bare", None)):
        new = {"name": name, "audio_sample": clips.as_base64(CLIP), "consent": consent}
        base.post("/v1/audio/voices", new | ({"ref_text": text} if text else {}))
        cloned, _ = base.native(mode="whole", reference=ReferenceOptions(CLIP, text))
        assert alike(cloned, base.http(voice=name, task_type="Base"))


@pytest.mark.long
def test_base_refuses_what_it_has_not(base: Voice) -> None:
    assert refused(lambda: base.http(voice="vivian")) == "unknown_voice"
    assert refused(lambda: base.http(task_type="CustomVoice", voice="man")) == "unsupported"
    assert refused(lambda: base.http(scene="A street at night.")) == "unsupported"
    with pytest.raises(ServerError, match=r"unsupported \(instructions"):
        base.native(instructions="Whisper.")
    pair = [{"audio": clips.as_base64(CLIP), "text": SAID}] * 2
    assert refused(lambda: base.http(references=pair)) == "unsupported"


@pytest.mark.long
def test_base_without_voices_names_how_to_give_one(tmp_path: Path) -> None:
    tiny_qwen3_tts.write_checkpoint(tmp_path, kind="base", width=48)
    write_codec(tmp_path / FOLDER)
    with service("--model", str(tmp_path), TALKWIRE_SHIPPED_VOICES="off", **SHORT) as started:
        own = Voice(started, "qwen3_tts", 24_000)
        with pytest.raises(openai.BadRequestError, match="ref_audio") as error:
            own.http()
        assert (error.value.code, error.value.param) == ("invalid_parameter", "voice")
        assert own.http(ref_audio=clips.as_base64(CLIP), ref_text=SAID).std() > 0.01


@pytest.mark.long
def test_voice_design_speaks_as_described(tmp_path: Path) -> None:
    tiny_qwen3_tts.write_checkpoint(tmp_path, kind="voice_design")
    write_codec(tmp_path / FOLDER)
    with service("--model", str(tmp_path), **SHORT) as started:
        voice = Voice(started, "qwen3_tts", 24_000)
        calm = voice.http(instructions="A calm man.", task_type="VoiceDesign", voice="alloy")
        assert calm.std() > 0.01
        assert alike(calm, voice.native(mode="whole", instructions="A calm man.")[0])
        assert not alike(calm, voice.http(instructions="A loud girl."))
        assert refused(voice.http) == "invalid_parameter"
        assert refused(lambda: voice.http(voice="vivian", instructions="Calm.")) == "unknown_voice"


def refused(ask: Callable[[], object]) -> str:
    """The error code of a request that must be refused over HTTP."""
    with pytest.raises(openai.BadRequestError) as error:
        ask()
    return str(error.value.code)


def test_family_uses_reference_per_speaker_or_refuses(voice: Voice) -> None:
    audio = clips.as_base64(CLIP)
    other = clips.as_base64(clips.encoded("ogg_opus", clips.tone(1.0, 300.0)))
    pair = [{"audio": audio, "text": SAID}, {"audio": other, "text": "Another."}]
    if voice.family in ("higgs_v3", "qwen3_tts"):
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
    if voice.family in ("higgs_v3", "qwen3_tts"):
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
    if voice.family == "qwen3_tts":
        with pytest.raises(ServerError, match=r"unsupported \(reference"):
            voice.native(reference=reference)
        assert refused(lambda: voice.http(ref_audio=clips.as_base64(CLIP))) == "unsupported"
        return
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
