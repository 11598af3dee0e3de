"""A session over OpenAI's HTTP API: each turn is a request that is answered with PCM.

The API takes whole texts. A turn's request is therefore sent when the last piece of its text is
due, and ``sentence_s`` of the record is that moment. A barge-in closes the connection.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

import h11

from loadtest.plan import Plan
from loadtest.records import REFUSALS, TurnRecord
from loadtest.session import API_KEY, Sink, TurnSpeech, judge_unfinished, new_record
from loadtest.workload import Turn
from talkwire_client import ErrorCode
from talkwire_client.protocol import PATH

SPEECH_PATH = "/v1/audio/speech"
_SCHEMES = {"ws": "http", "wss": "https"}
_SAMPLE_RATE = 24_000
_SAMPLE_BYTES = 2
_READ_BYTES = 1 << 16
_ERROR_BYTES = 1 << 14
_OK = 200


class Refused(Exception):
    """The status of the answer is not 200; ``code`` is that of its body, or the status."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Broken(Exception):
    """The connection ended before the answer."""

    code = "broken_off"


class Address(NamedTuple):
    """A host and port to connect to, and the path of the API there."""

    host: str
    port: int
    tls: bool
    path: str


def address(url: str) -> Address:
    """Find the API at ``url``, which may be the same server's WebSocket. Raises ValueError."""
    parts: SplitResult = urlsplit(url)
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    if scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an HTTP address: {url}")
    tls = scheme == "https"
    path = SPEECH_PATH if parts.path in ("", "/", PATH) else parts.path
    if path.rstrip("/").endswith("/v1"):  # the base address, as OpenAI's clients take it
        path = path.rstrip("/") + SPEECH_PATH.removeprefix("/v1")
    return Address(parts.hostname, parts.port or (443 if tls else 80), tls, path)


async def converse(
    plan: Plan, number: int, turns: Sequence[Turn], begin_s: float, zero_s: float, sink: Sink
) -> None:
    """See ``loadtest.native_session.converse``."""
    where = address(plan.url)
    due_s = begin_s
    for index, turn in enumerate(turns):
        if index:
            if due_s >= plan.duration_s:
                return
            await asyncio.sleep(due_s + zero_s - time.monotonic())
        record = new_record(number, index, turn, due_s, zero_s)
        record.sentence_s = due_s + turn.pieces[-1].at_s
        speech = _Speech(plan, where, turn, record, zero_s)
        try:
            await speech.run()
        finally:
            sink(record)
        if record.outcome not in ("complete", "cancelled"):
            return
        due_s = speech.silent_s() + turn.think_s


class _Speech(TurnSpeech):
    """One turn, requested at ``where``."""

    _cutting: asyncio.TimerHandle | None = None

    def __init__(
        self, plan: Plan, where: Address, turn: Turn, record: TurnRecord, zero_s: float
    ) -> None:
        record.sample_rate = _SAMPLE_RATE
        super().__init__(plan, turn, record, zero_s)
        self._where = where

    async def run(self) -> None:
        """Send the request, listen, perhaps barge in, and record it. Raises only CancelledError."""
        record = self._record
        try:
            await asyncio.sleep(record.sentence_s - self._now())
            async with asyncio.timeout(self._plan.turn_limit_s) as self._stall:
                await self._speak()
            record.outcome = "complete" if record.cancel_s is None else "cancelled"
        except (Refused, Broken) as error:
            record.code = error.code
            refused = record.code in REFUSALS and not record.arrivals
            record.outcome = "refused" if refused else "failed"
        except TimeoutError:
            record.outcome, record.code = "failed", "timeout"
        except OSError as error:
            record.outcome, record.code = "failed", type(error).__name__
        finally:
            record.silence = self._silence.samples
            record.ended_s = self._now()
            judge_unfinished(record)

    async def _speak(self) -> None:
        record = self._record
        where = self._where
        reader, writer = await asyncio.open_connection(
            where.host, where.port, ssl=where.tls or None
        )
        connected_s = self._now()

        def accepted() -> None:
            record.opened_s = connected_s

        try:
            text = "".join(piece.text for piece in self._turn.pieces)
            pcm = b""
            async for data in _answer(reader, writer, _request(where, text), accepted):
                self._progress()
                pcm = self._hear(pcm + data, writer.close)
        except (Broken, OSError):
            if record.cancel_s is None:
                raise
        finally:
            if self._cutting is not None:
                self._cutting.cancel()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _hear(self, pcm: bytes, hang_up: Callable[[], None]) -> bytes:
        """Record the whole samples of ``pcm``. Returns the remaining bytes."""
        record = self._record
        at = self._now()
        samples = len(pcm) // _SAMPLE_BYTES
        record.last_audio_s = at
        if not samples or record.cancel_s is not None:
            return pcm
        if not record.arrivals and self._turn.barge_in_s is not None:
            self._barge_at = at + self._turn.barge_in_s
            loop = asyncio.get_running_loop()
            self._cutting = loop.call_later(self._turn.barge_in_s, self._barge_in, hang_up)
        record.arrivals.append((at, samples))
        whole = samples * _SAMPLE_BYTES
        self._silence.push(pcm[:whole])
        self._playback.on_audio(samples, at)
        return pcm[whole:]

    def _barge_in(self, hang_up: Callable[[], None]) -> None:
        self._record.cancel_s = self._now()
        hang_up()


def _request(where: Address, text: str) -> tuple[h11.Request, h11.Data]:
    """Make the request as OpenAI's own clients do, with their names of a model and a voice."""
    body = {"model": "tts-1", "voice": "alloy", "input": text, "response_format": "pcm"}
    data = json.dumps(body).encode()
    headers = [
        ("host", f"{where.host}:{where.port}"),
        ("content-type", "application/json"),
        ("content-length", str(len(data))),
        ("connection", "close"),
    ]
    if API_KEY is not None:
        headers.append(("authorization", f"Bearer {API_KEY}"))
    return h11.Request(method="POST", target=where.path, headers=headers), h11.Data(data=data)


async def _answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: tuple[h11.Request, h11.Data],
    accepted: Callable[[], None],
) -> AsyncIterator[bytes]:
    """Yield the body as it arrives; call ``accepted`` at a 200. Raises Refused, Broken, OSError."""
    http = h11.Connection(h11.CLIENT)
    for event in (*request, h11.EndOfMessage()):
        writer.write(http.send(event) or b"")
    status = _OK
    refusal = bytearray()
    try:
        while True:
            got = http.next_event()
            if got is h11.NEED_DATA:
                http.receive_data(await reader.read(_READ_BYTES))
            elif isinstance(got, h11.Response):
                status = got.status_code
                if status == _OK:
                    accepted()
            elif isinstance(got, h11.Data):
                if status == _OK:
                    yield bytes(got.data)
                elif len(refusal) < _ERROR_BYTES:
                    refusal += got.data
            elif isinstance(got, h11.EndOfMessage):
                break
            elif not isinstance(got, h11.InformationalResponse):  # the answer follows a 1xx
                raise Broken
    except h11.RemoteProtocolError:
        raise Broken from None
    if status != _OK:
        raise Refused(_code(status, bytes(refusal)))


def _code(status: int, body: bytes) -> str:
    """Return the error's own code if it is one of ours, else its status, since other servers' codes
    differ too much.
    """
    with suppress(ValueError, KeyError, TypeError):
        return ErrorCode(json.loads(body)["error"]["code"]).value
    return f"http_{status}"
