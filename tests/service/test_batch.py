"""``talkwire batch``: with engines or a service, resumption, and no partial files."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import wave
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from loadtest.fakes.codec import FakeDecoder
from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from service import batch
from service.audio.pcm import wav_header
from service.batch import (
    BatchError,
    BatchOptions,
    Item,
    Result,
    Results,
    Speak,
    Spoken,
    Write,
    engine_speaker,
    read_items,
    run_batch,
    served_model,
    server_speaker,
)
from service.cli import app
from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.ports import Reference, Sampling, SpeechRequest
from tests.service.live import SPEC, Gateway, gateway
from tests.service.voices import clips
from tests.service.voices.voice_server import samples_of

TEXTS = ["The first text.", "Another one, which is longer.", "Third."]
ITEMS = read_items("\n".join(TEXTS).encode())
CLIP = clips.encoded("flac", clips.tone(1.5))
CLIP_BASE64 = base64.b64encode(CLIP).decode()
ROOT = Path(__file__).parents[2]


def read_wav(path: Path) -> np.ndarray[Any, Any]:
    with wave.open(str(path)) as file:
        assert file.getframerate() == SPEC.sample_rate
        pcm = file.readframes(file.getnframes())
        assert path.stat().st_size == 44 + len(pcm)  # the header declares the length
        return np.frombuffer(pcm, "<i2")


def expected(server: Gateway, text: str, reference: Reference | None = None) -> Any:
    request = SpeechRequest("oracle", text, sampling=Sampling(seed=5), reference=reference)
    frames = server.talker.frames_of(request)
    samples = FakeDecoder(SPEC).decode([np.ascontiguousarray(frames.T)])[0]
    return np.rint(samples.clip(-1, 1) * 32767).astype("<i2")


async def spoken(
    options: BatchOptions, speak: Speak, items: list[Item] = ITEMS
) -> dict[int, Result]:
    found: dict[int, Result] = {}
    with Results.open(options.out) as results:
        failed = await run_batch(
            items, options, speak, results, lambda result: found.update({result.line: result})
        )
    assert failed == sum(result.status == "error" for result in found.values())
    return found


async def speakers(server: Gateway, options: BatchOptions) -> list[tuple[BatchOptions, Speak]]:
    """Make speakers for engines and for a service, each with a folder of its own."""
    one, two = (replace(options, out=options.out / folder) for folder in ("engines", "service"))
    engines = await engine_speaker(server.runtime, one)
    return [(one, engines), (two, server_speaker(server.url, None, two))]


async def test_batch_gives_same_audio_with_engines_and_service(tmp_path: Path) -> None:
    async with gateway() as server:
        for options, speak in await speakers(server, BatchOptions(tmp_path, {"seed": 5})):
            results = await spoken(options, speak)
            for item in ITEMS:
                result, path = results[item.line], options.out / item.file
                samples = read_wav(path)
                assert np.array_equal(samples, expected(server, item.text))
                assert (result.status, result.file) == ("success", item.file)
                assert result.bytes == path.stat().st_size
                assert result.audio_s == round(len(samples) / SPEC.sample_rate, 3)
            assert sorted(os.listdir(options.out)) == ["00001.wav", "00002.wav", "00003.wav",
                                                       "results.jsonl"]  # fmt: skip


async def test_batch_speaks_with_reference_clip(tmp_path: Path) -> None:
    reference = Reference(FakeDecoder(SPEC).encode(await samples_of(CLIP)), "A tone.")
    async with gateway() as server:
        asked = BatchOptions(tmp_path, {"seed": 5, "ref_audio": CLIP_BASE64, "ref_text": "A tone."})
        for options, speak in await speakers(server, asked):
            await spoken(options, speak)
            for item in ITEMS:
                wanted = expected(server, item.text, reference)
                assert np.array_equal(read_wav(options.out / item.file), wanted)
        assert server.codec.encoded == 1
        with pytest.raises(RequestError, match="invalid_audio"):
            await engine_speaker(server.runtime, BatchOptions(tmp_path, {"ref_audio": "UklGRg=="}))


async def test_batch_repeats_only_incomplete_items(tmp_path: Path) -> None:
    async with gateway() as server:
        options = BatchOptions(tmp_path, {"seed": 5}, concurrency=1)
        speaker = await engine_speaker(server.runtime, options)
        other = replace(options, speech={"seed": 6})

        async def statuses(items: list[Item] = ITEMS, asked: BatchOptions = options) -> list[str]:
            results = await spoken(asked, speaker, items)
            return [results[line].status for line in sorted(results)]

        assert await statuses() == ["success"] * 3
        decoded = server.codec.decoded
        assert await statuses() == ["kept"] * 3
        assert server.codec.decoded == decoded

        (tmp_path / "00001.wav").unlink()
        with (tmp_path / "00002.wav").open("ab") as file:
            file.truncate(100)
        assert await statuses() == ["success", "success", "kept"]
        changed = [*ITEMS[:2], Item(3, "Something else.")]
        assert await statuses(changed) == ["kept", "kept", "success"]
        assert await statuses(asked=other) == ["success"] * 3
        # a killed run leaves half a line and half a file behind
        ledger = tmp_path / "results.jsonl"
        ledger.write_bytes(ledger.read_bytes()[:-20])
        (tmp_path / ".00003.wav.partial").write_bytes(b"RIFF")
        assert await statuses(asked=other) == ["kept", "kept", "success"]
        assert not (tmp_path / ".00003.wav.partial").exists()
        assert await statuses(asked=other) == ["kept"] * 3


class Scripted:
    """Writes half of the audio, and then waits, raises or writes the rest."""

    def __init__(self, *does: Exception | None) -> None:
        self.does = list(does)
        self.begun = asyncio.Event()

    async def speak(self, text: str, write: Write) -> Spoken:
        write(b"RIFF" + bytes(40) + bytes(100))
        self.begun.set()
        if not self.does:
            await asyncio.Event().wait()
        if (error := self.does.pop(0)) is not None:
            raise error
        write(bytes(100))
        return Spoken("stop")


@pytest.mark.parametrize("ends_by", ["cancel", "error", "batch error"])
async def test_batch_leaves_no_partial_file(tmp_path: Path, ends_by: str) -> None:
    options, item = BatchOptions(tmp_path), ITEMS[0]
    failure = RequestError(ErrorCode.INVALID_TEXT, "told to")
    does: dict[str, list[Exception]] = {
        "cancel": [],
        "error": [failure],
        "batch error": [BatchError("told to")],
    }
    speaker = Scripted(*does[ends_by])
    running = asyncio.create_task(spoken(options, speaker.speak, [item]))
    async with asyncio.timeout(60):
        await speaker.begun.wait()
    if ends_by == "cancel":
        assert (tmp_path / ".00001.wav.partial").exists()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    elif ends_by == "error":
        result = (await running)[1]
        assert (result.status, result.code, result.file) == ("error", "invalid_text", None)
    else:
        with pytest.raises(BatchError, match="told to"):
            await running
    assert os.listdir(tmp_path) == ["results.jsonl"]


async def test_batch_retries_retryable_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_RETRY_S", 0.0)
    monkeypatch.setattr(batch, "tell_wav_length", lambda header, size: None)
    failed = BackendError(ErrorCode.ENGINE_RESTARTING, "told to")
    options = BatchOptions(tmp_path, concurrency=1)
    bad, good = Scripted(*[failed] * 5), Scripted(failed, None)
    monkeypatch.setattr(batch.PartialWav, "complete", lambda wav: 0.0)
    results = await spoken(options, bad.speak, ITEMS[:1])
    assert (results[1].status, results[1].code) == ("error", "engine_restarting")
    results = await spoken(options, good.speak, ITEMS[1:2])
    assert results[2].status == "success"


async def test_batch_continues_after_failed_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_RETRY_S", 0.0)
    texts = [TEXTS[0], "This one must !fail here.", "x" * 200, TEXTS[2]]
    items = [Item(number, text) for number, text in enumerate(texts, 1)]
    async with gateway(max_text_chars=100) as server:
        for options, speak in await speakers(server, BatchOptions(tmp_path)):
            results = await spoken(options, speak, items)
            found = [(results[n].status, results[n].code) for n in range(1, 5)]
            assert found == [
                ("success", None),
                ("error", "engine_failed"),
                ("error", "text_too_long"),
                ("success", None),
            ]
            assert not (options.out / "00002.wav").exists()
            await server.until_free()


async def test_batch_waits_for_full_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_RETRY_S", 0.01)
    monkeypatch.setattr(batch, "_MOST_RETRY_S", 0.05)
    monkeypatch.setattr(batch, "_TRIES", 1000)
    async with gateway(FakeTalker(row_s=0.0005), max_contexts=1) as server:
        options = BatchOptions(tmp_path, concurrency=3)
        results = await spoken(options, server_speaker(server.http, None, options))
        assert {result.status for result in results.values()} == {"success"}


async def test_batch_fails_without_service(tmp_path: Path, unused_tcp_port: int) -> None:
    where = f"127.0.0.1:{unused_tcp_port}"
    for url in (where, f"http://{where}", f"ws://{where}/v1"):
        options = BatchOptions(tmp_path)
        with pytest.raises(BatchError, match="no server answers"):
            await spoken(options, server_speaker(url, None, options))
    for url in ("ftp://host", "", "http://host:port", "http://a..b"):
        with pytest.raises(BatchError, match="not an address"):
            server_speaker(url, None, BatchOptions(tmp_path))


@pytest.mark.parametrize("url", ["ftp://me:s3cret@host", "http://me:s3cret@host:port"])
def test_batch_does_not_show_password_of_a_bad_address(tmp_path: Path, url: str) -> None:
    with pytest.raises(BatchError, match="not an address: host") as bad:
        server_speaker(url, None, BatchOptions(tmp_path))
    assert "s3cret" not in str(bad.value)


async def test_batch_without_service_does_not_show_password(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    options = BatchOptions(tmp_path)
    where = f"127.0.0.1:{unused_tcp_port}/voices"
    with pytest.raises(BatchError) as failed:
        await spoken(options, server_speaker(f"http://anna:secret@{where}", None, options))
    assert str(failed.value) == f"no server answers at http://{where}"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1, and its key."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
         "-out", str(certificate), "-keyout", str(key)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return certificate, key


async def test_batch_names_how_to_trust_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, Path]
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    options = BatchOptions(tmp_path / "out")
    async with answering(SPEECH_ANSWER, tls=tls) as url:
        url = url.replace("http://", "https://")
        with pytest.raises(BatchError, match=r"self-signed certificate; SSL_CERT_FILE"):
            await spoken(options, server_speaker(url, None, options))
        with pytest.raises(BatchError, match=r"self-signed certificate; SSL_CERT_FILE"):
            await asyncio.to_thread(served_model, url, None)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        results = await spoken(options, server_speaker(url, None, options))
    assert {result.status for result in results.values()} == {"success"}


async def test_batch_does_not_wait_long_for_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.batch._TIMEOUT_S", 20.0)
    monkeypatch.setattr("service.batch._CONNECT_TIMEOUT_S", 0.1, raising=False)
    with socket.socket() as listener, contextlib.ExitStack() as queued:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # until the kernel answers no more
            waiting = queued.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        options = BatchOptions(tmp_path, concurrency=1)
        with pytest.raises(BatchError, match="no server answers"):
            await server_speaker(url, None, options)("Hello.", lambda data: None)


async def test_batch_closes_connection_at_its_end(tmp_path: Path) -> None:
    has_asked, is_closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        has_asked.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        is_closed.set()
        writer.close()

    async with asyncio.timeout(60), await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        speak = server_speaker(url, None, BatchOptions(tmp_path))
        speaking = asyncio.ensure_future(speak("Hello.", lambda data: None))
        await has_asked.wait()
        speaking.cancel()
        await asyncio.wait([speaking])
        await is_closed.wait()


@pytest.mark.parametrize("is_reset", [False, True])
async def test_batch_names_lost_connection(tmp_path: Path, is_reset: bool) -> None:
    """Before the response; a loss within it fails only its text."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if is_reset:
            linger = struct.pack("ii", 1, 0)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    async with asyncio.timeout(60), await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        options = BatchOptions(tmp_path)
        with pytest.raises(BatchError, match=f"the server at {url} is gone: \\S+"):
            await spoken(options, server_speaker(url, None, options))


