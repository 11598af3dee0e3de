"""The client's protocol definitions against the server's JSON Schema and parser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming import errors
from streaming.protocol import binary, messages
from streaming.spec import Encoding
from talkwire_client import protocol

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "reference" / "protocol.schema.json").read_text()
)
#: Constraints that the server checks, so that a client need not repeat them.
CONSTRAINTS = {
    "title", "description", "additionalProperties", "default", "contentEncoding", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems",
    "maxItems",
}  # fmt: skip


def own_schema(kinds: tuple[type[Any], ...]) -> dict[str, Any]:
    """The client's definitions by name."""
    return msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")[1]


def types(field: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """A field's type, with references resolved and without constraints."""
    if name := field.get("$ref", "").removeprefix("#/$defs/"):
        found = definitions[name]
        return name if "properties" in found else types(found, definitions)
    if choices := field.get("anyOf"):
        return sorted((types(choice, definitions) for choice in choices), key=str)
    kept = {key: value for key, value in field.items() if key not in CONSTRAINTS}
    if "items" in kept:
        kept["items"] = types(kept["items"], definitions)
    if "enum" in kept:
        kept["enum"] = sorted(kept["enum"], key=str)
    return kept


def looser(told: Any) -> Any:
    """A looser type that the client may use: later servers may add choices to an enum."""
    return {"type": "string"} if isinstance(told, dict) and "enum" in told else told


def names(kinds: tuple[type[Any], ...]) -> list[str]:
    return [kind.__name__ for kind in kinds]


def test_protocol_has_every_message_of_schema() -> None:
    refs = {side: [one["$ref"] for one in SCHEMA[side]["oneOf"]] for side in ("client", "server")}
    prefix = "#/$defs/"
    assert [ref.removeprefix(prefix) for ref in refs["client"]] == names(protocol.CLIENT_MESSAGES)
    assert [ref.removeprefix(prefix) for ref in refs["server"]] == names(protocol.SERVER_MESSAGES)


@pytest.mark.parametrize("side", ["CLIENT_MESSAGES", "SERVER_MESSAGES"])
def test_protocol_fields_and_types_match_schema(side: str) -> None:
    own = own_schema(getattr(protocol, side))
    for name, definition in own.items():
        published = SCHEMA["$defs"][name]
        if "enum" in definition:
            assert sorted(definition["enum"]) == sorted(published["enum"]), name
            continue
        assert definition["properties"].keys() == published["properties"].keys(), name
        required, theirs = set(definition["required"]), set(published["required"])
        for field, value in definition["properties"].items():
            mine = types(value, own)
            other = types(published["properties"][field], SCHEMA["$defs"])
            if side == "CLIENT_MESSAGES" or field == "type":
                assert mine == other, (name, field)
            else:
                nullable = [looser(other), {"type": "null"}]
                assert mine in (other, looser(other), sorted(nullable, key=str)), (name, field)
        if side == "CLIENT_MESSAGES":
            assert required >= theirs, name  # required fields are always sent
        else:
            assert required <= theirs, name  # fields that the server may omit are optional


def test_protocol_has_every_encoding_and_error_code() -> None:
    assert set(protocol.Encoding) == set(Encoding)
    assert set(protocol.ErrorCode) == set(errors.ErrorCode)
    assert protocol.SUBPROTOCOL == messages.SUBPROTOCOL


def full(kind: type[Any]) -> Any:
    """A message with no field left at its default."""
    values = {
        protocol.AudioOptions: protocol.AudioOptions(
            protocol.Encoding.OPUS, 16_000, 20, 9000, 2.0, 5
        ),
        protocol.SamplingOptions: protocol.SamplingOptions(0.5, 0.9, 30, 7, 500, 7, 2),
        protocol.ChunkingOptions: protocol.ChunkingOptions(1, 2, 3, 4, 5, 640),
    }
    fields = {
        "framing": "json", "context_id": "c", "voice": "v", "model": "m", "language": "en",
        "audio": values[protocol.AudioOptions], "sampling": values[protocol.SamplingOptions],
        "mode": "whole", "chunking": values[protocol.ChunkingOptions], "max_lead_ms": 900,
        "timestamps": True, "continuity": "none",
        "text_mode": "words", "text": "Hello.", "flush_id": "f",
        "reference": protocol.ReferenceOptions(b"\x01\x02\x03", "three"), "played_ms": 1.5,
        "references": [protocol.ReferenceOptions(b"\x01", "one")],
        "played_samples": 24, "id": "p", "scene": "A quiet room.", "instructions": "Whisper.",
        "pronunciations": ["names"],
        "pronunciation_rules": [
            protocol.PronunciationRule("a", None, "b", "cmu-arpabet", False, False)
        ],
    }  # fmt: skip
    return kind(**{name: fields[name] for name in kind.__struct_fields__})


@pytest.mark.parametrize("kind", protocol.CLIENT_MESSAGES)
def test_protocol_client_messages_parse_unchanged_on_server(kind: type[Any]) -> None:
    sent = full(kind)
    read = binary.parse_client_message(protocol.encode_message(sent))
    assert type(read).__name__ == kind.__name__
    assert json.loads(binary.encode_message(read)) == json.loads(protocol.encode_message(sent))


def test_protocol_defaults_match_server() -> None:
    mine = protocol.encode_message(protocol.ContextCreate("c"))
    assert json.loads(mine) == {"type": "context.create", "context_id": "c"}
    assert binary.parse_client_message(mine) == messages.ContextCreate("c")
    for kind in (
        protocol.AudioOptions,
        protocol.SamplingOptions,
        protocol.ChunkingOptions,
        protocol.SessionConfigure,
        protocol.Ping,
    ):
        theirs = getattr(messages, kind.__name__)
        for name in kind.__struct_fields__:
            assert getattr(kind(), name) == getattr(theirs(), name), (kind, name)
    own, other = protocol.ContextCreate("c"), messages.ContextCreate("c")
    for name in set(own.__struct_fields__) - {"audio", "sampling", "chunking"}:
        assert getattr(own, name) == getattr(other, name), name


SPOKEN: tuple[messages.ServerMessage, ...] = (
    messages.SessionCreated(
        "s", "talkwire.tts.v1", "m", ["v"], 24_000, ["opus"],
        messages.Limits(8, 1000, 65_536, 2000, 60.0, 300.0, key_contexts=2), [8000], True, ["none"],
    ),
    messages.ContextCreated("c", 3, "Poorer."),
    messages.ContextWarning("c", "emotion", "None here."),
    messages.AudioStarted("c", Encoding.OPUS, 16_000, 312),
    messages.Audio("c", 3, 1, 320, 2, b"\x01\x02"),
    messages.Timestamps("c", [messages.Word("Hi", 0, 2, 1.0, 2.5)]),
    messages.FlushDone("c", "f"),
    messages.ContextCancelled("c", 3.0, 2.0, 1.0, "Hi", " there"),
    messages.ContextDone("c", "length"),
    messages.Metrics("c", None, 1.0, 2.0, 3.0, None, 0.0),
    messages.GoingAway(500),
    messages.Error("overloaded", "Full.", "r", True, context_id="c", retry_after_ms=5),
    messages.Pong("p"),
)  # fmt: skip


@pytest.mark.parametrize("said", SPOKEN, ids=lambda said: type(said).__name__)
def test_protocol_decodes_server_message(said: messages.ServerMessage) -> None:
    read = protocol.decode_server_message(binary.encode_message(said))
    assert type(read).__name__ == type(said).__name__
    told = msgspec.to_builtins(said)
    assert {name: msgspec.to_builtins(read)[name] for name in told} == told


def test_protocol_decode_cases_cover_every_server_message() -> None:
    assert names(tuple(type(said) for said in SPOKEN)) == names(protocol.SERVER_MESSAGES)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"type":3}', '{"type":"pong","id":4}', "\ud800"]
)
def test_protocol_refuses_invalid_message(text: str) -> None:
    with pytest.raises(ValueError, match="not a message"):
        protocol.decode_server_message(text)


def test_protocol_ignores_unknown_types_and_fields() -> None:
    assert protocol.decode_server_message('{"type":"from.the.future"}') is None
    read = protocol.decode_server_message(
        '{"type":"context.done","context_id":"c","reason":"x","y":1}'
    )
    assert read == protocol.ContextDone("c", "x")


@given(
    handle=st.integers(0, 2**16 - 1),
    sequence=st.integers(0, 2**33),
    offset=st.integers(0, 2**33),
    flags=st.integers(0, 7),
)
def test_audio_header_matches_server(handle: int, sequence: int, offset: int, flags: int) -> None:
    theirs = binary.AudioHeader(handle, sequence, offset, binary.AudioFlags(flags)).pack()
    mine = protocol.AudioHeader(handle, sequence, offset, protocol.AudioFlags(flags))
    assert mine.pack() == theirs
    assert protocol.AudioHeader.unpack(theirs + b"pcm") == (
        handle, sequence % 2**32, offset % 2**32, flags,
    )  # fmt: skip
