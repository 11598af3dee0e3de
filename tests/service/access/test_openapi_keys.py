"""The OpenAPI document's security schemes agree with the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from service.access.gate import SCHEMES
from tests.service.auth.keyring import bearer, entry, write_keys
from tests.service.live import Gateway, gateway

SCOPES = ("speak", "voices:write", "admin")
Operation = tuple[str, str, list[dict[str, list[str]]]]


def operations(document: dict[str, Any]) -> list[Operation]:
    found = [
        (method, path, operation["security"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(found) > 20
    return found


async def ask(http: httpx.AsyncClient, one: Operation, headers: dict[str, str]) -> int:
    address = one[1].partition("{")[0] + "x" if "{" in one[1] else one[1]
    if "}/" in one[1]:
        address += one[1].partition("}")[2]
    body: dict[str, Any] = {"json": {}} if one[0] == "post" else {}
    return (await http.request(one[0], address, headers=headers, **body)).status_code


def sent(scheme: str, key: str) -> dict[str, str]:
    """Make the header that a generated client sends for a scheme."""
    said = SCHEMES[scheme]
    if said["type"] == "http":
        return {"Authorization": f"{said['scheme'].title()} {key}"}
    return {said["name"]: f"Token {key}" if said["name"] == "Authorization" else key}


@pytest.fixture(scope="module")
def http() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))


async def document_of(http: httpx.AsyncClient, server: Gateway) -> dict[str, Any]:
    http.base_url = httpx.URL(server.http)
    answer = await http.get("/openapi.json", headers=bearer("all"))
    assert answer.status_code == 200
    return dict(answer.json())


async def test_openapi_security_agrees_with_gate(http: httpx.AsyncClient, tmp_path: Path) -> None:
    keys = [
        entry(f"no-{scope.replace(':', '-')}", "acme", *(s for s in SCOPES if s != scope))
        for scope in SCOPES
    ]
    path = write_keys(tmp_path / "keys.json", entry("all", "acme", *SCOPES), *keys)
    async with gateway(api_keys_file=path, max_failed_keys_per_minute=100_000) as server:
        document = await document_of(http, server)
        assert document["openapi"].startswith("3.1"), "roles of an apiKey came with 3.1"
        assert document["components"]["securitySchemes"] == SCHEMES
        schemes = set()
        for one in operations(document):
            assert {} not in one[2]
            assert (await ask(http, one, {}) == 401) is bool(one[2]), one
            for scheme, scopes in (pair for choice in one[2] for pair in choice.items()):
                schemes.add(scheme)
                assert await ask(http, one, sent(scheme, "wrong")) == 401, one
                assert await ask(http, one, sent(scheme, "all")) not in (401, 403), one
                for scope in scopes:
                    key = f"no-{scope.replace(':', '-')}"
                    assert await ask(http, one, sent(scheme, key)) == 403, one
        assert schemes == set(SCHEMES)


async def test_openapi_requires_no_key_if_none_is_configured(http: httpx.AsyncClient) -> None:
    async with gateway() as server:
        for one in operations(await document_of(http, server)):
            assert not one[2] or {} in one[2]
            assert await ask(http, one, {}) not in (401, 403), one


async def test_openapi_lists_header_of_dialect_first(http: httpx.AsyncClient) -> None:
    async with gateway() as server:
        first = {one[:2]: next(iter(one[2][0]), "") for one in operations(
            await document_of(http, server)) if one[2]}  # fmt: skip
    assert first["post", "/v1/audio/speech"] == "bearer"
    assert first["post", "/v1/text-to-speech/{voice_id}"] == "xi_api_key"
    assert first["post", "/tts/bytes"] == "x_api_key"
    assert first["post", "/v1/speak"] == "deepgram_token"