@contextlib.asynccontextmanager
async def answering(
    answer: bytes,
    together: int = 1,
    heads: list[bytes] | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """Run a server that sends ``answer`` once it has ``together`` requests; yield its address. The
    heads of the requests are added to ``heads``.
    """
    all_asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal together
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head)
        together -= 1
        if together <= 0:
            all_asked.set()
        await all_asked.wait()
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


def http_answer(media_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def events_of(size: int, *last: dict[str, Any]) -> bytes:
    """Events with a WAV file of ``size`` bytes of samples, and then those of ``last``."""
    audio = base64.b64encode(wav_header(24_000) + bytes(size)).decode()
    events = [{"type": "speech.audio.delta", "audio": audio}, *last]
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)


DONE = {"type": "speech.audio.done", "usage": {}, "finish_reason": "stop"}
FAILED = {"type": "error", "error": {"code": "engine_failed", "message": "It gave up."}}
SPEECH = "text/event-stream"
SPEECH_ANSWER = http_answer(SPEECH, events_of(4800, DONE))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (SPEECH_ANSWER[:-100], "broke the audio off"),
        (http_answer(SPEECH, events_of(4800)), "broke the audio off"),
        (http_answer(SPEECH, events_of(4800, FAILED)), "It gave up"),
    ],
)
async def test_batch_refuses_audio_that_breaks_off(
    tmp_path: Path, answer: bytes, message: str
) -> None:
    async with answering(answer) as url:
        speak = server_speaker(url, None, BatchOptions(tmp_path))
        with pytest.raises(BackendError, match=message) as failed:
            await speak("Hello.", lambda data: None)
    assert failed.value.code is ErrorCode.ENGINE_FAILED
    assert failed.value.retryable


