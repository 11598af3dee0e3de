"""The command ``talkwire batch``: speak each line of a file into a WAV file.

Engines in this process or a running service speak; both take the same request and give the same
audio. The folder's ``results.jsonl`` lists the results. An audio file gets its name only once it
is complete and on the disk, so a run that was killed can be resumed.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import fcntl
import functools
import hashlib
import http.client
import io
import json
import os
import socket
import ssl
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec
import typer
from pydantic import ValidationError

from service.audio.pcm import tell_wav_length
from service.build import build_runtime
from service.dialects.errors import validation_error
from service.dialects.openai.request import SpeechBody, speech_plan
from service.logs import set_up
from service.runtime import Runtime
from service.server import first_of, start_failure
from service.settings import Settings
from service.transport.http_response import open_response, speak_whole
from streaming.errors import BackendError, CapacityError, ErrorCode, RequestError, TalkwireError
from talkwire_client import DEFAULT_URL

_RESULTS = "results.jsonl"
_HEADER_BYTES = 44
_PIECE_BYTES = 64 * 1024
#: Allows for the wait until a response begins: in mode ``whole`` sentences are decoded at once.
_TIMEOUT_S = 600.0
#: A connection cannot be given up before, so this is also how long an interrupted batch may take.
_CONNECT_TIMEOUT_S = 10.0
_TRIES, _RETRY_S, _MOST_RETRY_S = 5, 1.0, 30.0
#: Statuses of a service that is full or starting; the request is repeated.
_LATER = (429, 503)
_MAX_ERROR_BYTES = 64 * 1024
#: Errors that every text of the batch would get.
_OF_ALL_TEXTS = (
    ErrorCode.UNAUTHORIZED,
    ErrorCode.FORBIDDEN,
    ErrorCode.DRAINING,
    ErrorCode.INVALID_AUDIO,  # of the reference clip
)
#: Characters of an address's path that are not to be quoted, or are quoted already.
_QUOTED = "/%:@!$&'()*+,;=~"
#: Fields of the speech that the command line can set.
_SPEECH_FIELDS = ("voice", "ref_audio", "ref_text", "temperature", "seed", "scene")
#: Takes parts of a WAV file whose header does not give its length.
Write = Callable[[bytes], None]
#: Speaks one text. Raises TalkwireError if this text cannot be spoken, or not now, and BatchError
#: if no text can be.
Speak = Callable[[str, Write], Awaitable[None]]


class BatchError(Exception):
    """The batch cannot go on; the text says why."""


class OptionError(Exception):
    """An option of the speech is out of range; the text names it and shows the value."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options of a batch. The folder ``out`` is created if necessary. ``concurrency`` texts are
    spoken at a time.
    """

    out: Path
    #: Fields of ``POST /v1/audio/speech`` besides the text. Those that are None are omitted.
    speech: Mapping[str, Any] = field(default_factory=dict, repr=False)
    concurrency: int = 4
    #: Part of the digest, so that another model's results are not kept.
    model: str | None = None

    def body(self, text: str) -> dict[str, Any]:
        """Return the body of ``POST /v1/audio/speech`` for one text."""
        fields = {"input": text, **self.speech, "response_format": "wav", "mode": "whole"}
        return {name: value for name, value in fields.items() if value is not None}

    def digest(self, text: str) -> str:
        """Return a digest of a text and of the options that determine its audio."""
        voice, clip, ref_text, temperature, seed, scene = map(self.speech.get, _SPEECH_FIELDS)
        clip = None if clip is None else hashlib.sha256(base64.b64decode(clip)).hexdigest()
        said = [text, voice, clip, ref_text, temperature, seed, self.model, scene]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


class Item(NamedTuple):
    """A text and its line number, from 1."""

    line: int
    text: str

    @property
    def file(self) -> str:
        """Name of the text's audio file."""
        return f"{self.line:05d}.wav"


