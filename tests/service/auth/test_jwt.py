"""JSON Web Tokens that clients sign with their API key, alone and at a guarded socket."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest

from service.auth.jwt import LEEWAY_S, signing_key
from tests.service.auth.keyring import bearer, entry, write_keys
from tests.service.memory import Refused, served

KEY, NOW = "talkwire_" + "0123456789abcdef" * 4, 1_800_000_000.0
CLAIMS = {"iss": KEY, "sub": "agent", "nbf": NOW, "exp": NOW + 600}


def encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def token(
    claims: Any = CLAIMS, secret: str = KEY, alg: Any = "HS256", digest: str = "sha256"
) -> str:
    parts = ({"alg": alg, "typ": "JWT"}, claims)
    signed = ".".join(encoded(json.dumps(part).encode()) for part in parts)
    signature = hmac.new(secret.encode(), signed.encode(), getattr(hashlib, digest)).digest()
    return f"{signed}.{encoded(signature)}"


def test_token_names_the_key_that_signed_it() -> None:
    assert signing_key(token(), NOW) == KEY


@pytest.mark.parametrize(
    ("change", "now", "wanted"),
    [
        ({}, NOW + 600 + LEEWAY_S - 1, KEY),
        ({}, NOW + 600 + LEEWAY_S, None),
        ({}, NOW - LEEWAY_S, KEY),
        ({}, NOW - LEEWAY_S - 1, None),
        ({"nbf": None}, NOW, None),
        ({"exp": None}, NOW, None),
        ({"exp": str(NOW + 600)}, NOW, None),
        ({"exp": True}, 0.0, None),
        ({"exp": float("nan")}, NOW, None),
        ({"exp": float("inf")}, NOW, None),
        ({"exp": 10**400}, NOW, None),
        ({"iss": None}, NOW, None),
        ({"iss": 5}, NOW, None),
        ({"iss": ["key"]}, NOW, None),
    ],
)
def test_times_and_issuer_are_checked(
    change: dict[str, Any], now: float, wanted: str | None
) -> None:
    assert signing_key(token(CLAIMS | change), now) == wanted


def test_token_without_expiry_is_not_valid_and_without_begin_is() -> None:
    without = {name: {k: v for k, v in CLAIMS.items() if k != name} for name in ("exp", "nbf")}
    assert signing_key(token(without["exp"]), NOW) is None
    assert signing_key(token(without["nbf"]), 0.0) == KEY


@pytest.mark.parametrize(
    "forged",
    [
        token(secret="another"),
        token(alg="none"),
        token(alg="HS512", digest="sha512"),
        token(alg="HS512"),
        token(alg="RS256"),
        token(alg=None),
        token(alg=["HS256"]),
        token({"iss": "", "exp": NOW + 600}, secret=""),
        token([CLAIMS]),
        token("text"),
        token()[:-4],
        token().rpartition(".")[0] + ".",
        token().replace(".", "..", 1),
        token() + ".x",
        token() + "\N{PARTY POPPER}",
        "ey.ey.ey",
        "ey..",
        f"eyJ{'x' * 900}.a.b",
        encoded(b'{"alg":"HS256"}') + "." + encoded(b"[" * 400_000) + ".aa",
        encoded(b'{"alg":"HS256"}') + "." + encoded(b'{"iss":"\\ud800","exp":9e9}') + ".aa",
        "",
        KEY,
    ],
)
def test_forged_and_broken_tokens_name_no_key(forged: str) -> None:
    assert signing_key(forged, NOW) is None


def test_changed_claims_break_signature() -> None:
    head, _, signature = token().split(".")
    longer = encoded(json.dumps(CLAIMS | {"exp": NOW + 9e9}).encode())
    assert signing_key(f"{head}.{longer}.{signature}", NOW) is None


def claims(key: str, **change: Any) -> dict[str, Any]:
    return {"iss": key, "sub": "agent", "exp": time.time() + 600, **change}


async def test_token_of_a_key_opens_the_socket_and_a_forged_one_does_not(tmp_path: Path) -> None:
    keys = (
        entry("right", "acme"),
        entry("mute", "acme", "admin"),
        entry("revoked", "acme", revoked_at="2026-01-01T00:00:00+00:00"),
    )
    file = write_keys(tmp_path / "keys.json", *keys)
    digest = hashlib.sha256(b"right").hexdigest()
    refused = {
        401: [
            token(claims("right"), "another"),
            token(claims("right"), digest),
            token(claims(digest), digest),
            token(claims("unknown"), "unknown"),
            token(claims("key_right"), "right"),
            token(claims("revoked"), "revoked"),
            token(claims("right", exp=time.time() - 600), "right"),
        ],
        403: [token(claims("mute"), "mute")],
    }
    async with served(api_keys_file=file) as service:
        async with service.socket("/tts", **bearer(token(claims("right"), "right"))) as socket:
            socket.send({"type": "session.create"})
            created = await socket.next()
            assert isinstance(created, dict)
            assert created["type"] == "session.created"
        for status, tokens in refused.items():
            for sent in tokens:
                with pytest.raises(Refused) as answer:
                    async with service.socket("/tts", **bearer(sent)):
                        pytest.fail("it was accepted")
                assert answer.value.status == status, sent


async def test_token_has_no_more_rights_than_one_that_speaks(tmp_path: Path) -> None:
    every = entry("right", "acme", "speak", "voices:write", "admin")
    file = write_keys(tmp_path / "keys.json", every)
    async with served(api_keys_file=file) as service:
        sent = bearer(token(claims("right"), "right"))
        assert (await service.http.get("/v1/models", headers=sent)).status_code == 200
        assert (await service.http.get("/metrics", headers=sent)).status_code == 403
        deleted = await service.http.delete("/v1/audio/voices/voice_a", headers=sent)
        assert deleted.status_code == 403
        made = await service.http.post("/access-token", headers=sent, json={"expires_in": 60})
        assert made.status_code == 403
        wrong = bearer(token(claims("right"), "wrong"))
        told = (await service.http.get("/v1/models", headers=wrong)).json()["error"]["message"]
        assert "iss must be an API key" in told