@pytest.mark.parametrize("events", [b"data: {\n\n", b"data: [1]\n\n", b'data: {"audio":"!"}\n\n'])
async def test_batch_ends_if_events_are_not_of_talkwire(tmp_path: Path, events: bytes) -> None:
    async with answering(http_answer(SPEECH, events)) as url:
        speak = server_speaker(url, None, BatchOptions(tmp_path))
        with pytest.raises(BatchError, match="not those of Talkwire"):
            await speak("Hello.", lambda data: None)


async def test_batch_results_tell_cut_texts(tmp_path: Path) -> None:
    """The talker's maximum is reached by the second text alone."""
    items = [Item(1, "Hi."), Item(2, "A sentence that goes on and on.")]
    talker = FakeTalker(spec=replace(FAKE_SPEC, max_frames=30))
    async with gateway(talker) as server:
        for options, speak in await speakers(server, BatchOptions(tmp_path)):
            results = await spoken(options, speak, items)
            found = [(results[n].status, results[n].finish_reason) for n in (1, 2)]
            assert found == [("success", "stop"), ("success", "length")]


async def test_batch_results_have_warnings_of_their_texts(tmp_path: Path) -> None:
    items = [Item(1, "Hi."), Item(2, "[excited] We won! <noise/> Really.")]
    warning = "The voice has no emotion 'excited'; it is left out. The tag <noise> is unknown."
    async with gateway() as server:
        for options, speak in await speakers(server, BatchOptions(tmp_path)):
            results = await spoken(options, speak, items)
            assert [" ".join(results[n].warnings) for n in (1, 2)] == ["", warning]


