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
import hashlib
import io
import json
import os
import re
import ssl
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

import httpx2
import msgspec
import typer
from pydantic import ValidationError

from service.audio.pcm import tell_wav_length
from service.build import build_runtime
from service.dialects.openai.captions import CaptionFormat, captioned
from service.dialects.openai.request import (
    EVENTS,
    NAME,
    FinishReason,
    SpeechBody,
    finish_reason,
    speech_options,
)
from service.errors import validation_error
from service.gateway import first_of, start_failure
from service.logs import set_up
from service.runtime import Runtime
from service.settings import Settings
from service.transport.http_response import Spoken as Whole
from service.transport.http_response import open_response, plan_response, speak_whole
from streaming.errors import BackendError, CapacityError, ErrorCode, RequestError, TalkwireError
from talkwire_client import DEFAULT_URL

_RESULTS = "results.jsonl"
_HEADER_BYTES = 44
#: Allows for the wait until a response begins: in mode ``whole`` sentences are decoded at once.
_TIMEOUT_S = 600.0
_CONNECT_TIMEOUT_S = 10.0
_TRIES, _RETRY_S, _MOST_RETRY_S = 5, 1.0, 30.0
#: Statuses of a service that is full or starting; the request is repeated.
_LATER = (429, 503)
_MAX_ERROR_BYTES = 64 * 1024
#: The header with warnings of a text.
_WARNING = "x-talkwire-warning"
#: The beginning of an event's line.
_DATA = "data: "
#: Of up to 10,000 voices, each with texts.
_MAX_LIST_BYTES = 64 << 20
_T = TypeVar("_T")
#: Errors that every text of the batch would get.
_OF_ALL_TEXTS = (
    ErrorCode.UNAUTHORIZED,
    ErrorCode.FORBIDDEN,
    ErrorCode.DRAINING,
    ErrorCode.INVALID_AUDIO,  # of the reference clip
)
_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_MAX_PORT = 0xFFFF
_SURROGATES = re.compile("[\udc80-\udcff]")
#: Fields of the speech that the command line can set.
_SPEECH_FIELDS = (
    "voice", "ref_audio", "ref_text", "temperature", "seed", "scene", "instructions",
    "pronunciations",
)  # fmt: skip
#: Takes parts of a WAV file whose header does not give its length.
Write = Callable[[bytes], None]


class Spoken(NamedTuple):
    """Why a text's audio ended, its captions, if they are wanted, and warnings of what of the text
    has no effect.
    """

    finish_reason: FinishReason
    captions: str | list[dict[str, Any]] | None = None
    warnings: Sequence[str] = ()


#: Speaks one text. Raises TalkwireError if this text cannot be
#: spoken, or not now, and BatchError if no text can be.
Speak = Callable[[str, Write], Awaitable[Spoken]]


class BatchError(Exception):
    """The batch cannot go on; the text says why."""


class NoServiceError(BatchError):
    """No service answers at the address, or its connection was lost."""


class ServedVoice(msgspec.Struct):
    """A voice of a service, in the list of ``GET /v1/audio/voices``."""

    name: str
    description: str | None = None
    language: str | None = None
    default: bool = False


class _Voices(msgspec.Struct):
    data: list[ServedVoice]
    voice_names: list[str]


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: Annotated[list[_Model], msgspec.Meta(min_length=1)]


class _Event(msgspec.Struct):
    """An event of ``POST /v1/audio/speech``. ``audio`` is base64 in JSON."""

    type: str
    audio: bytes = b""
    finish_reason: FinishReason = "stop"
    captions: str | list[dict[str, Any]] | None = None


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
    #: Format of captions to write beside each audio file.
    captions: CaptionFormat | None = None

    def body(self, text: str) -> dict[str, Any]:
        """Return the body of ``POST /v1/audio/speech`` for one text."""
        fields = {"input": text, **self.speech, "response_format": "wav", "mode": "whole"}
        fields["captions"] = self.captions
        return {name: value for name, value in fields.items() if value is not None}

    def digest(self, text: str) -> str:
        """Return a digest of a text and of the options that determine its audio."""
        said = {name: self.speech.get(name) for name in _SPEECH_FIELDS}
        if (clip := said["ref_audio"]) is not None:
            said["ref_audio"] = hashlib.sha256(base64.b64decode(clip)).hexdigest()
        said |= {"text": text, "model": self.model, "captions": self.captions}
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


