"""API keys as an operator uses them: command line, real service, signals, log."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talkwire_client import Client
from tests.e2e.live import run, service
from tests.faults.fake_service import free_port
from tests.service.auth.keyring import entry, write_keys
from tests.waiting import until

PATIENCE_S = 60


def ask(port: int, path: str, method: str = "GET", key: str | None = None) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", method=method, headers=headers
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("env", "word"),
    [
        ({"TALKWIRE_HOST": "0.0.0.0"}, "talkwire keys create"),
        ({"TALKWIRE_ADMIN_HOST": "0.0.0.0", "TALKWIRE_ADMIN_PORT": "0"}, "admin_host 0.0.0.0"),
        ({"TALKWIRE_AUTH": "off", "TALKWIRE_API_KEYS_FILE": "none.json"}, "auth is off"),
        ({"TALKWIRE_API_KEYS_FILE": "none.json"}, "api_keys_file: cannot read none.json"),
        ({"TALKWIRE_TOKEN_SECRET_FILE": "none"}, "token_secret_file: cannot read none"),
    ],
)
def test_serve_refuses_unsafe_exposure_or_key_settings(env: dict[str, Any], word: str) -> None:
    done = run("serve", "--port", "0", **env)
    assert done.returncode == 1, done.stderr
    assert word in done.stderr


@pytest.mark.slow
@pytest.mark.long
def test_keys_are_created_reloaded_revoked_and_allow_drain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, admin = tmp_path / "keys.json", free_port()
    keys = {
        name: run("keys", "create", "--file", str(file), "--tenant", name, "--scope", scope)
        for name, scope in (("acme", "speak"), ("ops", "admin"), ("late", "speak"))
    }
    secret, ops, late = (made.stdout.strip() for made in keys.values())
    options: dict[str, Any] = {
        "TALKWIRE_API_KEYS_FILE": str(file),
        "TALKWIRE_ADMIN_PORT": str(admin),
        "TALKWIRE_LOG_LEVEL": "debug",
        "TALKWIRE_HOST": "0.0.0.0",
    }
    with service(**options) as started:
        out = str(tmp_path / "said.wav")
        say = ("say", "Hello there.", "--url", started.url, "--out", out, "--json")
        refused = run(*say)
        assert (refused.returncode, "401" in refused.stderr) == (4, True)
        said = run(*say, TALKWIRE_API_KEY=secret)
        assert said.returncode == 0, said.stderr
        assert json.loads(said.stdout)["audio_s"] > 0.3
        assert ask(started.port, "/metrics", key=secret)[0] == 403
        assert "tts_contexts_total" in ask(started.port, "/metrics", key=ops)[1]
        scraped = ask(admin, "/metrics")[1]
        assert 'tts_tenant_characters_total{tenant="acme"} 12.0' in scraped

        broken = write_keys(tmp_path / "other.json", entry("x", "y")).read_text()[:-5]
        whole = file.read_text()
        file.write_text(broken)
        started.process.send_signal(signal.SIGHUP)
        _until(lambda: "tts_api_keys_current 0.0" in ask(admin, "/metrics")[1])
        assert ask(started.port, "/v1/models", key=secret)[0] == 200
        file.write_text(whole)
        acme, *_ = json.loads(run("keys", "list", "--file", str(file), "--json").stdout)
        assert run("keys", "revoke", "--file", str(file), acme["id"]).returncode == 0
        started.process.send_signal(signal.SIGHUP)
        _until(lambda: ask(started.port, "/v1/models", key=secret)[0] == 401)

        assert ask(admin, "/admin/drain", "POST")[0] == 401
        assert ask(admin, "/admin/drain", "POST", ops)[0] == 202
        assert ask(started.port, "/health/ready")[0] == 503
        assert ask(admin, "/admin/drain", "DELETE", ops)[0] == 200
        assert ask(started.port, "/health/ready")[0] == 200

        def end() -> None:
            assert ask(admin, "/admin/drain?exit=true", "POST", ops)[0] == 202
            started.process.send_signal(signal.SIGTERM)  # as Kubernetes does after the preStop hook

        asyncio.run(speak_through(end, started.url, late))
        assert started.process.wait(PATIENCE_S) == 0
    log = capsys.readouterr().out
    assert acme["id"] in log, "log lines name the key"
    assert secret not in log
    assert ops not in log


async def speak_through(end: Callable[[], None], url: str, key: str) -> None:
    """Assert that ``end``, called during speech, does not cut it off."""
    text = "This sentence is being spoken. And so is this one, to its end."
    async with Client(url, api_key=key) as client, client.speak(text) as speech:
        chunks = aiter(speech)
        await anext(chunks)
        await asyncio.to_thread(end)
        assert [chunk async for chunk in chunks]
        await until(lambda: client.going_away is not None)


def _until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
