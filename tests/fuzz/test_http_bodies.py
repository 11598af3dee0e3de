"""Hostile HTTP bodies of any content type: errors have a listed code and documented shape."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from streaming.errors import ErrorCode
from tests.service.live import gateway

CODES = {code.value for code in ErrorCode}
BODIES: dict[str, bytes] = {
    "empty": b"",
    "nul": b"\0",
    "half": b"{",
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 50_000,
    "bad utf-8": b'{"input":"\xff\xfe"}',
    "utf-16": '{"input":"hi"}'.encode("utf-16"),
    "huge number": b'{"input":"a","seed":' + b"9" * 5000 + b"}",
    "lone surrogate": b'{"input":"\\ud800","text":"\\ud800","transcript":"\\udfff"}',
    "not a number": b'{"input":"a","speed":NaN}',
    "infinity": b'{"input":"a","temperature":1e999}',
    "list": b"[]",
    "text": b'"x"',
    "null": b"null",
    "the field twice": b'{"input":"a","input":5}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "form": b"a=b&c=d",
    "too long": b'{"input":"' + b"x" * 400_000 + b'"}',
    "many keys": json.dumps({f"k{n}": n for n in range(3000)}).encode(),
    "a long key": json.dumps({"k" * 5000: 1}).encode(),
    "multipart": b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\nn\r\n' * 50,
    "multipart with lies": b'--x\r\nContent-Disposition: form-data; name="audio_sample"; '
    b'filename="../../etc/passwd"\r\nContent-Type: audio/wav\r\nContent-Length: 99\r\n\r\n--x--',
}
TYPES = (
    "application/json", "application/json; charset=utf-7", "application/vnd.x+json", "text/plain",
    "application/x-www-form-urlencoded", "multipart/form-data", "multipart/form-data; boundary=x",
    "multipart/form-data; boundary=" + "y" * 300, "",
)  # fmt: skip
#: Values for the parameters of paths.
PARTS = {"{voice_id}": "default", "{voice}": "default", "{id}": "nobody", "{name}": "nobody"}


def code_of(body: Any) -> str:
    """The code in an error of any dialect; some dialects use capitals or another field."""
    while isinstance(body, dict) and ("error" in body or "detail" in body):
        inner = body.get("error", body.get("detail"))
        if not isinstance(inner, dict):
            break
        body = inner
    assert isinstance(body, dict), body
    for name in ("code", "err_code", "error_code"):
        if isinstance(body.get(name), str):
            return str(body[name]).lower()
    raise AssertionError(f"no code: {body}")


async def posts(http: httpx.AsyncClient) -> list[str]:
    document = (await http.get("/openapi.json")).json()
    found = [path for path, operations in document["paths"].items() if "post" in operations]
    assert len(found) >= 8
    for part, value in PARTS.items():
        found = [path.replace(part, value) for path in found]
    return found


async def check(cases: list[tuple[str, str, str]]) -> None:
    """Send each case: path, kind of body and content type ("" sends none)."""
    async with (
        gateway() as server,
        httpx.AsyncClient(base_url=server.http, timeout=60) as http,
    ):
        for path, kind, content_type in cases:
            headers = {"content-type": content_type} if content_type else {}
            answer = await http.post(path, content=BODIES[kind], headers=headers)
            if answer.is_error:
                case = (path, kind, content_type, answer.text)
                assert answer.status_code < 500, case
                assert code_of(answer.json()) in CODES, case
                assert answer.headers["x-request-id"], case
        await server.until_free()


async def test_hostile_body_succeeds_or_gets_listed_error(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        paths = await posts(http)
    cases = [(paths[n % len(paths)], kind, TYPES[0]) for n, kind in enumerate(BODIES)]
    cases += [("/v1/audio/voices", kind, TYPES[n % 9]) for n, kind in enumerate(BODIES)]
    await check([*cases, ("/v1/audio/voices", "multipart with lies", TYPES[6])])
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.nightly
async def test_hostile_body_at_every_path_succeeds_or_gets_listed_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        paths = await posts(http)
    await check([(path, kind, name) for path in paths for kind in BODIES for name in TYPES])
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