async def test_batch_speaks_as_many_texts_at_a_time_as_asked(tmp_path: Path) -> None:
    options = BatchOptions(tmp_path, concurrency=48)
    items = [Item(number, "Text.") for number in range(1, 49)]
    async with asyncio.timeout(60), answering(SPEECH_ANSWER, together=48) as url:
        results = await spoken(options, server_speaker(url, None, options), items)
    assert [result.audio_s for result in results.values()] == [0.1] * 48


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("", b"/v1/audio/speech"),
        ("/v1/tts/stream", b"/v1/audio/speech"),
        ("/v1", b"/v1/audio/speech"),
        ("/voices/", b"/voices/v1/audio/speech"),
        ("/a%20b/\u00e9 c/v1/", b"/a%20b/%C3%A9%20c/v1/audio/speech"),
    ],
)
@pytest.mark.parametrize(
    ("user", "key", "authorization"),
    [
        ("", None, None),
        ("anna:a%40b@", None, b"Basic YW5uYTphQGI="),
        ("anna@", None, b"Basic YW5uYTo="),
        ("\udce9@", None, b"Basic 6To="),  # a command line that is not UTF-8
        ("anna:secret@", "the-key", b"Bearer the-key"),
    ],
)
async def test_batch_asks_at_path_of_proxy_and_as_its_user(
    path: str, asked: bytes, user: str, key: str | None, authorization: bytes | None, tmp_path: Path
) -> None:
    options, heads = BatchOptions(tmp_path), list[bytes]()
    async with asyncio.timeout(60), answering(SPEECH_ANSWER, heads=heads) as url:
        address = url.replace("://", f"://{user}") + path
        results = await spoken(options, server_speaker(address, key, options), ITEMS[:1])
    assert [result.status for result in results.values()] == ["success"]
    first, *rest = heads[0].split(b"\r\n")
    assert first == b"POST %s HTTP/1.1" % asked
    told = [line[15:] for line in rest if line.lower().startswith(b"authorization: ")]
    assert told == ([] if authorization is None else [authorization])


