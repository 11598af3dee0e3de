"""The AsyncAPI document: complete, consistent with the messages, valid in structure.

It was also validated once against the specification's JSON Schema, which no package contains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streaming.protocol import messages as wire
from streaming.protocol.asyncapi import asyncapi
from streaming.protocol.binary import json_schema

DOCUMENT = asyncapi()
KEY = re.compile(r"[\w.\-]+")


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolve(reference: str) -> Any:
    node: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return resolve(node["$ref"]) if "$ref" in node else node


def names(operation: dict[str, Any]) -> list[str]:
    return [resolve(message["$ref"])["name"] for message in operation["messages"]]


def test_asyncapi_committed_document_is_current() -> None:
    path = Path(__file__).parents[2] / "docs" / "reference" / "protocol.asyncapi.json"
    renew = "python -m streaming.protocol.binary --asyncapi > docs/reference/protocol.asyncapi.json"
    assert json.loads(path.read_text()) == DOCUMENT, renew


def test_asyncapi_references_resolve() -> None:
    found = list(references(DOCUMENT))
    assert len(found) > 50
    assert all(resolve(reference) for reference in found)


def test_asyncapi_has_structure_of_specification() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= set(DOCUMENT["info"])
    assert all({"host", "protocol"} <= set(server) for server in DOCUMENT["servers"].values())
    components = DOCUMENT["components"]
    for part in (components["messages"], components["schemas"], DOCUMENT["operations"]):
        assert all(KEY.fullmatch(key) for key in part)
    on_channel = {f"#/channels/stream/messages/{n}" for n in components["messages"]}
    for operation in DOCUMENT["operations"].values():
        assert operation["action"] in ("send", "receive")
        # An operation refers to messages of its channel, not of the components.
        assert {message["$ref"] for message in operation["messages"]} <= on_channel
        reply = operation.get("reply", {"messages": []})
        assert {message["$ref"] for message in reply["messages"]} <= on_channel


def test_asyncapi_operations_cover_every_message() -> None:
    tags = {m.__struct_config__.tag for m in (*wire.CLIENT_MESSAGES, *wire.SERVER_MESSAGES)}
    received, sent = [], []
    for operation in DOCUMENT["operations"].values():
        (received if operation["action"] == "receive" else sent).extend(names(operation))
        sent += names(operation.get("reply", {"messages": []}))
    assert sorted(received) == sorted(str(m.__struct_config__.tag) for m in wire.CLIENT_MESSAGES)
    assert set(sent) == {m.__struct_config__.tag for m in wire.SERVER_MESSAGES} | {"audio.frame"}
    assert set(DOCUMENT["components"]["messages"]) == tags | {"audio.frame"}


def test_asyncapi_payloads_match_json_schema() -> None:
    text = json.dumps(DOCUMENT["components"]["schemas"]).replace(
        "#/components/schemas/", "#/$defs/"
    )
    assert json.loads(text) == json_schema()["$defs"]
    for message in DOCUMENT["components"]["messages"].values():
        if message["name"] != "audio.frame":
            tag = resolve(message["payload"]["$ref"])["properties"]["type"]["enum"]
            assert tag == [message["name"]]
