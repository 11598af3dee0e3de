"""The parsers of untrusted input, each as a function of bytes.

A target returns if the bytes are parsed or refused as documented. It raises on anything else: an
unexpected exception, an error code outside the closed list, a violated property of the result.
``python -m tests.fuzz.run`` feeds the targets by coverage, test_corpus.py with committed cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tomllib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from fastapi import Request
from pydantic import BaseModel, ValidationError

from codec import messages as codec_messages
from ipc.framing import FramingError, MessageReader
from service.dialects.cartesia.messages import ContextRequest
from service.dialects.deepgram.aura import joined
from service.dialects.elevenlabs.messages import ClientMessage
from service.dialects.elevenlabs.request import SpeechBody as ElevenLabsBody
from service.dialects.openai.batch import BatchBody
from service.dialects.openai.request import SpeechBody as OpenAiBody
from service.dialects.vllm_omni import SessionConfig
from service.dialects.vllm_omni import _parsed as parse_vllm_omni
from service.dialects.voices import read_new_voice
from service.dialects.wyoming.events import EventReader
from service.errors import parse_message, peek, validation_error
from service.hosts import is_allowed, parse_origin
from service.settings import SettingsError, load_settings
from service.voices.clip_reader import decode_base64
from service.voices.store import VoiceFileError, unpack, unpack_built_in
from streaming.delay import DelayReverter
from streaming.errors import ErrorCode, TalkwireError
from streaming.protocol.binary import parse_client_message
from talker import messages as talker_messages
from talker.families.higgs_v3.prompts import CONTROL_TAGS, TAGS
from talkwire_client.protocol import AudioHeader, decode_server_message
from tests.text.front_ends import CASES, check
from tests.text.markup_elements import read as read_elements
from text.markup.elements import Ignored, Text
from text.segmenter import Segmenter, SegmentSettings

Target = Callable[[bytes], object]


def _told(error: TalkwireError) -> None:
    """Assert that the error has a listed code and a short, printable message."""
    assert isinstance(error.code, ErrorCode)
    assert error.message.isprintable()
    assert len(error.message) < 300
    assert error.param is None or len(error.param) <= 128


def _text(data: bytes) -> str:
    """Valid Unicode without surrogates, as a WebSocket delivers it."""
    return data.decode("utf-8", errors="replace")


def wire(data: bytes) -> None:
    """Client messages of the native protocol."""
    try:
        parse_client_message(_text(data))
        parse_client_message(data)
    except TalkwireError as error:
        _told(error)


def wire_of_server(data: bytes) -> None:
    """Server messages and binary headers, as the Python client reads them."""
    for read in (decode_server_message, AudioHeader.unpack):
        with contextlib.suppress(ValueError):
            read(data)


def markup(data: bytes) -> None:
    """The markup reader: elements do not depend on how the text is split, and are in order."""
    size, text = 1 + data[0] % 7 if data else 1, _text(data[1:])
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    whole, several = (read_elements(*divided) for divided in ([text], parts))
    assert whole == several
    at = 0
    for element in whole:
        assert at <= element.end <= len(text)
        if not isinstance(element, Ignored):
            at = element.end
        if isinstance(element, Text):
            assert text[element.start : element.end] == element.text


def segmenter(data: bytes) -> None:
    """The segmenter: utterances do not depend on how the text is split, and none of it is lost."""
    size, text = 1 + data[0] % 7 if data else 1, _text(data[1:])
    settings = SegmentSettings(max_chars=40)
    whole, pieces = Segmenter(settings), Segmenter(settings)
    once = [*whole.push(text), *whole.flush()]
    several = [
        utterance
        for at in range(0, len(text), size)
        for utterance in pieces.push(text[at : at + size])
    ]
    assert once == [*several, *pieces.flush()]
    assert "".join("".join(once).split()) == "".join(text.split())


def tags(data: bytes) -> None:
    """Control tags: only documented tags are recognised."""
    pieces = TAGS.split(_text(data))
    assert "".join(pieces) == _text(data)
    assert set(pieces[1::2]) <= CONTROL_TAGS


def front_end(data: bytes) -> None:
    """The text front ends: known characters, ordered spans, stable readings."""
    text = _text(data[:400])
    for case in CASES.values():
        check(case, text)


def _body(model: type[BaseModel], data: bytes) -> None:
    """Parse like FastAPI: JSON by the standard library, then the model."""
    try:
        model.model_validate(json.loads(data))
    except ValidationError as error:
        _told(validation_error(error.errors(), rooted=False))
    except (ValueError, RecursionError):
        _told(validation_error([{"type": "json_invalid"}]))


def http_bodies(data: bytes) -> None:
    """Bodies of OpenAI's, ElevenLabs' and vLLM-Omni's requests."""
    for model in (OpenAiBody, BatchBody, ElevenLabsBody, SessionConfig):
        _body(model, data)