class Item(NamedTuple):
    """A text and its line number, from 1."""

    line: int
    text: str

    @property
    def file(self) -> str:
        """Name of the text's audio file."""
        return self.named("wav")

    def named(self, ending: str) -> str:
        """Name of one of the text's files."""
        return f"{self.line:05d}.{ending}"


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
    earlier run. ``finish_reason`` of a success: ``length`` if an utterance was cut, else ``stop``.
    ``captions``: the file with them, if they were wanted. ``warnings`` are for people.
    """

    line: int
    status: str
    digest: str
    file: str | None = None
    bytes: int = 0
    audio_s: float = 0.0
    finish_reason: FinishReason | None = None
    captions: str | None = None
    code: str | None = None
    message: str | None = None
    warnings: Sequence[str] = ()


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
            is_whole = (self._out / item.file).stat().st_size == known.bytes
            if is_whole and (known.captions is None or (self._out / known.captions).is_file()):
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
                result = await _make(item, options, digest, speak)
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


async def _make(item: Item, options: BatchOptions, digest: str, speak: Speak) -> Result:
    """Speak one text. Retryable failures are tried again."""
    captions = None if options.captions is None else item.named(options.captions)
    tried = 0
    while True:
        tried += 1
        wav = PartialWav(options.out / item.file)
        try:
            spoken = await speak(item.text, wav.write)
            if captions is not None:
                _write_captions(options.out / captions, spoken.captions)
            audio_s = round(wav.complete(), 3)
            return Result(
                item.line,
                "success",
                digest,
                item.file,
                wav.bytes,
                audio_s,
                spoken.finish_reason,
                captions,
                warnings=spoken.warnings,
            )
        except TalkwireError as error:
            if tried >= _TRIES or not error.retryable:
                code, message = error.code.value, error.message
                return Result(item.line, "error", digest, code=code, message=message)
            later_s = (error.retry_after_ms or 0) / 1000
        finally:
            wav.discard()
        await asyncio.sleep(min(_MOST_RETRY_S, max(_RETRY_S, later_s)))


def _write_captions(path: Path, captions: str | list[dict[str, Any]] | None) -> None:
    """Write captions, before the audio gets its name. Raises BatchError, OSError."""
    if captions is None:
        raise BatchError("the server sends no captions")
    text = captions if isinstance(captions, str) else json.dumps(captions, ensure_ascii=False)
    path.write_text(text, encoding="utf-8")


async def engine_speaker(runtime: Runtime, options: BatchOptions) -> Speak:
    """Return a speaker that uses the running engines. Raises RequestError for an unusable clip."""
    if (clip := options.speech.get("ref_audio")) is not None:
        remember = runtime.voices.cloner.prepare(clip, options.speech.get("ref_text"), "ref_audio")
        await remember()

    async def speak(text: str, write: Write) -> Spoken:
        body = SpeechBody.model_validate(options.body(text))
        wanted = replace(speech_options(body, runtime), buffered=True)
        plan = plan_response(runtime, NAME, uuid.uuid4().hex, wanted)
        lease = runtime.admission.acquire(speed=plan.options.format.speed)
        ended: Whole | TalkwireError
        async with asyncio.TaskGroup() as tasks:  # a task group would wrap an error
            speech, outputs = open_response(runtime, tasks, plan, lease)
            try:
                ended = await speak_whole(speech, outputs, text, lambda audio: write(audio.data))
            except TalkwireError as error:
                ended = error
        if isinstance(ended, TalkwireError):
            raise ended
        captions = captioned(body.captions, ended.words).get("captions")
        return Spoken(finish_reason(ended.done), captions, ended.warnings)

    return speak


class _Service:
    """A service with OpenAI's API, at any of its addresses or where a proxy has it.

    A name and password in ``url``, if any, are sent unless there is a key. Raises BatchError for a
    bad address, or a key that no header can hold.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        refused = BatchError(f"not an address: {url.rpartition('@')[2]}")  # without a password
        # a command line that is not UTF-8 has surrogates
        quoted = _SURROGATES.sub(lambda found: f"%{ord(found[0]) - 0xDC00:02X}", url)
        try:
            address = httpx2.URL(quoted if "://" in quoted else f"http://{quoted}")
            address.host.encode("idna")  # raises ValueError, as a connection would
        except (httpx2.InvalidURL, ValueError) as error:
            raise refused from error
        scheme = _SCHEMES.get(address.scheme)
        if scheme is None or not address.host or (address.port or 0) > _MAX_PORT:
            raise refused
        self._headers = {"accept-encoding": "identity"}
        if api_key is not None:
            if not (api_key.isascii() and api_key.isprintable()):  # an error of httpx would show it
                raise BatchError("the API key has characters that no key has")
            self._headers["authorization"] = f"Bearer {api_key}"
        elif address.userinfo:
            name, _, password = map(unquote_to_bytes, address.userinfo.partition(b":"))
            encoded = base64.b64encode(b"%b:%b" % (name, password)).decode()
            self._headers["authorization"] = f"Basic {encoded}"
        public = address.copy_with(username=None, password=None)
        #: Its address as the user gave it, without a password.
        self.shown = str(public)
        prefix = f"{public.raw_path.decode().partition('?')[0]}/".partition("/v1/")[0].rstrip("/")
        path = f"{prefix}/v1".encode()
        self._base = public.copy_with(scheme=scheme, raw_path=path, fragment=None)
        self._tls = ssl.create_default_context()  # the system's certificates, or SSL_CERT_FILE's

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, timeout_s: float, **request: Any
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request on a connection of its own. Yields the response, whose body can be
        streamed in the block. Raises NoServiceError if there is no response, or it breaks off.
        """
        client = httpx2.AsyncClient(
            base_url=self._base,
            headers=self._headers,
            verify=self._tls,
            timeout=httpx2.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S),
            trust_env=False,
        )
        try:
            async with client, client.stream(method, path, **request) as answer:
                yield answer
        except httpx2.HTTPError as error:
            raise self._broken(error) from error

    def _broken(self, error: httpx2.HTTPError) -> NoServiceError:
        cause: BaseException = error
        while (deeper := cause.__cause__ or cause.__context__) is not None:
            cause = deeper
        if isinstance(error, httpx2.TimeoutException) or isinstance(cause, ConnectionRefusedError):
            return NoServiceError(f"no server answers at {self.shown}")
        if isinstance(cause, ssl.SSLCertVerificationError):
            trust = "SSL_CERT_FILE names the certificates to trust"
            return NoServiceError(f"{self.shown} is not trusted: {cause.verify_message}; {trust}")
        return NoServiceError(
            f"the server at {self.shown} is gone: {cause or type(error).__name__}"
        )


async def _read(answer: httpx2.Response, max_bytes: int) -> bytes:
    """Read a body, of which only the first ``max_bytes`` are wanted."""
    body = bytearray()
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) >= max_bytes:
            break
    return bytes(body[:max_bytes])


def served_model(url: str, api_key: str | None) -> str | None:
    """Request a service's name of its model; None if it has no list of models. ``url`` and
    ``api_key`` are as of ``server_speaker``. Raises BatchError.
    """
    models = asyncio.run(_fetch(url, api_key, "models", _Models))
    return None if models is None else models.data[0].id


def served_voices(url: str, api_key: str | None) -> list[ServedVoice]:
    """Request a service's voices, the default first. ``url`` and ``api_key`` are as of
    ``server_speaker``. Raises BatchError.
    """
    voices = asyncio.run(_fetch(url, api_key, "audio/voices", _Voices))
    if voices is None:
        raise BatchError("the server lists no voices")
    described = {voice.name: voice for voice in voices.data}
    return [described.get(name, ServedVoice(name)) for name in voices.voice_names]


async def _fetch(url: str, api_key: str | None, name: str, kind: type[_T]) -> _T | None:
    """Get a resource of a service's OpenAI API; None if it has none. Raises BatchError."""
    service = _Service(url, api_key)
    async with service.request("GET", name, _CONNECT_TIMEOUT_S) as answer:
        body = await _read(answer, _MAX_LIST_BYTES)
    if answer.status_code == HTTPStatus.NOT_FOUND:  # a proxy may pass on no more than speech
        return None
    if answer.status_code != HTTPStatus.OK:
        refused = _refused(answer.status_code, body, None)
        raise refused if isinstance(refused, BatchError) else BatchError(refused.message)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise BatchError(f"the server at {service.shown} is not Talkwire") from error


