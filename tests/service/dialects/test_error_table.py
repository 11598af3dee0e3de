"""The error table of all dialects, and messages about invalid requests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from service.dialects.cartesia import messages as cartesia
from service.dialects.deepgram import messages as deepgram
from service.dialects.elevenlabs import messages as elevenlabs
from service.dialects.openai import errors as openai
from service.errors import NATIVE_TABLE, STATUS, validation_error
from streaming.errors import ErrorCode, RequestError
from streaming.protocol.field_errors import FieldError, describe, invalid_field, unknown_field
from tests.service.memory import Served, served


def test_status_has_every_code() -> None:
    assert set(STATUS) == set(ErrorCode)
    assert all(400 <= status < 600 for status in STATUS.values())


def test_page_lists_every_code_with_its_status() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "protocol.md"
    _, table = page.read_text().split("| code | status | meaning |")
    rows = re.findall(r"^\| (`[^|]+`) \|([^|]*)\|", table, re.MULTILINE)
    statuses = {code: told for codes, told in rows for code in re.findall(r"`(\w+)`", codes)}
    assert set(statuses) == set(ErrorCode)
    # a client that reads nothing gets no status
    assert not statuses.pop(ErrorCode.SLOW_CONSUMER).strip()
    for code, told in statuses.items():
        error = RequestError(ErrorCode(code), "")
        plain, _, handshakes = told.partition(" (handshakes: ")
        assert int(plain) == openai.TABLE.status(error), code
        if code != ErrorCode.UNKNOWN_VOICE:  # which no handshake of the protocol names
            assert int(handshakes.rstrip(") ") or plain) == NATIVE_TABLE.status(error), code


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (24_000, "24000"),
        (1e300, "1e+300"),
        (10**80, "a number"),
        ("midi", '"midi"'),
        ("", "an empty string"),
        ("my secret words", "a string of 15 characters"),
        ("<script>", "a string of 8 characters"),
        ("x" * 49, "a string of 49 characters"),
        ("a\r\nSet-Cookie: x", "a string of 16 characters"),
        ("caf\u00e9", "a string of 4 characters"),
        ([1, 2], "a list"),
        ({"a": 1}, "an object"),
    ],
)
def test_describe_repeats_only_harmless_values(value: object, shown: str) -> None:
    assert describe(value) == shown


def test_unknown_field_does_not_repeat_hostile_name() -> None:
    error = unknown_field("<b>\r\n", ["input"])
    assert error.message == "a field is not a field here; the fields are input."
    assert len(unknown_field("x" * 1000).param or "") == 128


def test_error_table_translates_only_core_field_names() -> None:
    mine = invalid_field("sample_rate", 24_000, "left out")
    assert openai.TABLE.field(mine) == "sample_rate"
    core = RequestError(ErrorCode.UNSUPPORTED, "There is mp3.", param="audio.encoding")
    assert openai.TABLE.field(core) == "response_format"
    assert elevenlabs.TABLE.field(core) == "output_format"
    assert openai.TABLE.message(core) == "response_format: There is mp3."


@pytest.mark.parametrize(
    ("code", "statuses"),
    [
        (ErrorCode.INVALID_MESSAGE, (400, 422, 400, 400)),
        (ErrorCode.UNKNOWN_VOICE, (400, 404, 404, 400)),
        (ErrorCode.TEXT_TOO_LONG, (413, 413, 413, 413)),
        (ErrorCode.RATE_LIMITED, (429, 429, 429, 429)),
        (ErrorCode.DRAINING, (503, 503, 503, 503)),
        (ErrorCode.INTERNAL, (500, 500, 500, 500)),
    ],
)
def test_error_table_has_statuses_of_each_vendor(
    code: ErrorCode, statuses: tuple[int, ...]
) -> None:
    tables = (openai.TABLE, elevenlabs.TABLE, cartesia.TABLE, deepgram.TABLE)
    error = RequestError(code, "No.")
    assert tuple(table.status(error) for table in tables) == statuses
    assert NATIVE_TABLE.status(RequestError(ErrorCode.OVERLOADED, "No.")) == 503


def test_validation_error_names_intended_union_member() -> None:
    faults: list[dict[str, Any]] = [
        {"type": "string_type", "loc": ("body", "voice", "constrained-str"), "input": {}},
        {"type": "extra_forbidden", "loc": ("body", "voice", "VoiceId", "x"), "input": 1},
    ]
    error = validation_error(faults)
    assert (error.param, error.message) == ("voice.x", "voice.x is not a field here.")
    both = validation_error(
        [
            {"type": "string_type", "loc": ("voice", "str"), "input": 5},
            {"type": "model_type", "loc": ("voice", "VoiceId"), "input": 5},
        ],
        rooted=False,
    )
    assert both.message == "voice must be a string or an object, not 5."
    assert isinstance(both, FieldError)
    assert both.kind == "a number"


def message_of(body: dict[str, Any]) -> str:
    """Return the message, which the vendor's SDK prints."""
    inner = body.get("error", body.get("detail", body))
    return str(inner.get("message", inner.get("err_msg")))


RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
WRONG: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("/v1/audio/speech", {"text": "x"}, ("input is missing",)),
    ("/v1/audio/speech", {"input": "x", "speed": 9}, ("speed", "at most 4", "9")),
    ("/v1/audio/speech", {"input": "x", "seed": "a"}, ("seed", "whole number", '"a"')),
    ("/v1/audio/speech", {"input": "x", "response_format": "midi"}, ("midi", "mp3", "wav")),
    ("/v1/audio/speech", {"input": "x", "model": "other"}, ("model", "other", "tts-1")),
    ("/v1/audio/speech", {"input": "x", "voice": "nobody"}, ("voice", "nobody", "default")),
    ("/v1/audio/speech", {"input": "x", "bitrate": 5}, ("bitrate", "5", "64000")),
    ("/v1/audio/speech/batch", {"items": [{"input": 5}]}, ("items.0.input", "string", "5")),
    ("/v1/text-to-speech/nobody", {"text": "x"}, ("voice", "nobody", "default")),
    ("/v1/text-to-speech/default", {"voice_settings": {}}, ("text is missing",)),
    (
        "/v1/text-to-speech/default",
        {"text": "x", "voice_settings": {"speed": "fast"}},
        ("voice_settings.speed", "number", "fast"),
    ),
    ("/v1/text-to-speech/default?output_format=midi", {"text": "x"}, ("midi", "mp3_<rate>")),
    ("/v1/speak?encoding=midi", {"text": "x"}, ("encoding", "midi", "linear16")),
    ("/v1/speak?sample_rate=fast", {"text": "x"}, ("sample_rate", "fast", "number")),
    ("/v1/speak?model=nobody", {"text": "x"}, ("model", "nobody", "default")),
    ("/v1/speak?colour=red", {"text": "x"}, ("colour", "encoding", "sample_rate")),
    ("/tts/bytes", {"transcript": "x", "voice": "default"}, ("output_format is missing",)),
    (
        "/tts/bytes",
        {"transcript": "x", "voice": "nobody", "output_format": RAW},
        ("voice", "nobody", "default"),
    ),
    (
        "/tts/bytes",
        {"transcript": "x", "voice": "default", "output_format": {"container": "ogg"}},
        ("output_format.container", "raw", "wav", "ogg"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("address", "body", "said"), WRONG)
async def test_http_error_names_field_value_and_allowed_values(
    address: str, body: dict[str, Any], said: tuple[str, ...]
) -> None:
    async with served(unknown_voice="error", unknown_model="error") as service:
        answer = await service.http.post(address, json=body)
        assert 400 <= answer.status_code < 500
        message = message_of(answer.json())
        assert [word for word in said if word not in message] == [], message


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize(
    "address", ["/v1/audio/speech", "/v1/text-to-speech/default", "/v1/speak", "/tts/bytes"]
)
async def test_http_error_names_content_type_that_is_missing(
    address: str, kind: str | None
) -> None:
    headers = {} if kind is None else {"content-type": kind}
    async with served() as service:
        answer = await service.http.post(address, content=b'{"text": "x"}', headers=headers)
        assert answer.status_code in (400, 422)
        message = message_of(answer.json())
        assert message.endswith("Content-Type: application/json."), message


async def test_cartesia_error_of_old_speed_field_does_not_name_new_one() -> None:
    body = {"transcript": "x", "voice": "default", "output_format": RAW, "speed": "fast"}
    async with served() as service:
        answer = await service.http.post("/tts/bytes", json=body)
        assert message_of(answer.json()) == "The speed is set in generation_config."


SOCKETS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("/v1/tts/stream", {"type": "nothing"}, ("nothing", "context.create")),
    ("/v1/tts/stream", {"type": "context.create"}, ("context_id is missing",)),
    (
        "/v1/tts/stream",
        {"type": "context.create", "context_id": "a", "mode": "half"},
        ("mode", "chunked or whole", "half"),
    ),
    (
        "/v1/tts/stream",
        {"type": "context.create", "context_id": "a", "colour": 1},
        ("colour", "context_id", "voice"),
    ),
    (
        "/v1/tts/stream",
        {"type": "context.create", "context_id": "a", "sampling": {"temperature": 9}},
        ("sampling.temperature", "at most 2", "9"),
    ),
    (
        "/v1/text-to-speech/default/multi-stream-input",
        {"text": "x", "context_id": "a", "voice_settings": {"speed": "fast"}},
        ("voice_settings.speed", "number", "fast"),
    ),
    ("/tts/websocket", {"transcript": 5, "context_id": "a"}, ("transcript", "string", "5")),
    ("/v1/speak", {"type": "Speak", "text": 5}, ("text", "string", "5")),
    ("/v1/audio/speech/stream", {"type": "session.config", "speed": 9}, ("speed", "at most 4")),
]


async def first_error(service: Served, address: str, message: dict[str, Any]) -> str:
    async with service.socket(address) as socket:
        socket.send(message)
        while True:
            said = await socket.next()
            assert isinstance(said, dict)
            if told := said.get("message") or said.get("description"):
                return str(told)


@pytest.mark.parametrize(("address", "message", "said"), SOCKETS)
async def test_socket_error_names_field_value_and_allowed_values(
    address: str, message: dict[str, Any], said: tuple[str, ...]
) -> None:
    async with served() as service:
        told = await first_error(service, address, message)
        assert [word for word in said if word not in told] == [], told


async def test_log_has_dialect_field_and_kind_but_not_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served() as service:
        with caplog.at_level("INFO", logger="service.errors"):
            await first_error(service, "/v1/speak", {"type": "Speak", "text": ["do not log this"]})
    (record,) = [one for one in caplog.records if one.getMessage() == "client error"]
    told = vars(record)
    assert (told["dialect"], told["field"], told["value_kind"]) == ("deepgram", "text", "a list")
    assert "do not log this" not in str(told)
