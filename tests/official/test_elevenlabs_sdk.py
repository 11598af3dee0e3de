"""ElevenLabs' Python client, with only ``base_url`` changed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import av
import httpx
import numpy as np
import pytest
from elevenlabs import VoiceSettings
from elevenlabs.client import AsyncElevenLabs, ElevenLabs
from elevenlabs.core.api_error import ApiError
from elevenlabs.pronunciation_dictionaries.rules.types import (
    PronunciationDictionaryRule_Phoneme as PhonemeRule,
)
from elevenlabs.pronunciation_dictionaries.types import (
    BodyAddAPronunciationDictionaryV1PronunciationDictionariesAddFromRulesPostRulesItem_Alias as AliasRule,  # noqa: E501
)

from tests.e2e.live import Service
from tests.official.ears import Ears
from tests.official.turns import GONE, ONE, OTHER, TURN

MODEL, VOICE, PCM = "eleven_flash_v2_5", "default", "pcm_24000"


@pytest.fixture
def client(speaking: Service) -> Iterator[ElevenLabs]:
    with httpx.Client(timeout=60) as http:
        address = f"http://127.0.0.1:{speaking.port}"
        yield ElevenLabs(base_url=address, api_key="any", httpx_client=http)


def decoded(data: bytes) -> tuple[bytes, int]:
    """Decode a file to s16le; return the samples and their rate."""
    with av.open(io.BytesIO(data), "r") as file:
        frames = [frame.to_ndarray()[0] for frame in file.decode(audio=0)]
        samples = np.concatenate(frames).astype(np.float32)
        scale = 1.0 if file.streams.audio[0].format.name == "s16" else 32767.0
        pcm = (samples.clip(-1, 1) * scale if scale > 1 else samples).astype("<i2")
        return pcm.tobytes(), int(file.streams.audio[0].rate)


def test_convert_returns_default_mp3(client: ElevenLabs, ears: Ears) -> None:
    data = b"".join(client.text_to_speech.convert(VOICE, text=ONE, model_id=MODEL))
    assert ears.which(*decoded(data)) == ONE


def test_stream_returns_pcm(client: ElevenLabs, ears: Ears) -> None:
    settings = VoiceSettings(stability=0.4, similarity_boost=0.7, speed=1.0)
    pieces = client.text_to_speech.stream(
        VOICE, text=ONE, model_id=MODEL, output_format=PCM, voice_settings=settings
    )
    assert ears.which(b"".join(pieces)) == ONE


def test_convert_with_timestamps_has_ordered_character_times(
    client: ElevenLabs, ears: Ears
) -> None:
    whole = client.text_to_speech.convert_with_timestamps(VOICE, text=ONE, output_format=PCM)
    pcm = base64.b64decode(whole.audio_base_64)
    assert ears.which(pcm) == ONE
    alignment = whole.alignment
    assert alignment is not None
    assert "".join(alignment.characters).strip() == ONE
    ends = alignment.character_end_times_seconds
    assert ends == sorted(ends)
    assert 0.5 * len(pcm) / 48_000 < ends[-1] <= len(pcm) / 48_000


def test_stream_with_timestamps_has_all_characters(client: ElevenLabs, ears: Ears) -> None:
    chunks = list(
        client.text_to_speech.stream_with_timestamps(
            VOICE, text=f"{ONE} {OTHER}", output_format=PCM
        )
    )
    pcm = b"".join(base64.b64decode(chunk.audio_base_64) for chunk in chunks)
    text = "".join(c for chunk in chunks if chunk.alignment for c in chunk.alignment.characters)
    assert text.strip() == f"{ONE} {OTHER}"
    assert ears.which(pcm) == TURN


async def test_async_client_streams_pcm(speaking: Service, ears: Ears) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        address = f"http://127.0.0.1:{speaking.port}"
        client = AsyncElevenLabs(base_url=address, api_key="any", httpx_client=http)
        speech = client.text_to_speech.stream(VOICE, text=OTHER, output_format=PCM)
        assert ears.which(b"".join([piece async for piece in speech])) == OTHER


def test_voices_are_listed(client: ElevenLabs) -> None:
    voices = client.voices.get_all().voices
    assert VOICE in [voice.voice_id for voice in voices]
    assert client.voices.get(VOICE).name == VOICE


def test_refusal_raises_api_error_of_client(client: ElevenLabs) -> None:
    with pytest.raises(ApiError) as refused:
        list(client.text_to_speech.convert(GONE, text=ONE))
    assert refused.value.status_code == 404
    assert refused.value.body["detail"]["status"] == "unknown_voice"


def test_missing_address_raises_api_error_of_client(client: ElevenLabs) -> None:
    with pytest.raises(ApiError) as missing:
        client.history.list()
    assert missing.value.status_code == 404
    assert missing.value.body["detail"]["status"] == "unsupported"


# -- the client's WebSocket, which requires TLS


class TlsFront:
    """Terminates TLS in front of the service, like a reverse proxy."""

    def __init__(self, port: int, certificate: Path, key: Path) -> None:
        self._service_port = port
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate, key)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)
        self.port = 0

    def __enter__(self) -> TlsFront:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _open(self) -> asyncio.Server:
        return await asyncio.start_server(self._carry, "127.0.0.1", 0, ssl=self._context)

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._service_port)
        await asyncio.gather(_pipe(reader, inner_writer), _pipe(inner_reader, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        writer.close()
        await writer.wait_closed()


@pytest.fixture
def realtime(
    speaking: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ElevenLabs]:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command for a certificate")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with TlsFront(speaking.port, certificate, key) as front, httpx.Client(timeout=60) as http:
        address = f"https://127.0.0.1:{front.port}"
        yield ElevenLabs(base_url=address, api_key="any", httpx_client=http)


def test_realtime_speaks_streamed_text(realtime: ElevenLabs, ears: Ears) -> None:
    pieces = realtime.text_to_speech.convert_realtime(
        VOICE, text=iter([f"{ONE} ", OTHER]), model_id=MODEL, output_format=PCM
    )
    pcm = b"".join(pieces)
    assert ears.which(pcm) == TURN


def test_realtime_error_raises_api_error_of_client(realtime: ElevenLabs, speaking: Service) -> None:
    long = iter(["word " * 5000])
    with pytest.raises(ApiError) as refused:
        list(realtime.text_to_speech.convert_realtime(VOICE, text=long, output_format=PCM))
    assert refused.value.status_code == 1008
    assert refused.value.body["error"] == "text_too_long"
    speaking.until("nothing is left", "tts_contexts_active ", 0)


def rule(written: str, alias: str) -> Any:
    """A rule as the client types it."""
    return AliasRule(type="alias", string_to_replace=written, alias=alias)


def test_dictionary_of_the_client_is_spoken(client: ElevenLabs, ears: Ears) -> None:
    dictionaries = client.pronunciation_dictionaries
    made = dictionaries.create_from_rules(name="words", rules=[rule("Zyx", OTHER)])
    assert made.version_rules_num == 1
    changed = dictionaries.rules.add(
        made.id, rules=[PhonemeRule(string_to_replace="Zyx", phoneme="ˈwʊstər", alphabet="ipa")]
    )
    got = dictionaries.get(made.id)
    assert got.latest_version_id == changed.version_id
    assert [one.type for one in got.rules] == ["phoneme"]
    lexicon = b"".join(dictionaries.download(made.id, made.version_id))
    copied = dictionaries.create_from_file(name="copy", file=("words.pls", lexicon))
    listed = [one for page in pages(client) for one in page]
    assert {one.name for one in listed} >= {"words", "copy"}
    for id, version in ((made.id, made.version_id), (copied.id, None)):
        locators: Any = [{"pronunciation_dictionary_id": id, "version_id": version}]
        pcm = client.text_to_speech.convert(
            VOICE, text="Zyx", output_format=PCM, pronunciation_dictionary_locators=locators
        )
        assert ears.which(b"".join(pcm)) == OTHER
    unknown: Any = [{"pronunciation_dictionary_id": "none"}]
    speech = client.text_to_speech.convert(
        VOICE, text="Zyx", pronunciation_dictionary_locators=unknown
    )
    with pytest.raises(ApiError) as refused:
        list(speech)
    assert refused.value.status_code == 404
    removed = dictionaries.rules.remove(made.id, rule_strings=["Zyx"])
    assert removed.version_rules_num == 0
    for one in listed:
        dictionaries.update(one.id, archived=True)
    assert not dictionaries.list().pronunciation_dictionaries


def pages(client: ElevenLabs) -> Iterator[list[Any]]:
    """The pages of the list, each of one dictionary."""
    cursor = None
    while True:
        page = client.pronunciation_dictionaries.list(page_size=1, cursor=cursor)
        yield page.pronunciation_dictionaries
        cursor = page.next_cursor
        if not page.has_more:
            return