async def test_batch_ends_if_service_answers_with_something_else(tmp_path: Path) -> None:
    options = BatchOptions(tmp_path)
    async with answering(http_answer("text/html", b"<p>Sign in.</p>")) as url:
        with pytest.raises(BatchError, match="answered 200, and not as Talkwire does"):
            await spoken(options, server_speaker(url, None, options))
    assert os.listdir(tmp_path) == ["results.jsonl"]


@pytest.mark.parametrize("size", [100, 200_000])  # the first is buffered until its end
async def test_batch_with_service_names_folder_of_full_disk(tmp_path: Path, size: int) -> None:
    options = BatchOptions(tmp_path)
    answer = http_answer(SPEECH, events_of(size, DONE))
    with Results.open(tmp_path) as results:
        (tmp_path / ".00001.wav.partial").symlink_to("/dev/full")
        async with answering(answer) as url:
            speak = server_speaker(url, None, options)
            with pytest.raises(BatchError, match=f"cannot write to {tmp_path}: No space left"):
                await run_batch(ITEMS[:1], options, speak, results, lambda _: None)
    assert os.listdir(tmp_path) == ["results.jsonl"]


async def test_batch_names_folder_if_disk_is_full_for_results(tmp_path: Path) -> None:
    async def speak(text: str, write: Write) -> Spoken:
        write(wav_header(24_000) + bytes(100))
        return Spoken("stop")

    async def run() -> None:
        with Results.open(tmp_path) as results:
            full = os.open("/dev/full", os.O_RDWR)
            os.dup2(full, results._file.fileno())
            os.close(full)
            await run_batch(ITEMS, BatchOptions(tmp_path), speak, results, lambda _: None)

    with pytest.raises(BatchError, match=f"cannot write to {tmp_path}: No space left"):
        await run()