def read_items(data: bytes) -> list[Item]:
    """Return the lines that are not blank. Raises BatchError."""
    # bytes are split only at line ends, a str also at characters that texts may contain
    lines = data.removeprefix(codecs.BOM_UTF8).splitlines()
    try:
        texts = [line.decode().strip() for line in lines]
    except UnicodeDecodeError as error:
        raise BatchError("the texts are not UTF-8") from error
    items = [Item(number, text) for number, text in enumerate(texts, 1) if text]
    if not items:
        raise BatchError("there is no text: one is expected on each line")
    return items


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the results. ``status``: ``success``, ``error``, or ``kept`` for the success of an
    earlier run.
    """

    line: int
    status: str
    digest: str
    file: str | None = None
    bytes: int = 0
    audio_s: float = 0.0
    code: str | None = None
    message: str | None = None


class Results:
    """The results file of a folder, locked against other runs."""

    def __init__(self, out: Path, file: BinaryIO, known: dict[int, Result]) -> None:
        self._out, self._file, self._known = out, file, known

    @classmethod
    @contextlib.contextmanager
    def open(cls, out: Path) -> Iterator[Results]:
        """Lock the folder, and read the results of earlier runs. Raises BatchError."""
        try:
            out.mkdir(parents=True, exist_ok=True)
            file = (out / _RESULTS).open("a+b")
        except OSError as error:
            raise BatchError(f"cannot write to {out}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BatchError(f"another run writes to {out}") from error
            except OSError as error:  # some network file systems have no locks
                raise BatchError(f"cannot lock {out}: {error.strerror}") from error
            for partial in out.glob(".*.wav.partial"):
                partial.unlink(missing_ok=True)
            file.seek(0)
            data, known = file.read(), dict[int, Result]()
            if data and not data.endswith(b"\n"):  # a killed run did not finish its line
                file.write(b"\n")
            for line in data.splitlines():
                with contextlib.suppress(msgspec.MsgspecError):  # half a line
                    result = msgspec.json.decode(line, type=Result)
                    known[result.line] = result
            yield cls(out, file, known)
        finally:
            with contextlib.suppress(OSError):  # of a full disk, which ``add`` has raised
                file.close()

    def kept(self, item: Item, digest: str) -> Result | None:
        """Return the result of an earlier run if its audio exists and its digest is the same."""
        known = self._known.get(item.line)
        if known is None or known.status != "success" or known.digest != digest:
            return None
        with contextlib.suppress(OSError):
            if (self._out / item.file).stat().st_size == known.bytes:
                return msgspec.structs.replace(known, status="kept")
        return None

    def add(self, result: Result) -> None:
        """Write a result through to the disk. Raises OSError."""
        self._file.write(msgspec.json.encode(result) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


class PartialWav:
    """A WAV file with a temporary name until it is complete."""

    def __init__(self, path: Path) -> None:
        self._path, self._partial = path, path.with_name(f".{path.name}.partial")
        self._file = self._partial.open("w+b")
        self.bytes = 0

    def write(self, data: bytes) -> None:
        """Append ``data``. Raises BatchError, which a speaker does not take for the network's."""
        try:
            self._file.write(data)
        except OSError as error:
            raise BatchError(f"cannot write to {self._path.parent}: {error.strerror}") from error
        self.bytes += len(data)

    def complete(self) -> float:
        """Write the length into the header, sync the file to the disk and give it its name. Returns
        the seconds of audio. Raises OSError.
        """
        self._file.seek(0)
        header = bytearray(self._file.read(_HEADER_BYTES))
        tell_wav_length(header, self.bytes)
        self._file.seek(0)
        self._file.write(header)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self._path)
        rate = int.from_bytes(header[24:28], "little")
        return (self.bytes - _HEADER_BYTES) / 2 / rate

    def discard(self) -> None:
        """Remove the file, unless it is complete."""
        self._partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there may be no room for what is buffered
            self._file.close()


async def run_batch(
    items: Sequence[Item],
    options: BatchOptions,
    speak: Speak,
    results: Results,
    on_result: Callable[[Result], None],
) -> int:
    """Speak items without a result, and return the number that failed. ``on_result`` is called with
    each result as it comes. Raises BatchError if no more can be spoken or written, or what
    ``on_result`` raises; complete results are kept.
    """
    todo, failed = iter(items), 0

    async def work() -> None:
        nonlocal failed
        for item in todo:
            digest = options.digest(item.text)
            result = results.kept(item, digest)
            if result is None:
                result = await _make(item, options.out, digest, speak)
                results.add(result)
            failed += result.status == "error"
            on_result(result)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(options.concurrency):
                tasks.create_task(work())
    except ExceptionGroup as group:
        error = first_of(group)
        if isinstance(error, (BatchError, BrokenPipeError)):
            raise error from None
        if isinstance(error, OSError):
            raise BatchError(f"cannot write to {options.out}: {error.strerror}") from error
        raise
    return failed


async def _make(item: Item, out: Path, digest: str, speak: Speak) -> Result:
    """Speak one text. Retryable failures are tried again."""
    tried = 0
    while True:
        tried += 1
        wav = PartialWav(out / item.file)
        try:
            await speak(item.text, wav.write)
            audio_s = round(wav.complete(), 3)
            return Result(item.line, "success", digest, item.file, wav.bytes, audio_s)
        except TalkwireError as error:
            if tried >= _TRIES or not error.retryable:
                code, message = error.code.value, error.message
                return Result(item.line, "error", digest, code=code, message=message)
            later_s = (error.retry_after_ms or 0) / 1000
        finally:
            wav.discard()
        await asyncio.sleep(min(_MOST_RETRY_S, max(_RETRY_S, later_s)))


