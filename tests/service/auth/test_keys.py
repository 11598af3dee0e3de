"""API keys, their file, limits and place in requests, and exposed hosts, without a server."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.auth.authenticator import Failures, answered_subprotocol, presented_key
from service.auth.caller import Caller
from service.auth.keys import (
    ApiKey,
    KeyFileError,
    KeyRing,
    Limits,
    Scope,
    digest_of,
    issue,
    new_secret,
    parse_expiry,
    read_keys,
    revoke,
)
from service.auth.limits import Accounts
from service.cli import app
from service.hosts import called_by_address, is_known, is_loopback
from service.listening import exposure_fault
from service.settings import Settings, SettingsError, load_settings
from streaming.errors import CapacityError, ErrorCode
from tests.service.auth.keyring import entry, write_keys

COMMANDS = CliRunner()


def test_keys_command_creates_lists_and_revokes_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    where = ["--file", str(file)]
    made = COMMANDS.invoke(
        app, ["keys", "create", *where, "--tenant", "acme", "--expires", "90d", "--max-contexts=3"]
    )
    assert made.exit_code == 0, made.output
    secret = made.stdout.strip()
    assert len(secret) > 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert secret not in text
    assert hashlib.sha256(secret.encode()).hexdigest() in text
    key = read_keys(file).ring().find(secret)
    assert key is not None
    assert (key.tenant, key.scopes) == ("acme", (Scope.SPEAK,))
    assert key.limits == Limits(max_contexts=3)
    assert key.expires_at is not None
    now = datetime.now(UTC).timestamp()
    assert key.is_valid(now)
    assert not key.is_valid(now + 91 * 86400)

    (row,) = json.loads(COMMANDS.invoke(app, ["keys", "list", *where, "--json"]).stdout)
    assert (row["id"], row["state"]) == (key.id, "valid")
    assert secret not in json.dumps(row)
    assert key.sha256 not in json.dumps(row)
    assert COMMANDS.invoke(app, ["keys", "revoke", *where, key.id]).exit_code == 0
    revoked = read_keys(file).ring().find(secret)
    assert revoked is not None
    assert not revoked.is_valid(now)
    (row,) = json.loads(COMMANDS.invoke(app, ["keys", "list", *where, "--json"]).stdout)
    assert row["state"] == "revoked"


def test_keys_create_leaves_other_keys_and_tenants_unchanged(tmp_path: Path) -> None:
    file = write_keys(tmp_path / "keys.json", entry("old", "acme"), acme={"max_share": 0.5})
    file.chmod(0o640)
    asked = ["keys", "create", "--file", str(file), "--tenant", "b", "--scope", "admin"]
    made = COMMANDS.invoke(app, asked)
    ring = read_keys(file).ring()
    assert ring.find("old") is not None
    new = ring.find(made.stdout.strip())
    assert new is not None
    assert new.scopes == (Scope.ADMIN,)
    assert ring.tenants == {"acme": Limits(max_share=0.5), "b": Limits()}
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["keys.json"]


def test_issue_keeps_all_keys_made_concurrently(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"

    def make(number: int) -> str:
        return issue(file, f"t{number}", [Scope.SPEAK])[1]

    with ThreadPoolExecutor(8) as pool:
        secrets = list(pool.map(make, range(24)))
    ring = read_keys(file).ring()
    assert [ring.find(secret) is not None for secret in secrets] == [True] * 24


def test_revoke_keeps_tenants_and_time_of_first_revocation(tmp_path: Path) -> None:
    then = "2026-01-01T00:00:00Z"
    old = entry("old", "acme", revoked_at=then)
    file = write_keys(tmp_path / "keys.json", old, entry("b", "b"), acme={"max_share": 0.5})
    revoke(file, old["id"])
    revoke(file, entry("b", "b")["id"])
    content = read_keys(file)
    assert content.tenants == {"acme": Limits(max_share=0.5)}
    first, second = content.keys
    assert first.revoked_at == datetime.fromisoformat(then)
    assert second.revoked_at is not None


def test_keys_are_written_despite_file_of_killed_writer(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    (tmp_path / f".keys.json.{os.getpid()}").write_text("half of")
    secret = issue(file, "acme", [Scope.SPEAK, Scope.SPEAK])[1]
    key = read_keys(file).ring().find(secret)
    assert key is not None
    assert key.scopes == (Scope.SPEAK,)
    assert os.listdir(tmp_path) == ["keys.json"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["create", "--tenant", "a b"], 2),
        (["create", "--tenant", "a", "--expires", "soon"], 2),
        (["create", "--tenant", "a", "--expires", ""], 2),
        (["create", "--tenant", "a", "--max-contexts", "0"], 2),
        (["revoke", "key_none"], 1),
    ],
)
def test_keys_command_changes_nothing_on_error(
    arguments: list[str], code: int, tmp_path: Path
) -> None:
    file = write_keys(tmp_path / "keys.json", entry("old", "acme"))
    before = file.read_bytes()
    done = COMMANDS.invoke(app, ["keys", arguments[0], "--file", str(file), *arguments[1:]])
    assert done.exit_code == code, done.output
    assert file.read_bytes() == before


def test_keys_command_names_folder_that_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    file = tmp_path / "keys.json"
    done = COMMANDS.invoke(app, ["keys", "create", "--file", str(file), "--tenant", "a"])
    assert done.exit_code == 1, done.output
    assert done.stderr == f"talkwire: cannot lock {tmp_path}: No locks available\n"
    assert not file.exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"keys": [{"id": "a"}]}',
        '{"keys": [], "extra": 1}',
        json.dumps({"keys": [entry("x", "t"), entry("x", "t")]}),
        json.dumps({"keys": [entry("x", "t"), {**entry("y", "t"), "id": entry("x", "t")["id"]}]}),
        json.dumps({"keys": [entry("x", "t"), {**entry("x", "t"), "id": "other"}]}),
        json.dumps({"keys": [entry("x", "t", "root")]}),
        json.dumps({"keys": [entry("x", "t", expires_at="2026-01-01T00:00:00")]}),
        json.dumps({"tenants": {"a/b": {}}}),
        json.dumps({"tenants": {"a": {"max_share": 2}}}),
    ],
)
def test_read_keys_refuses_invalid_file(content: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(content)
    with pytest.raises(KeyFileError) as wrong:
        read_keys(file)
    assert digest_of("x") not in str(wrong.value)


def test_secrets_are_unique_and_found_by_exact_match() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    ring = KeyRing([ApiKey(id="k", tenant="t", sha256=digest_of("secret"))])
    assert ring.find("secret") is not None
    for other in ("", "Secret", "secret ", "secre", "secret\ud800", digest_of("secret")):
        assert ring.find(other) is None
    assert "secret" not in repr(ring.find("secret"))
    assert digest_of("secret") not in repr(ring.find("secret"))


@pytest.mark.parametrize(
    ("headers", "subprotocols", "query", "names", "key"),
    [
        ({"authorization": "Bearer k"}, (), b"", (), "k"),
        ({"authorization": "bearer  k "}, (), b"", (), "k"),
        ({"authorization": "Token k"}, (), b"", (), "k"),
        ({"authorization": "Basic k"}, (), b"", (), None),
        ({"authorization": "Basic x", "X-API-Key": "k"}, (), b"", (), "k"),
        ({"xi-api-key": "k"}, (), b"", (), "k"),
        ({"xi-api-key": ""}, (), b"", (), None),
        ({}, ("token", "k"), b"", (), "k"),
        ({}, ("talkwire.tts.v1", "talkwire.key.k"), b"", (), "k"),
        ({}, ("talkwire.tts.v1",), b"", (), None),
        ({}, (), b"api_key=k", (), None),
        ({}, (), b"cartesia_version=1&api_key=k", ("api_key",), "k"),
        ({"authorization": "Bearer h"}, (), b"api_key=q", ("api_key",), "h"),
    ],
)
def test_presented_key_reads_headers_subprotocols_and_query(
    headers: dict[str, str],
    subprotocols: tuple[str, ...],
    query: bytes,
    names: tuple[str, ...],
    key: str | None,
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert presented_key(raw, subprotocols, query, names) == key


def test_answered_subprotocol_needs_key_in_offer() -> None:
    assert answered_subprotocol(["token", "k"]) == "token"
    assert answered_subprotocol(["token"]) is None
    assert answered_subprotocol([]) is None


# -- limits


def accounts(tenant: Limits, key: Limits | None = None) -> Accounts:
    ring = KeyRing(
        [ApiKey(id="k", tenant="t", sha256=digest_of("k"), limits=key or Limits())], {"t": tenant}
    )
    return Accounts(lambda: ring)


CALLER = Caller("k", "t", frozenset())


def test_max_share_is_part_of_capacity_and_at_least_one() -> None:
    mine = accounts(Limits(max_share=0.5))
    for _ in range(4):
        mine.require_context(CALLER, 8)
        mine.count_contexts(CALLER, 1)
    with pytest.raises(CapacityError) as full:
        mine.require_context(CALLER, 8)
    assert full.value.code is ErrorCode.RATE_LIMITED
    mine.count_contexts(CALLER, -1)
    mine.require_context(CALLER, 8)
    accounts(Limits(max_share=0.01)).require_context(CALLER, 8)


def test_max_share_of_hundred_contexts_is_its_percentage() -> None:
    for percent in range(1, 101):
        assert Limits(max_share=percent / 100).contexts(100) == percent


@pytest.mark.parametrize(("tenant", "key"), [(1, 5), (5, 1), (None, 1), (1, None)])
def test_tightest_limit_of_tenant_and_key_applies(tenant: int | None, key: int | None) -> None:
    mine = accounts(Limits(max_contexts=tenant), Limits(max_contexts=key))
    mine.require_context(CALLER, 100)
    mine.count_contexts(CALLER, 1)
    with pytest.raises(CapacityError):
        mine.require_context(CALLER, 100)
    mine.count_contexts(CALLER, -1)
    assert mine.limits(CALLER).max_contexts == 1
    ((_, account),) = mine.tenants()
    assert (account.contexts, account.refusals) == (0, 0)  # counted where they are sent


def test_take_text_allows_overdraft_and_refuses_until_repaid() -> None:
    mine = accounts(Limits(characters_per_minute=60))
    mine.take_text(CALLER, 59, 100.0)
    mine.take_text(CALLER, 61, 100.0)  # one character was left, so the debt is now 60
    with pytest.raises(CapacityError) as over:
        mine.take_text(CALLER, 1, 100.0)
    assert over.value.retry_after_ms == 61_000
    with pytest.raises(CapacityError):
        mine.take_text(CALLER, 1, 159.0)
    mine.take_text(CALLER, 0, 159.0)
    mine.take_text(CALLER, 1, 100.0 + over.value.retry_after_ms / 1000)


def test_take_text_in_one_minute_is_limited_to_allowance_and_refill() -> None:
    mine, taken = accounts(Limits(characters_per_minute=600)), 0
    for step in range(600):  # a minute, ten times a second
        try:
            mine.take_text(CALLER, 7, step / 10)
            taken += 7
        except CapacityError:
            pass
    assert 1190 <= taken <= 1207  # the initial allowance, its refill and one more text


def test_give_text_back_restores_allowance() -> None:
    mine = accounts(Limits(characters_per_minute=10))
    mine.take_text(CALLER, 50, 0.0)
    mine.give_text_back(CALLER, 50)
    mine.take_text(CALLER, 10, 0.0)
    ((_, account),) = mine.tenants()
    assert account.characters == 10


def test_wrong_keys_are_counted_per_address() -> None:
    failures = Failures(per_minute=3)
    assert [failures.add("a", 0.0) for _ in range(3)] == [0, 0, 0]
    assert failures.add("a", 0.0) == pytest.approx(20)
    assert failures.add("b", 0.0) == 0
    assert failures.add("a", 20.0) == 0
    for number in range(10_000):
        failures.add(str(number), 30.0)
    assert len(failures._spent) <= 4096


# -- hosts and exposure


@pytest.mark.parametrize(
    ("host", "bound", "allowed", "known"),
    [
        ("127.0.0.1:8000", "127.0.0.1", (), True),
        ("localhost", "127.0.0.1", (), True),
        ("[::1]:8000", "127.0.0.1", (), True),
        ("[::1]evil.example", "127.0.0.1", (), False),
        ("[::1].evil.example:80", "127.0.0.1", (), False),
        ("evil.example", "127.0.0.1", (), False),
        ("127.0.0.1.evil.example", "127.0.0.1", (), False),
        ("localhost.evil.example:80", "127.0.0.1", (), False),
        ("", "127.0.0.1", (), False),
        ("10.0.0.5:8000", "10.0.0.5", (), True),
        ("speech.example.org", "10.0.0.5", (), False),
        ("speech.example.org.", "10.0.0.5", ("speech.example.org",), True),
        ("a.example.org", "10.0.0.5", ("*.example.org",), True),
        ("example.org", "10.0.0.5", ("*.example.org",), False),
        ("evilexample.org", "10.0.0.5", ("*.example.org",), False),
        ("evil.speech.example.org", "10.0.0.5", ("speech.example.org",), False),
        ("evil-peech.example.org", "10.0.0.5", ("speech.example.org",), False),
        ("page.localhost:8000", "10.0.0.5", (), True),
        ("evillocalhost", "10.0.0.5", (), False),
        ("[2001:db8::5]:8000", "[2001:DB8::5]", (), True),
        ("anything", "0.0.0.0", (), True),
        ("anything", "::", (), True),
        ("anything", "::", ("speech.example.org",), False),
        ("anything", "0.0.0.0", ("speech.example.org",), False),
        ("anything", "10.0.0.5", ("*",), True),
    ],
)
def test_is_known_accepts_only_bound_and_allowed_hosts(
    host: str, bound: str, allowed: tuple[str, ...], known: bool
) -> None:
    assert is_known([host] if host else [], bound, allowed) is known
    if host and known and host != "anything":
        assert not is_known([host, "evil.example"], bound, allowed)


@pytest.mark.parametrize(
    ("hosts", "is_address"),
    [
        (["10.1.2.3:8000"], True),
        (["[2001:db8::1]:8000"], True),
        (["10.1.2.3", "evil.example"], False),  # a proxy and the service may choose differently
        (["10.1.2.3.evil.example"], False),
        (["localhost"], False),
        ([""], False),
        ([], False),
    ],
)
def test_only_requests_to_addresses_alone_cannot_be_rebound(
    hosts: list[str], is_address: bool
) -> None:
    assert called_by_address(hosts) is is_address


def test_allowed_hosts_are_normalised_or_refused() -> None:
    settings = load_settings(allowed_hosts="Speech.Example.org:443, [::2], 2001:DB8::1,")
    assert settings.allowed_hosts == ("speech.example.org", "::2", "2001:db8::1")
    for wrong in ("https://a.example/", "me@a.example", ":8000", "*a.example", "a/b", "*.:1"):
        with pytest.raises(SettingsError, match="not a host"):
            load_settings(allowed_hosts=wrong)
    assert not is_loopback("128.0.0.1")
    assert is_loopback("127.9.9.9")
    assert is_loopback("LocalHost")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({}, None),
        ({"host": "::1"}, None),
        ({"host": "localhost"}, None),
        ({"host": "0.0.0.0"}, "host 0.0.0.0"),
        ({"host": "::"}, "host ::"),
        ({"host": "10.0.0.5"}, "api_keys_file"),
        ({"admin_host": "0.0.0.0"}, None),
        ({"admin_host": "0.0.0.0", "admin_port": 1}, "admin_host"),
        ({"host": "0.0.0.0", "auth": "off"}, None),
        ({"host": "0.0.0.0", "api_keys_file": "k.json"}, None),
        ({"auth": "off", "api_keys_file": "k.json"}, "auth is off"),
    ],
)
def test_exposure_fault_names_unsafe_setting(settings: dict[str, object], word: str | None) -> None:
    fault = exposure_fault(Settings(**settings))  # type: ignore[arg-type]
    assert fault is None if word is None else word in str(fault)


@pytest.mark.parametrize(
    ("settings", "public"),
    [
        ({}, True),
        ({"host": "0.0.0.0", "auth": "off"}, False),
        ({"api_keys_file": "k.json"}, False),
        ({"api_keys_file": "k.json", "metrics_public": True}, True),
        ({"metrics_public": False}, False),
    ],
)
def test_metrics_default_to_public_only_on_loopback_without_keys(
    settings: dict[str, object], public: bool
) -> None:
    assert Settings(**settings).metrics_are_public is public  # type: ignore[arg-type]


def test_parse_expiry_accepts_durations_and_dates(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert parse_expiry("12h", now) == now + timedelta(hours=12)
    assert parse_expiry("2026-02-01", now) == datetime(2026, 2, 1, tzinfo=UTC)
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert parse_expiry("2026-02-01T12:00", now) == datetime(2026, 2, 1, 12, tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert parse_expiry("999999d", now) == now + timedelta(days=999_999)
    for wrong in ("12x", "9999999d", "", "tomorrow"):
        with pytest.raises(ValueError, match="expires"):
            parse_expiry(wrong, now)