async def test_batch_locks_output_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        Results.open(tmp_path),
        pytest.raises(BatchError, match="another run"),
        Results.open(tmp_path),
    ):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(BatchError, match="cannot write"), Results.open(tmp_path / "file"):
        pass

    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(BatchError, match=f"cannot lock {tmp_path}"), Results.open(tmp_path):
        pass


@pytest.mark.parametrize("key", ["talkwire_1\n", "talkwire_€"])
async def test_batch_refuses_key_that_no_header_can_hold(tmp_path: Path, key: str) -> None:
    with pytest.raises(BatchError) as refused:
        await spoken(
            BatchOptions(tmp_path), server_speaker("http://a", key, BatchOptions(tmp_path))
        )
    assert key.strip() not in str(refused.value)


def test_read_items_numbers_lines_and_skips_blank_ones() -> None:
    items = read_items("\ufeffOne.\n\n  Zwei, größer. \r\n".encode())
    assert items == [Item(1, "One."), Item(3, "Zwei, größer.")]
    separated = "One\u2028two\x85three\x0cfour."  # no line ends for an editor
    assert read_items(f"{separated}\nFive.".encode()) == [Item(1, separated), Item(2, "Five.")]
    for bad in (b"\xff\xfe", b" \n\n"):
        with pytest.raises(BatchError):
            read_items(bad)


async def test_batch_command_prints_results(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    (tmp_path / "clip.flac").write_bytes(CLIP)
    async with gateway() as server:
        command = ["batch", str(texts), "--out", str(tmp_path / "out"), "--url", server.url]
        command += ["--ref-audio", str(tmp_path / "clip.flac"), "--ref-text", "A tone."]
        for status in ("success", "kept"):
            done = await asyncio.to_thread(CliRunner().invoke, app, command)
            assert done.exit_code == 0, done.output
            results = [json.loads(line) for line in done.stdout.splitlines()]
            assert sorted(result["line"] for result in results) == [1, 2, 3]
            assert {result["status"] for result in results} == {status}
        bad = [*command, "--voice", "nobody"]
        done = await asyncio.to_thread(CliRunner().invoke, app, bad)
        assert done.exit_code == 4
        assert {json.loads(line)["code"] for line in done.stdout.splitlines()} == {
            "invalid_parameter"
        }
    for more, told in (
        (["--temperature", "9"], "temperature must be at most 2.0, not 9.0."),
        (["--temperature", "nan"], "temperature must be at most 2.0, not nan."),
        (["--seed", "-5"], "seed must be at least 0, not -5."),
        (["--voice", ""], "talkwire: voice must be "),
        (["--model", "x"], "--model"),
    ):
        done = await asyncio.to_thread(CliRunner().invoke, app, [*command, *more])
        assert done.exit_code == 2
        assert told in done.stderr


async def test_batch_command_survives_closed_streams_and_names_full_one(tmp_path: Path) -> None:
    """The interpreter has no object for a stream that is closed."""
    texts, out = tmp_path / "texts.txt", tmp_path / "out"
    texts.write_text("\n".join(TEXTS))
    async with gateway() as server:
        command = ["batch", str(texts), "--out", str(out), "--url", server.url]
        for closed in ("stdout", "stderr"):
            program = f"import sys; sys.{closed} = None; from service.cli import main; main()"
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", program, *command), stdout=PIPE, stderr=PIPE, cwd=ROOT
            )
            printed, told = await process.communicate()
            assert process.returncode == 0, told
            lines = printed.splitlines()
            assert len([json.loads(line) for line in lines]) == (closed == "stderr") * len(TEXTS)
        full = os.open("/dev/full", os.O_WRONLY)
        program = "from service.cli import main; main()"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, *command), stdout=full, stderr=PIPE, cwd=ROOT
        )
        os.close(full)
        _, told = await process.communicate()
        assert process.returncode == 1
        assert told.decode().endswith(
            "talkwire: cannot write standard output: No space left on device\n"
        )