def vendor_messages(data: bytes) -> None:
    """Messages of the other vendors' sockets."""
    text = _text(data)
    parsers = (
        partial(parse_message, ClientMessage),
        partial(parse_message, ContextRequest),
        parse_vllm_omni,
    )
    for parse in parsers:
        try:
            parse(text)
        except TalkwireError as error:
            _told(error)
    peek(text, "context_id")
    tail = ""
    for piece in text.split("\n"):
        _, tail = joined(tail, piece)


def voice_body(data: bytes) -> None:
    """``POST /v1/audio/voices``, as JSON and as a form whose boundary is ``x``."""
    for kind in ("application/json", "multipart/form-data; boundary=x"):

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": data, "more_body": False}

        scope = {"type": "http", "headers": [(b"content-type", kind.encode())]}
        try:
            asyncio.run(read_new_voice(Request(scope, receive), 1 << 20))
        except TalkwireError as error:
            _told(error)


def wyoming(data: bytes) -> None:
    """Events of Wyoming: all that follow each other up to the first error."""

    async def read() -> None:
        stream = asyncio.StreamReader(limit=1024)
        stream.feed_data(data)
        stream.feed_eof()
        events = EventReader(stream, 1024, 30)
        try:
            while (event := await events.read(30)) is not None:
                assert event.type
        except TalkwireError as error:
            _told(error)

    asyncio.run(read())


def clip_address(data: bytes) -> None:
    """A clip in base64 or as a ``data:`` URL."""
    try:
        assert len(decode_base64(_text(data), 1000, "audio")) <= 1000
    except TalkwireError as error:
        _told(error)


def voice_file(data: bytes) -> None:
    """A stored voice: safetensors with a checksum."""
    for read in (unpack, unpack_built_in):
        try:
            voice = read(data)
            assert voice.codes.dtype == np.int16
        except VoiceFileError:
            pass


def settings(data: bytes) -> None:
    """A settings file. It comes from the operator, so error texts are not checked."""
    try:
        values = tomllib.loads(_text(data))
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    with contextlib.suppress(SettingsError):
        load_settings(**{name: value for name, value in values.items() if name != "config"})


def origin(data: bytes) -> None:
    """The headers ``Origin`` and ``Host``, and the setting: a foreign origin is not allowed."""
    first, _, host = data.decode("latin-1").partition("\n")
    allowed = is_allowed([first], host or None, ("https://example.org",))
    name = host.strip().lower().rpartition(":")[0] or host.strip().lower()
    assert not allowed or "example.org" in first.lower() or name in first.lower()
    with contextlib.suppress(ValueError):
        parse_origin(first)


def ipc(data: bytes) -> None:
    """Messages between the service's own processes, though no one else can reach their sockets."""
    unions = (codec_messages.ToWorker, codec_messages.FromWorker)
    for union in (*unions, talker_messages.ToChild, talker_messages.FromChild):
        reader: MessageReader[Any] = MessageReader(union)
        try:
            for message in [*reader.feed(data[:7]), *reader.feed(data[7:])]:
                _unpack(message)
        except FramingError:
            pass


def _unpack(message: object) -> None:
    try:
        if isinstance(message, codec_messages.Decode):
            codec_messages.window_of(message)
        elif isinstance(message, codec_messages.Encoded):
            codec_messages.clip_of(message)
        elif isinstance(message, codec_messages.Decoded | codec_messages.Encode):
            codec_messages.samples_of(message)
    except ValueError:
        pass


def rows(data: bytes) -> None:
    """The delay reverter on arbitrary rows: frames contain no special codes."""
    codes = np.frombuffer(data[: len(data) // 8 * 8], "<i2").reshape(-1, 4).astype(np.int16)
    reverter = DelayReverter(4, 1024)
    for row in codes:
        try:
            frames = reverter.push_rows(row[np.newaxis])
        except ValueError:
            assert row.min() < 0
            return
        assert not len(frames) or (frames.max() < 1024 and frames.min() >= 0)


def wav(data: bytes) -> None:
    """The sandbox's clip reader on a WAV header; other formats are read only in a child process."""
    from service.voices.clip_head import Refused
    from service.voices.clip_sandbox import Wanted, read_clip

    clip = b"RIFF" + data[4:8] + b"WAVE" + data[12:4096]
    try:
        samples, _ = read_clip(clip, Wanted(24_000, 1 << 16, 0, 9))
        assert np.isfinite(samples).all()
    except (Refused, MemoryError):
        pass


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        wire, wire_of_server, markup, segmenter, tags, front_end, http_bodies, vendor_messages,
        voice_body, clip_address, voice_file, settings, origin, ipc, rows, wav, wyoming,
    )
}  # fmt: skip

if __name__ == "__main__":
    print(*TARGETS, sep="\n")