async def engine_speaker(runtime: Runtime, options: BatchOptions) -> Speak:
    """Return a speaker that uses the running engines. Raises RequestError for an unusable clip."""
    if (clip := options.speech.get("ref_audio")) is not None:
        remember = runtime.cloner.prepare(clip, options.speech.get("ref_text"), "ref_audio")
        await remember()

    async def speak(text: str, write: Write) -> None:
        body = SpeechBody.model_validate(options.body(text))
        plan = speech_plan(body, runtime, uuid.uuid4().hex, buffered=True)
        lease = runtime.admission.acquire()
        failure: TalkwireError | None = None
        async with asyncio.TaskGroup() as tasks:  # a task group would wrap an error
            speech, outputs = open_response(runtime, tasks, plan, lease)
            try:
                await speak_whole(speech, outputs, text, lambda audio: write(audio.data))
            except TalkwireError as error:
                failure = error
        if failure is not None:
            raise failure

    return speak


class _Service(NamedTuple):
    """Where a service is, and how it is asked. ``shown`` is its address without a password."""

    connect: Callable[[], http.client.HTTPConnection]
    prefix: str
    headers: Mapping[str, str]
    shown: str


def _service(url: str, api_key: str | None) -> _Service:
    """Parse an address. Raises BatchError if it is bad, or for a key that no header can hold."""
    told = f"not an address: {url.rpartition('@')[2]}"  # without a password
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # raises ValueError, as a connection would
    except ValueError as error:
        raise BatchError(told) from error
    if parts.scheme not in ("http", "https", "ws", "wss") or not host:
        raise BatchError(told)
    is_tls = parts.scheme in ("https", "wss")
    kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
    headers = {}
    if api_key is not None:
        if not (api_key.isascii() and api_key.isprintable()):  # http.client's error would show it
            raise BatchError("the API key has characters that no key has")
        headers["authorization"] = f"Bearer {api_key}"
    elif parts.username is not None:
        who = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        encoded = base64.b64encode(who.encode(errors="surrogateescape")).decode()
        headers["authorization"] = f"Basic {encoded}"
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    prefix, _, _ = f"{parts.path}/".partition("/v1/")
    quoted = quote(prefix.rstrip("/"), safe=_QUOTED, errors="surrogateescape")
    connect = functools.partial(kind, host, port, timeout=_CONNECT_TIMEOUT_S)
    return _Service(connect, f"{quoted}/v1", headers, shown)


def _broken(shown: str, error: Exception) -> BatchError:
    if isinstance(error, ssl.SSLCertVerificationError):
        trust = "SSL_CERT_FILE names the certificates to trust"
        return BatchError(f"{shown} is not trusted: {error.verify_message}; {trust}")
    return BatchError(f"the server at {shown} is gone: {error}")


