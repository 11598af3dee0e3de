from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import ErrorCode, RequestError
from streaming.protocol import messages as wire
from streaming.protocol.binary import (
    HEADER_BYTES,
    AudioFlags,
    AudioHeader,
    encode_message,
    json_schema,
    parse_client_message,
)

CLIENT = [
    wire.SessionConfigure("json"),
    wire.ContextCreate("a", sampling=wire.SamplingOptions(seed=3), mode="whole"),
    wire.TextAppend("a", "héllo"),
    wire.ContextFlush("a", "f1"),
    wire.ContextEnd("a"),
    wire.ContextCancel("a", 12.5),
    wire.Playback("a", 480),
    wire.Ping("x"),
    wire.SessionClose(),
]


@pytest.mark.parametrize("message", CLIENT, ids=lambda m: type(m).__name__)
def test_client_messages_round_trip(message: wire.ClientMessage) -> None:
    assert parse_client_message(encode_message(message)) == message


def test_client_message_cases_cover_every_message() -> None:
    assert {type(message) for message in CLIENT} == set(wire.CLIENT_MESSAGES)


def test_server_messages_omit_unset_fields_and_encode_audio_in_base64() -> None:
    error = wire.Error(ErrorCode.OVERLOADED, "m", "r", retryable=True, retry_after_ms=5)
    assert "param" not in json.loads(encode_message(error))
    audio = wire.Audio("a", 1, 2, 480, AudioFlags.LAST, b"\0\xff")
    assert json.loads(encode_message(audio)) == {
        "type": "audio",
        "context_id": "a",
        "handle": 1,
        "sequence": 2,
        "sample_offset": 480,
        "flags": 2,
        "audio": "AP8=",
    }


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("", ErrorCode.INVALID_JSON, None),
        ("{", ErrorCode.INVALID_JSON, None),
        ("[" * 100_000, ErrorCode.INVALID_MESSAGE, "type"),
        ('{"type":' + "[" * 100_000, ErrorCode.INVALID_MESSAGE, "type"),
        ("[1]", ErrorCode.INVALID_MESSAGE, "type"),
        ('{"type":7}', ErrorCode.INVALID_MESSAGE, "type"),
        ('{"text":"hi"}', ErrorCode.INVALID_MESSAGE, "type"),
        ('{"type":"text.apend"}', ErrorCode.UNKNOWN_MESSAGE, "type"),
        ('{"type":"text.append","context_id":"a"}', ErrorCode.INVALID_MESSAGE, "text"),
        ('{"type":"text.append","context_id":"a","text":5}', ErrorCode.INVALID_MESSAGE, "text"),
        (
            '{"type":"text.append","context_id":"","text":""}',
            ErrorCode.INVALID_MESSAGE,
            "context_id",
        ),
        ('{"type":"ping","idd":"1"}', ErrorCode.INVALID_MESSAGE, "idd"),
        (
            '{"type":"context.create","context_id":"a","sampling":{"top_p":2}}',
            ErrorCode.INVALID_MESSAGE,
            "sampling.top_p",
        ),
        (
            '{"type":"context.create","context_id":"a","sampling":{"temperature":NaN}}',
            ErrorCode.INVALID_JSON,
            None,
        ),
        (
            '{"type":"context.create","context_id":"a","audio":{"encoding":"mp3"}}',
            ErrorCode.INVALID_MESSAGE,
            "audio.encoding",
        ),
    ],
)
def test_invalid_message_error_has_code_and_names_field(
    text: str, code: ErrorCode, param: str | None
) -> None:
    with pytest.raises(RequestError) as caught:
        parse_client_message(text)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ('"references":[{"audio":5}]', "references[0].audio must be a string, not 5."),
        (
            '"references":[{"audio":"a"},{"audio":"b","text":0}]',
            "references[1].text must be a string, not 0.",
        ),
        ('"references":[7]', "references[0] must be an object, not 7."),
        ('"references":[]', "references must be at least 1 items long, not a list."),
        ('"audio":{"speed":1e999}', "audio.speed must be a number in range, not inf."),
    ],
)
def test_invalid_message_error_describes_value(field: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_client_message(f'{{"type":"context.create","context_id":"a",{field}}}')
    assert caught.value.message == message


@contextmanager
def suppress_refusals() -> Iterator[list[RequestError]]:
    refusals: list[RequestError] = []
    try:
        yield refusals
    except RequestError as error:
        refusals.append(error)


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    codes = {ErrorCode.INVALID_JSON, ErrorCode.INVALID_MESSAGE, ErrorCode.UNKNOWN_MESSAGE}
    with suppress_refusals() as refusals:
        parse_client_message(text)
    assert {error.code for error in refusals} <= codes


@given(
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.sampled_from([AudioFlags.NONE, AudioFlags.FIRST | AudioFlags.LAST]),
)
def test_audio_header_round_trips(
    handle: int, sequence: int, offset: int, flags: AudioFlags
) -> None:
    header = AudioHeader(handle, sequence, offset, flags)
    assert len(header.pack()) == HEADER_BYTES == 12
    assert AudioHeader.unpack(header.pack() + b"samples") == header


def test_audio_header_has_documented_layout() -> None:
    assert AudioHeader(0x0201, 3, 960, AudioFlags.FIRST).pack() == bytes(
        [0x11, 0x01, 0x01, 0x02, 3, 0, 0, 0, 0xC0, 0x03, 0, 0]
    )
    assert AudioHeader(0, 2**32 + 1, 2**33).sample_offset == 2**33
    assert AudioHeader.unpack(AudioHeader(0, 2**32 + 1, 2**33).pack()) == AudioHeader(0, 1, 0)


@pytest.mark.parametrize("message", [b"", b"\x11" * 11, b"\x21" + b"\0" * 11])
def test_audio_header_refuses_other_bytes(message: bytes) -> None:
    with pytest.raises(ValueError, match="binary message"):
        AudioHeader.unpack(message)


def test_committed_json_schema_is_current() -> None:
    path = Path(__file__).parents[2] / "docs" / "reference" / "protocol.schema.json"
    assert json.loads(path.read_text()) == json_schema()


def documented_messages() -> list[str]:
    """The JSON messages of the pages' examples. Those that end with an ellipsis are incomplete."""
    docs = Path(__file__).parents[2] / "docs"
    pages = ("tutorial.md", "reference/protocol.md", "design/word_timings.md")
    text = "\n".join((docs / page).read_text() for page in pages)
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = [m for block in blocks for m in re.findall(r'\{"type":.*?\}$', block, re.M | re.S)]
    assert len(found) > 10
    return found


@pytest.mark.parametrize("text", documented_messages())
def test_documented_message_is_of_the_protocol(text: str) -> None:
    fields = json.loads(text.replace(", …}", "}"))
    kinds = (*wire.CLIENT_MESSAGES, *wire.SERVER_MESSAGES)
    kind = {one.__struct_config__.tag: one for one in kinds}[fields["type"]]
    assert fields.keys() <= {"type", *kind.__struct_fields__}
    if "…}" not in text:
        message = msgspec.json.decode(text, type=kind)
        assert json.loads(msgspec.json.encode(message)).items() >= fields.items()
