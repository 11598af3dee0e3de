"""Speech as the streamed body of an HTTP response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

from service.admission import Lease
from service.auth.caller import current_caller
from service.contexts.options import (
    FlushEncoder,
    Line,
    SpeechOptions,
    SpeechPlan,
    plan_speech,
)
from service.contexts.speech_context import Audio, Output, SpeechContext, Words
from service.errors import ErrorTable, slow_consumer
from service.runtime import Runtime
from service.transport.connection_limits import PATIENCE
from service.transport.http_routes import ignored_header
from streaming.errors import CapacityError, TalkwireError
from streaming.events import Done, Warned
from streaming.word_timing import WordTiming

#: Audio that may wait for the writer before decoding pauses.
_BUFFER_S = 2.0
#: The header with warnings for people.
_WARNING = "x-talkwire-warning"
#: Maximum length of its text.
_MAX_WARNING_CHARS = 1000
#: Bytes per write, a multiple of every sample size and of base64's groups.
_PIECE_BYTES = 24 * 1024
#: Bytes of a long body that are passed on at a time; the next ones wait until these are taken.
_BODY_BYTES = 64 * 1024


class OutputQueue:
    """An OutputSink that the writer of a response reads. At most ``limit_samples`` of the codec's
    samples and one window wait for it, here or in the encoder.
    """

    def __init__(self, limit_samples: int) -> None:
        self._limit = limit_samples
        self._outputs: asyncio.Queue[Output] = asyncio.Queue()
        self._taken_samples = self._sent_samples = 0
        self._took = asyncio.Event()

    def put(self, output: Output, on_written: Callable[[], None] | None = None) -> None:
        """See OutputSink. Nothing is told of a cancel, which is the client's leaving."""
        self._outputs.put_nowait(output)

    def revoke(self) -> int:
        """See OutputSink. The writer has sent all that it has taken."""
        return self._sent_samples

    async def get(self) -> Output:
        """Wait for the next output."""
        output = await self._outputs.get()
        if isinstance(output, Audio):
            self._taken_samples += output.codec_samples
            self._sent_samples += output.samples
            self._took.set()
        return output

    async def room(self, given_samples: int) -> int | None:
        """See OutputSink. Waits while the writer is too far behind."""
        if given_samples - self._taken_samples < self._limit:
            return None
        while given_samples - self._taken_samples >= self._limit:
            self._took.clear()
            await self._took.wait()
        return self._taken_samples


class BodyRenderer:
    """Renders speech as a response's body: the plain audio, unless a dialect overrides it."""

    def __init__(self, media_type: str) -> None:
        self.media_type = media_type

    def words(self, timings: Sequence[WordTiming]) -> None:
        """Take the words of the next audio, timed in it, if the plan has word timings."""

    def audio(self, data: bytes) -> bytes:
        """Render a part of the encoded audio; the result may be empty."""
        return data

    def done(self, done: Done) -> bytes:
        """Render the end of the body, which may be empty."""
        return b""

    def broken(self, error: TalkwireError) -> bytes | None:
        """Render an error after the first byte. None breaks off: a message would be audible."""
        return None


def plan_response(
    runtime: Runtime, protocol: str, request_id: str, options: SpeechOptions
) -> SpeechPlan:
    """Return the plan of a context whose audio is one file. Raises RequestError, CapacityError."""
    runtime.lifecycle.require_ready()
    options = replace(
        options,
        max_lead_ms=runtime.settings.max_lead_ms,
        flush_encoder=FlushEncoder.AT_END,
        is_lenient=False,
    )
    return plan_speech(runtime, protocol, request_id, options)


