"""The clips that ship with the project, and the voices that the loaded codec makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from service.settings import EMBEDDED_MODEL
from service.voices.clip_reader import ClipReader
from service.voices.registry import VoiceLibrary
from service.voices.shipped import SHIPPED, ShippedVoicesError, encode_shipped, read_list
from service.voices.store import Consent
from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.ports import EncodedClip, SpeechRequest
from streaming.spec import CodecSpec, Samples
from tests.service.live import gateway

#: A codec whose rate differs from that of the clips.
SPEC = CodecSpec(44_100, 2048, (4096, *(1024,) * 9), 10, 0)


class NotingCodec(FakeCodecEngine):
    """Records the clips that it is given, and refuses one."""

    def __init__(self, refused: int = -1) -> None:
        super().__init__(SPEC)
        self.clips: list[Samples] = []
        self._refused = refused

    async def encode(self, samples: Samples) -> EncodedClip:
        self.clips.append(samples)
        if len(self.clips) - 1 == self._refused:
            raise RequestError(ErrorCode.INVALID_AUDIO, "told to")
        return await super().encode(samples)


async def test_encode_shipped_reads_clips_at_codec_rate() -> None:
    codec = NotingCodec()
    voices = await encode_shipped(codec, ClipReader(SPEC.sample_rate))
    assert [voice.name for voice in voices] == ["woman", "man", "deep_man"]
    for voice, samples in zip(voices, codec.clips, strict=True):
        assert 5.0 < len(samples) / SPEC.sample_rate < 8.0, "what the facts recommend"
        assert 0.5 < np.abs(samples).max() < 1.0
        assert voice.codes.shape == (10, -(-len(samples) // SPEC.hop_length))
        assert voice.codec == codec.fingerprint
        assert voice.text_source == "given"
        assert voice.text is not None
        assert len(voice.text.split()) > 15


async def test_shipped_voices_become_built_in_voices() -> None:
    codec, library = NotingCodec(), VoiceLibrary(None, 10)
    await library.open(SPEC, codec.fingerprint, None)
    assert not library.has_built_in
    voices = await encode_shipped(codec, ClipReader(SPEC.sample_rate))
    library.add_built_in(voices)
    assert library.has_built_in
    assert library.names() == ["woman", "man", "deep_man", "smart_voice"]
    assert [voice.is_default for voice in library.voices()] == [True, False, False]
    default = library.get("default")
    assert default is not None
    assert default.transcript == voices[0].text
    assert library.get("smart_voice") is None
    with pytest.raises(RequestError, match="of that name already"):
        library.require_free("smart_voice")
    await library.close()


async def test_added_voice_replaces_shipped_voice_of_same_name(tmp_path: Path) -> None:
    codec = NotingCodec()
    voices = await encode_shipped(codec, ClipReader(SPEC.sample_rate))
    first = VoiceLibrary(tmp_path, 10)
    await first.open(SPEC, codec.fingerprint, None)
    own = replace(voices[2], id="voice_0123456789abcdef", name="woman", created_at=1)
    await first.add(replace(own, consent=Consent("a", "b", "2026-01-01")))
    await first.close()
    again = VoiceLibrary(tmp_path, 10)
    await again.open(SPEC, codec.fingerprint, None)
    again.add_built_in(voices)
    assert again.names() == ["man", "deep_man", "smart_voice", "woman"]
    for name, text in (("woman", own.text), ("default", voices[1].text)):
        voice = again.get(name)
        assert voice is not None
        assert voice.transcript == text
    await again.close()


class FolderTalker(FakeTalker):
    """A talker with a checkpoint folder, which refuses the clip of one text."""

    def __init__(self, folder: Path, refused: str = "nothing") -> None:
        super().__init__(spec=replace(FAKE_SPEC, folder=folder))
        self.refused = refused

    def check(self, request: SpeechRequest) -> None:
        super().check(request)
        said = request.reference and request.reference.text
        if said and self.refused in said:
            raise RequestError(ErrorCode.TEXT_TOO_LONG, "told to")


@pytest.mark.parametrize(
    ("settings", "refused", "names"),
    [
        ({}, "nothing", ["default", "woman", "man", "deep_man", "smart_voice"]),
        ({}, read_list()[0].text, ["default", "man", "deep_man", "smart_voice"]),
        ({"shipped_voices": "off"}, "nothing", ["default"]),
    ],
)
async def test_checkpoint_without_voices_gets_shipped_voices(
    tmp_path: Path, settings: dict[str, Any], refused: str, names: list[str]
) -> None:
    talker = FolderTalker(tmp_path, refused)
    async with gateway(talker, **settings) as server, httpx.AsyncClient(timeout=60) as http:
        listed = (await http.get(f"{server.http}/v1/audio/voices")).json()
        assert listed["voice_names"] == names
        assert [v["name"] for v in listed["data"] if v["default"]] == names[1:2]

        async def spoken(voice: str) -> bytes:
            body = {"input": "Hello.", "voice": voice, "response_format": "pcm", "seed": 1}
            return (await http.post(f"{server.http}/v1/audio/speech", json=body)).content

        default = await spoken("default")
        if len(names) > 1:
            assert default == await spoken(names[1])
            assert len({default, await spoken(names[2]), await spoken("smart_voice")}) == 3


async def test_checkpoint_with_voices_gets_no_shipped_voices() -> None:
    async with gateway(FolderTalker(EMBEDDED_MODEL)) as server:
        assert server.codec.encoded == 0
        assert "woman" not in server.runtime.voices.names


async def test_model_without_references_gets_no_shipped_voices(tmp_path: Path) -> None:
    talker = FolderTalker(tmp_path)
    talker.spec = replace(talker.spec, max_references=0)
    async with gateway(talker) as server:
        assert server.codec.encoded == 0
        assert server.runtime.voices.names == ("default",)


async def test_encode_shipped_skips_refused_clip() -> None:
    voices = await encode_shipped(NotingCodec(refused=0), ClipReader(SPEC.sample_rate))
    assert [voice.name for voice in voices] == ["man", "deep_man"]


class BusyCodec(NotingCodec):
    """Fails with a retryable error the first ``failures`` times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def encode(self, samples: Samples) -> EncodedClip:
        if self.failures:
            self.failures -= 1
            raise BackendError(ErrorCode.CODEC_FAILED, "told to")
        return await super().encode(samples)