def served_model(url: str, api_key: str | None) -> str | None:
    """Ask a service for its model's name; None if it does not tell. ``url`` and ``api_key`` are as
    of ``server_speaker``. Raises BatchError.
    """
    service = _service(url, api_key)
    connection = service.connect()
    try:
        connection.request("GET", f"{service.prefix}/models", headers=service.headers)
        answer = connection.getresponse()
        told = answer.read(_MAX_ERROR_BYTES)
    except (ConnectionRefusedError, TimeoutError) as error:
        raise BatchError(f"no server answers at {service.shown}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _broken(service.shown, error) from error
    finally:
        connection.close()
    if answer.status == http.client.NOT_FOUND:  # a proxy may pass on no more than speech
        return None
    if answer.status != http.client.OK:
        refused = _refused(answer.status, told, None)
        raise refused if isinstance(refused, BatchError) else BatchError(refused.message)
    try:
        return str(json.loads(told)["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise BatchError(f"the server at {service.shown} is not Talkwire") from error


def server_speaker(url: str, api_key: str | None, options: BatchOptions) -> Speak:
    """Return a speaker that uses a service's OpenAI API. ``url`` is any of the service's, or where
    a proxy has it. Its name and password, if any, are sent unless there is a key. Raises BatchError
    for a bad address, or a key that no header can hold.
    """
    service = _service(url, api_key)
    headers = {"content-type": "application/json", **service.headers}
    path, shown = f"{service.prefix}/audio/speech", service.shown
    # a request holds a thread; the loop's own pool has fewer than texts may be spoken at once
    pool = ThreadPoolExecutor(options.concurrency)

    async def speak(text: str, write: Write) -> None:
        connection, is_over = service.connect(), threading.Event()
        in_thread = functools.partial(asyncio.get_running_loop().run_in_executor, pool)

        def connect() -> None:
            connection.connect()
            connection.auto_open = 0  # a thread that is late must not connect again
            if is_over.is_set():
                connection.close()
            else:
                connection.sock.settimeout(_TIMEOUT_S)

        def ask(body: bytes) -> http.client.HTTPResponse:
            connection.request("POST", path, body, headers)
            return connection.getresponse()

        try:
            try:
                await in_thread(connect)
            except TimeoutError as error:
                raise BatchError(f"no server answers at {shown}") from error
            answer = await in_thread(ask, json.dumps(options.body(text)).encode())
            is_audio = answer.headers.get_content_type() == "audio/wav"
            if answer.status != http.client.OK or not is_audio:
                told = await in_thread(answer.read, _MAX_ERROR_BYTES)
                raise _refused(answer.status, told, answer.headers.get("retry-after-ms"))
            while data := await in_thread(answer.read, _PIECE_BYTES):
                write(data)
        except ConnectionRefusedError as error:
            raise BatchError(f"no server answers at {shown}") from error
        except http.client.IncompleteRead as error:  # how a server signals a late failure
            broken = "The server broke the audio off."
            raise BackendError(ErrorCode.ENGINE_FAILED, broken) from error
        except (OSError, http.client.HTTPException) as error:
            raise _broken(shown, error) from error
        finally:
            is_over.set()
            if connection.sock is not None:  # wake the thread that may still read from it
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    return speak


def _refused(status: int, body: bytes, retry_after_ms: str | None) -> TalkwireError | BatchError:
    """Parse a refusal: an error of this text, or BatchError if no text can be spoken."""
    try:
        error = json.loads(body)["error"]
        code, message = ErrorCode(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return BatchError(f"the server answered {status}, and not as Talkwire does")
    if code in _OF_ALL_TEXTS:
        return BatchError(message)
    if status in _LATER:
        hint = retry_after_ms or ""
        hint_ms = int(hint) if hint.isdecimal() else None
        return CapacityError(code, message, retry_after_ms=hint_ms)
    return RequestError(code, message) if status < 500 else BackendError(code, message)


def run_command(
    items: Sequence[Item],
    options: BatchOptions,
    settings: Settings | None,
    url: str | None,
    api_key: str | None,
) -> int:
    """Run ``talkwire batch``, with results on stdout and a progress bar on stderr. Engines with
    ``settings`` speak; if these are None, the service at ``url``. Returns the number of texts that
    failed. Raises OptionError, before anything is made, BatchError, and BrokenPipeError if nothing
    reads the results any more.
    """
    if options.speech.get("ref_text") is not None and options.speech.get("ref_audio") is None:
        raise BatchError("ref_text goes with ref_audio")
    try:
        SpeechBody.model_validate(options.body("text"))
    except ValidationError as error:
        raise OptionError(validation_error(error.errors(), rooted=False).message) from error
    if settings is None:
        url = DEFAULT_URL if url is None else url
        options = replace(options, model=served_model(url, api_key))
    with Results.open(options.out) as results:
        needs_engines = settings is not None and not all(
            results.kept(item, options.digest(item.text)) for item in items
        )

        async def command() -> int:
            async with contextlib.AsyncExitStack() as stack:
                if settings is None or not needs_engines:
                    speak = server_speaker(url or DEFAULT_URL, api_key, options)
                else:
                    speak = await stack.enter_async_context(_started(settings, options))
                # without a file the bar would be shown among the results
                shown_on = io.StringIO() if sys.stderr is None else sys.stderr
                bar = stack.enter_context(
                    typer.progressbar(length=len(items), label="Speaking", file=shown_on)
                )

                def on_result(result: Result) -> None:
                    try:
                        typer.echo(msgspec.json.encode(result).decode())  # if stdout is open
                    except BrokenPipeError:
                        raise
                    except OSError as error:
                        told = f"cannot write standard output: {error.strerror}"
                        raise BatchError(told) from error
                    bar.update(1)

                return await run_batch(items, options, speak, results, on_result)

        return asyncio.run(command())


@contextlib.asynccontextmanager
async def _started(settings: Settings, options: BatchOptions) -> AsyncIterator[Speak]:
    """Run engines during the block. Raises BatchError."""
    # lines of the default level would break the progress bar
    log = set_up("error" if settings.log_level == "info" else settings.log_level, "auto")
    is_ready = False

    def on_progress(worker: str, phase: str, seconds: float) -> None:
        if not is_ready:
            log.say(f"  {worker}: {phase}")

    async with contextlib.AsyncExitStack() as stack:
        stack.callback(log.close)
        try:
            runtime = build_runtime(settings, on_progress)
            stack.push_async_callback(runtime.stop)
            await runtime.start()
            speak = await engine_speaker(runtime, options)
        except Exception as error:
            raise BatchError(start_failure(error)) from error
        is_ready = True
        yield speak
