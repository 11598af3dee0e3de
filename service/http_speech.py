"""The shell around one HTTP response that speaks: a context, its writer, and two watchers.

A dialect only words it (``Wording``); admission, pacing, encoding, a client that leaves or
does not read, and draining are the same for all of them and live here.

Audio goes out as fast as it is made, up to the session's lead limit. What bounds the memory
is the client: while it does not read, samples gather in the buffer, and once that is full
no window is decoded (``service.context.Room``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from service.audio.packet import AudioEncoder, Packet
from service.context import ContextDriver
from service.http_buffer import SpeechBuffer
from service.runtime import Runtime
from service.talker_feed import Prepare
from streaming.errors import BackendError, CapacityError, ErrorCode, TalkwireError
from streaming.events import Broke, CancelAsked, Done, EndAsked, SendAudio, TextAppended
from streaming.ports import SpeechRequest
from streaming.session import Session
from streaming.words import WordTiming

log = logging.getLogger(__name__)

#: What is written at once, in whole samples and whole groups of base64.
_PIECE_BYTES = 24 * 1024
#: Of an answer that is there at once, so much is handed on before the client has taken the rest.
_BODY_BYTES = 64 * 1024


class Wording(Protocol):
    """How a dialect words what is spoken."""

    @property
    def media_type(self) -> str:
        """Of the whole body."""

    def audio(self, data: bytes) -> bytes:
        """A piece of the encoded audio; may be nothing yet."""

    def done(self, done: Done) -> bytes:
        """What follows the last of it; may be nothing."""

    def broken(self, error: TalkwireError) -> bytes | None:
        """An error after the first byte. None: it can be told only by breaking off."""

    def refusal(self, error: TalkwireError) -> Response:
        """An error before the first byte."""


@dataclass(frozen=True, slots=True)
class HttpContext:
    """What is to be spoken. ``protocol`` is the metrics' label; see ContextDriver for
    ``prepare``.
    """

    protocol: str
    text: str
    session: Session
    request: SpeechRequest
    encoder: AudioEncoder
    prepare: Prepare | None = None


def count_error(runtime: Runtime, error: TalkwireError, request_id: str) -> None:
    """A client is told of an error; its request id finds it in the logs."""
    runtime.on_error(error.code)
    log.info("client error", extra={"code": error.code.value, "request_id": request_id})


class HttpSpeech(Response):
    """Speaks one text as the body of a response.

    Nothing is sent before the first audio is there, so what fails until then is answered
    with a status of its own. What fails later, and has no words in the dialect, leaves the
    body without its end, which no HTTP/1.1 client can take for a whole one. ``words``, where
    the context's request asks for words, is told of each before ``wording`` is given its audio.
    """

    def __init__(
        self,
        runtime: Runtime,
        context: HttpContext,
        wording: Wording,
        words: Callable[[Sequence[WordTiming]], None] | None = None,
    ) -> None:
        self._runtime, self._context, self._wording = runtime, context, wording
        self._words = words
        self.status_code, self.media_type, self.background = 200, wording.media_type, None
        self.init_headers(
            {
                "x-request-id": context.request.request_id,
                "cache-control": "no-store",
                "x-accel-buffering": "no",
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak until the end, or until the client leaves."""
        refused: TalkwireError | None = None
        try:
            self._runtime.require_text(self._context.text)
            self._runtime.admission.enter(self._context.session.speed)
        except CapacityError as full:
            refused = full
        else:
            buffer = SpeechBuffer(
                self._runtime, self._context.protocol, self._context.session.speed
            )
            with self._runtime.connection():
                async with asyncio.TaskGroup() as tasks:
                    refused = await self._speak(buffer, tasks, receive, send)
        if refused is not None:
            count_error(self._runtime, refused, self._context.request.request_id)
            await self._wording.refusal(refused)(scope, receive, send)

    async def _speak(
        self, buffer: SpeechBuffer, tasks: asyncio.TaskGroup, receive: Receive, send: Send
    ) -> TalkwireError | None:
        """Returns the error that came before the first byte, if one did."""
        session, request = self._context.session, self._context.request
        driver = ContextDriver(
            self._runtime,
            session,
            request,
            buffer,
            tasks,
            buffer.room,
            self._context.prepare,
            self._context.protocol,
        )
        working: list[asyncio.Task[None]] = []
        counted = self._runtime.metrics.opened.inc
        body = _Body(self, send, self._runtime.settings.slow_consumer_s, counted)
        try:
            driver.post(TextAppended(self._context.text))
            driver.post(EndAsked())
            working = [
                tasks.create_task(self._write(buffer, body)),
                tasks.create_task(_until_gone(receive)),
                tasks.create_task(self._until_drained(driver)),
            ]
            await asyncio.wait(working[:2], return_when=asyncio.FIRST_COMPLETED)
        except TalkwireError as error:
            return error
        finally:
            driver.post(CancelAsked(unsent_samples=buffer.waiting_samples))
            for task in working:
                task.cancel()
        return body.refused

    async def _until_drained(self, driver: ContextDriver) -> None:
        """The server is going away: what has not been spoken by its deadline never will be."""
        await self._runtime.drained()
        driver.post(Broke(CapacityError(ErrorCode.DRAINING, "The server is shutting down.")))

    # -- writing

    async def _write(self, buffer: SpeechBuffer, body: _Body) -> None:
        try:
            done = await self._write_audio(buffer, body)
            await body.put(self._wording.done(done), last=True)
        except TalkwireError as error:
            if not body.started:
                body.refused = error
                return
            count_error(self._runtime, error, self._context.request.request_id)
            words = self._wording.broken(error)
            if words is not None and not body.stuck:
                await body.put(words, last=True)

    async def _write_audio(self, buffer: SpeechBuffer, body: _Body) -> Done:
        """Write all audio; raises what ended it too soon."""
        encoder = self._context.encoder
        while not isinstance(item := await buffer.get(), Done):
            if isinstance(item, SendAudio):
                await self._write_encoded(partial(encoder.encode, item.samples), body)
            elif self._words is not None:
                self._words(item)
        if item.error is not None:
            raise item.error
        await self._write_encoded(encoder.flush, body)
        return item

    async def _write_encoded(self, encode: Callable[[], list[Packet]], body: _Body) -> None:
        """Run the encoder, in a thread if it takes long, and write what it gives."""
        try:
            inline = self._context.encoder.inline
            packets = encode() if inline else await asyncio.to_thread(encode)
        except Exception as error:
            request_id = self._context.request.request_id
            log.exception("encoding broke", extra={"request_id": request_id})
            message = "Something went wrong in the server."
            raise BackendError(ErrorCode.INTERNAL, message) from error
        data = b"".join(packet.data for packet in packets)
        for at in range(0, len(data), _PIECE_BYTES):
            if words := self._wording.audio(data[at : at + _PIECE_BYTES]):
                await body.put(words)


class _Body:
    """Sends the head of a response with the first piece of its body."""

    def __init__(
        self, head: Response, send: Send, patience_s: float, on_started: Callable[[], None]
    ) -> None:
        self._head, self._send, self._patience_s = head, send, patience_s
        self._on_started = on_started
        self.started = self.stuck = False
        #: What came instead of the first byte.
        self.refused: TalkwireError | None = None

    async def put(self, data: bytes, *, last: bool = False) -> None:
        """Send a piece. Raises CapacityError (``slow_consumer``) if the client takes nothing."""
        if not self.started:
            self.started = True
            head, status = self._head.raw_headers, self._head.status_code
            await self._put({"type": "http.response.start", "status": status, "headers": head})
            self._on_started()
        for at in range(0, max(1, len(data)), _BODY_BYTES):  # the next once that is on its way
            more = not last or at + _BODY_BYTES < len(data)
            piece = data[at : at + _BODY_BYTES]
            await self._put({"type": "http.response.body", "body": piece, "more_body": more})

    async def _put(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._send(message)
        except TimeoutError:
            self.stuck = True
            raise CapacityError(
                ErrorCode.SLOW_CONSUMER, "The client reads too slowly for its audio."
            ) from None


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