def server_speaker(url: str, api_key: str | None, options: BatchOptions) -> Speak:
    """Return a speaker that uses a service's OpenAI API. ``url`` is any of the service's, or where
    a proxy has it. Its name and password, if any, are sent unless there is a key. Raises BatchError
    for a bad address, or a key that no header can hold.
    """
    service = _Service(url, api_key)

    async def speak(text: str, write: Write) -> Spoken:
        request = {
            "content": json.dumps({**options.body(text), "stream_format": "sse"}).encode(),
            "headers": {"content-type": "application/json"},
        }
        async with service.request("POST", "audio/speech", _TIMEOUT_S, **request) as answer:
            media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
            if answer.status_code != HTTPStatus.OK or media_type != EVENTS:
                error = await _read(answer, _MAX_ERROR_BYTES)
                raise _refused(answer.status_code, error, answer.headers.get("retry-after-ms"))
            try:
                async for line in answer.aiter_lines():
                    if line.startswith(_DATA) and (spoken := _take_event(line, write)):
                        warning = answer.headers.get(_WARNING)
                        return spoken._replace(warnings=[] if warning is None else [warning])
            except httpx2.RemoteProtocolError as error:
                raise _broken_off() from error
            raise _broken_off()

    return speak


def _take_event(line: str, write: Write) -> Spoken | None:
    """Write the audio of an event. Returns what the last event says. Raises as ``Speak`` does if it
    is an error.
    """
    data = line.removeprefix(_DATA).encode()
    try:
        event = msgspec.json.decode(data, type=_Event)
    except msgspec.MsgspecError as error:
        raise BatchError("the server's events are not those of Talkwire") from error
    if event.type == "error":
        raise _refused(HTTPStatus.INTERNAL_SERVER_ERROR, data, None)
    write(event.audio)
    is_last = event.type == "speech.audio.done"
    return Spoken(event.finish_reason, event.captions) if is_last else None


def _broken_off() -> BackendError:
    return BackendError(ErrorCode.ENGINE_FAILED, "The server broke the audio off.")


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