async def test_batch_command_ends_in_silence_if_reader_has_gone(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    reading, writing = os.pipe()
    os.close(reading)
    async with gateway() as server:
        command = ["batch", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out")]
        program = "from service.cli import main; main()"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, *command, "--url", server.url),
            stdout=writing,
            stderr=PIPE,
            cwd=ROOT,
        )
        os.close(writing)
        _, told = await process.communicate()
    assert process.returncode == 1
    assert "talkwire:" not in told.decode()
    assert "Traceback" not in told.decode()


async def test_batch_command_speaks_again_if_service_has_another_model(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    command = ["batch", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out")]
    for model, status in (("one", "success"), ("one", "kept"), ("another", "success")):
        async with gateway(served_model_name=model) as server:
            asked = [*command, "--url", server.url]
            done = await asyncio.to_thread(CliRunner().invoke, app, asked)
        assert done.exit_code == 0, done.output
        results = [json.loads(line) for line in done.stdout.splitlines()]
        assert [result["status"] for result in results] == [status] * len(TEXTS)


async def test_served_model_is_unknown_behind_proxy_of_speech_alone() -> None:
    async with answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as url:
        assert await asyncio.to_thread(served_model, url, None) is None


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--ref-audio", "AAC, M4A, Ogg, WebM or Matroska.\n"),
        ("--ref-text", "talkwire: ref_text goes with ref_audio\n"),
    ],
)
async def test_batch_command_names_unusable_reference_once(
    tmp_path: Path, option: str, told: str
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    (tmp_path / "clip.wav").write_bytes(b"RIFF")
    command = ["batch", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out")]
    async with gateway() as server:
        asked = [*command, "--url", server.url, option, str(tmp_path / "clip.wav")]
        done = await asyncio.to_thread(CliRunner().invoke, app, asked)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.endswith(told)


def test_batch_command_with_empty_url_starts_no_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.batch._started", lambda *_: pytest.fail("engines were started"))
    texts = tmp_path / "texts.txt"
    texts.write_text("Hello.")
    command = ["batch", str(texts), "--out", str(tmp_path / "out"), "--url", ""]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stderr) == (1, "talkwire: not an address: \n")


async def test_batch_resumes_after_kill(tmp_path: Path) -> None:
    texts, out = tmp_path / "texts.txt", tmp_path / "out"
    texts.write_text("\n".join(f"This is the text with the number {n}." for n in range(12)))
    async with gateway(FakeTalker(row_s=0.002)) as server:
        program = "from service.cli import main; main()"
        command = [sys.executable, "-c", program, "batch", str(texts), "--out", str(out)]
        command += ["--url", server.http, "--seed", "5", "--concurrency", "2"]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, cwd=ROOT)
        assert process.stdout is not None
        async with asyncio.timeout(120):
            first = json.loads(await process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            await process.wait()
        assert first["status"] == "success"
        listed = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        files = {path.name for path in out.glob("*.wav")}
        assert {result["file"] for result in listed} <= files
        assert len(files) < 12
        for name in files:  # a file under its final name is complete
            text = f"This is the text with the number {int(name[:5]) - 1}."
            assert np.array_equal(read_wav(out / name), expected(server, text))
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, cwd=ROOT)
        async with asyncio.timeout(120):
            printed, _ = await process.communicate()
        assert process.returncode == 0
        results = [json.loads(line) for line in printed.splitlines()]
        assert sum(result["status"] == "kept" for result in results) == len(listed)
        assert len(list(out.glob("*.wav"))) == 12
        assert not list(out.glob(".*.partial"))