def speak_over_http(
    request: Request,
    options: SpeechOptions,
    text: str | Sequence[Line],
    errors: ErrorTable,
    renderer: BodyRenderer | None = None,
    ignored: Iterable[str] = (),
) -> HttpSpeech:
    """Return the response with the speech of ``text``. Raises RequestError, CapacityError.

    Args:
        request: The request, on a SpeechRoute.
        options: What the client wants.
        text: All that is spoken, or the lines of several voices.
        errors: The dialect's errors.
        renderer: Renders the body; by default it is the encoded audio.
        ignored: The request's fields without effect, which a header names.
    """
    runtime: Runtime = request.app.state.runtime
    plan = plan_response(runtime, errors.dialect, request.state.request_id, options)
    renderer = renderer or BodyRenderer(options.format.media_type)
    lines = [Line(text)] if isinstance(text, str) else text
    return HttpSpeech(runtime, plan, lines, errors, renderer, ignored)


def open_response(
    runtime: Runtime, tasks: asyncio.TaskGroup, plan: SpeechPlan, lease: Lease
) -> tuple[SpeechContext, OutputQueue]:
    """Open a context whose audio is one file, with a queue of its outputs that limits decoding."""
    outputs = OutputQueue(int(_BUFFER_S * runtime.engines.codec.spec.sample_rate))
    return SpeechContext(runtime, tasks, plan, lease, outputs), outputs


class Spoken(NamedTuple):
    """The end of a context, its words with their times if the plan has word timings, and warnings
    of what of the text has no effect.
    """

    done: Done
    words: Sequence[WordTiming]
    warnings: Sequence[str]


async def speak_whole(
    context: SpeechContext, outputs: OutputQueue, text: str, on_audio: Callable[[Audio], None]
) -> Spoken:
    """Speak all of ``text``. Raises TalkwireError, also if only a part was spoken."""
    words: list[WordTiming] = []
    warnings: list[str] = []
    try:
        context.append(text)
        context.end()
        while not isinstance(output := await outputs.get(), Done):
            words += heard_words(output)
            if isinstance(output, Audio):
                on_audio(output)
            elif isinstance(output, Warned):
                warnings.append(output.message)
    finally:
        context.close()
    if output.error is not None:
        raise output.error
    return Spoken(output, words, warnings)


def heard_words(output: Output) -> Sequence[WordTiming]:
    """The words of an output, with their times in the decoded audio."""
    words = output.words if isinstance(output, Audio) else output
    return words.heard() if isinstance(words, Words) else ()