async def test_encode_shipped_tries_again_after_failure_of_codec() -> None:
    voices = await encode_shipped(BusyCodec(2), ClipReader(SPEC.sample_rate))
    assert [voice.name for voice in voices] == ["woman", "man", "deep_man"]


async def test_encode_shipped_does_not_leave_out_voices_if_codec_keeps_failing() -> None:
    with pytest.raises(ShippedVoicesError, match=r"woman.flac could not be encoded in 3 tries"):
        await encode_shipped(BusyCodec(3), ClipReader(SPEC.sample_rate))


async def test_encode_shipped_returns_nothing_without_encoder() -> None:
    codec = NotingCodec()
    codec.can_encode = False
    assert await encode_shipped(codec, ClipReader(SPEC.sample_rate)) == []
    assert codec.clips == []


def test_read_list_names_existing_files() -> None:
    assert all((SHIPPED / clip.file).is_file() for clip in read_list())


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read"),
        ("[", "no list of clips"),
        ("[]", "must name clips"),
        ([{"file": "../secret.flac"}], "other folders"),
        ([{}, {}], "a name of its own"),
        ([{"more": 1}], "no list of clips"),
    ],
)
def test_read_list_refuses_invalid_list(tmp_path: Path, content: object, told: str) -> None:
    clip = {"name": "a", "file": "a.flac", "text": "A.", "language": "en", "description": "-"}
    if isinstance(content, list) and content:
        content = json.dumps([clip | change for change in content])
    if content is not None:
        (tmp_path / "voices.json").write_text(str(content))
    with pytest.raises(ShippedVoicesError, match=told):
        read_list(tmp_path)


async def test_encode_shipped_names_missing_clip(tmp_path: Path) -> None:
    (tmp_path / "voices.json").write_bytes((SHIPPED / "voices.json").read_bytes())
    with pytest.raises(ShippedVoicesError, match=r"woman\.flac cannot be read"):
        await encode_shipped(NotingCodec(), ClipReader(SPEC.sample_rate), tmp_path)