class HttpSpeech(Response):
    """A response with the speech of ``lines``.

    Nothing is sent before the first audio, so earlier errors have a status of their own. A later
    error without a message in the dialect leaves the body incomplete, which HTTP/1.1 clients
    notice. A header names the ``ignored`` fields.
    """

    def __init__(
        self,
        runtime: Runtime,
        plan: SpeechPlan,
        lines: Sequence[Line],
        errors: ErrorTable,
        renderer: BodyRenderer,
        ignored: Iterable[str] = (),
    ) -> None:
        self._runtime, self._plan, self._lines = runtime, plan, lines
        self._errors, self._renderer = errors, renderer
        self.status_code, self.media_type, self.background = 200, renderer.media_type, None
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        self.init_headers(headers | ignored_header(ignored))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak until the end, or until the client disconnects."""
        refused: TalkwireError | None = None
        try:
            caller = current_caller()
            characters = sum(len(line.text) for line in self._lines)
            self._runtime.accounts.require_text(caller, characters, time.monotonic())
            lease = self._runtime.admission.acquire(caller, self._plan.options.format.speed)
        except CapacityError as full:
            refused = full
        else:
            with self._runtime.lifecycle.connection():
                async with asyncio.TaskGroup() as tasks:
                    refused = await self._speak(lease, tasks, receive, send)
        if refused is not None:
            request_id = self._plan.request.request_id
            answer = self._runtime.errors.refusal(refused, self._errors, request_id)
            await answer(scope, receive, send)

    async def _speak(
        self, lease: Lease, tasks: asyncio.TaskGroup, receive: Receive, send: Send
    ) -> TalkwireError | None:
        """Speak, and return the error before the first byte, if any."""
        context, outputs = open_response(self._runtime, tasks, self._plan, lease)
        working: list[asyncio.Task[None]] = []
        body = ResponseBody(self, send, self._runtime, context.unplayed_s)
        try:
            for line in self._lines:
                if line.voice is not None:
                    context.change_voice(line.voice)
                context.append(line.text)
            context.end()
            working = [
                tasks.create_task(self._write(outputs, body)),
                tasks.create_task(until_gone(receive)),
            ]
            await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
        except TalkwireError as error:
            return error
        finally:
            context.close()
            for task in working:
                task.cancel()
        return body.refused

    def _warn(self, message: str) -> None:
        """Add a warning to the headers."""
        earlier = self.headers.get(_WARNING)
        text = message if earlier is None else f"{earlier} {message}"
        if len(text) <= _MAX_WARNING_CHARS:
            self.headers[_WARNING] = text.encode("ascii", "replace").decode()

    async def _write(self, outputs: OutputQueue, body: ResponseBody) -> None:
        try:
            while not isinstance(output := await outputs.get(), Done):
                if words := heard_words(output):
                    self._renderer.words(words)
                if isinstance(output, Warned) and not body.started:
                    self._warn(output.message)
                if isinstance(output, Audio):
                    data = output.data
                    for at in range(0, len(data), _PIECE_BYTES):
                        if piece := self._renderer.audio(data[at : at + _PIECE_BYTES]):
                            await body.put(piece)
            if output.error is not None:
                raise output.error
            await body.put(self._renderer.done(output), last=True)
        except TalkwireError as error:
            if not body.started:
                body.refused = error
                return
            request_id = self._plan.request.request_id
            self._runtime.errors.count(error, request_id, self._errors.dialect)
            told = self._renderer.broken(error)
            if told is not None and not body.stuck:
                await body.put(told, last=True)


class ResponseBody:
    """Sends a response, its head together with the first part of the body. ``unplayed_s`` returns
    how much of its audio the client has left to play at a time.
    """

    def __init__(
        self,
        head: Response,
        send: Send,
        runtime: Runtime,
        unplayed_s: Callable[[float], float] = lambda now: 0.0,
    ) -> None:
        self._head, self._send, self._runtime = head, send, runtime
        self._unplayed_s = unplayed_s
        self.started = self.stuck = False
        #: The error before the first byte, if any.
        self.refused: TalkwireError | None = None

    async def put(self, data: bytes, *, last: bool = False) -> None:
        """Send a part. Raises CapacityError (``slow_consumer``) if the client reads nothing."""
        if not self.started:
            self.started = True
            head, status = self._head.raw_headers, self._head.status_code
            await self._put({"type": "http.response.start", "status": status, "headers": head})
            self._runtime.metrics.opened.inc()
        for at in range(0, max(1, len(data)), _BODY_BYTES):  # after the previous is taken
            more = not last or at + _BODY_BYTES < len(data)
            piece = data[at : at + _BODY_BYTES]
            await self._put({"type": "http.response.body", "body": piece, "more_body": more})

    async def _put(self, message: Message) -> None:
        try:
            unplayed_s = self._unplayed_s(time.monotonic())
            async with asyncio.timeout(send_patience_s(self._runtime, unplayed_s)):
                await self._send(message)
        except TimeoutError:
            self.stuck = True
            raise slow_consumer() from None


def send_patience_s(runtime: Runtime, unplayed_s: float) -> float:
    """Return the seconds in which a client has to take something. Until a drain it has more time
    while it has ``unplayed_s`` seconds of audio to play.
    """
    settings = runtime.settings
    slow_s = settings.slow_consumer_s
    if runtime.lifecycle.is_draining:
        return slow_s
    return slow_s + min(unplayed_s, (PATIENCE - 1) * slow_s, settings.drain_s)


async def until_gone(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
