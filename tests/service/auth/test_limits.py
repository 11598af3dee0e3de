"""Limits of keys and tenants, and their metrics: each refusal is counted exactly once."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from loadtest.fakes.talker import FakeTalker
from service.admin import create_admin_app
from service.auth.caller import Caller
from service.auth.keys import ApiKey, KeyRing, Limits, digest_of
from service.auth.limits import Accounts, LeakyBucket
from streaming.errors import CapacityError
from tests.service.auth.keyring import bearer, entry, write_keys
from tests.service.kept_spans import Kept
from tests.service.live import client, gateway
from tests.service.scraping import scrape, value

CALLER = Caller("k", "t", frozenset())
REFUSALS = "tts_tenant_refusals_total"


class Ring:
    """Accounts whose limit can change between calls."""

    def __init__(self, per_minute: int | None) -> None:
        self.limit(per_minute)
        self.accounts = Accounts(lambda: self.ring)

    def limit(self, per_minute: int | None) -> None:
        limits = Limits(characters_per_minute=per_minute)
        self.ring = KeyRing([ApiKey(id="k", tenant="t", sha256=digest_of("k"))], {"t": limits})


def test_new_limit_ignores_text_taken_before() -> None:
    mine = Ring(None)
    for minute in range(60):
        mine.accounts.take_text(CALLER, 5_000, 60.0 * minute)
    mine.limit(3_000)
    mine.accounts.take_text(CALLER, 3_000, 3_600.0)
    with pytest.raises(CapacityError):
        mine.accounts.take_text(CALLER, 1, 3_600.0)
    mine.limit(None)
    mine.accounts.take_text(CALLER, 900_000, 3_601.0)
    mine.limit(3_000)
    mine.accounts.take_text(CALLER, 3_000, 3_602.0)


@given(
    st.integers(1, 5_000_000),
    st.lists(st.tuples(st.floats(0, 90), st.floats(0.01, 2)), max_size=12),
)
def test_text_is_accepted_exactly_while_minute_is_not_used_up(
    per_minute: int, texts: list[tuple[float, float]]
) -> None:
    """And a client that waits as long as its refusal says is not refused again."""
    mine, taken, now = Ring(per_minute).accounts, list[tuple[float, int]](), 0.0
    for pause_s, share in texts:
        now, characters = now + pause_s, max(1, round(share * per_minute))
        allowance = [per_minute * (1 + (now - at) / 60) for at, _ in taken]
        spent = [sum(count for _, count in taken[first:]) for first in range(len(taken))]
        left = min((may - did for may, did in zip(allowance, spent, strict=True)), default=1.0)
        hint_ms: int | None = None
        try:
            mine.take_text(CALLER, characters, now)
        except CapacityError as refusal:
            hint_ms = refusal.retry_after_ms
        assert left > -1e-3 if hint_ms is None else left < 1e-3
        if hint_ms is not None:
            now += hint_ms / 1000
            mine.take_text(CALLER, characters, now)
        taken.append((now, characters))


def test_refused_text_waits_for_limits_of_both_tenant_and_key() -> None:
    mine = Ring(600)
    own = Limits(characters_per_minute=60)
    key = ApiKey(id="k", tenant="t", sha256=digest_of("k"), limits=own)
    mine.ring = KeyRing([key], mine.ring.tenants)
    mine.accounts.take_text(CALLER, 600, 0.0)
    with pytest.raises(CapacityError, match="This key may speak 60 characters") as refused:
        mine.accounts.require_text(CALLER, 1, 0.0)
    assert refused.value.retry_after_ms is not None
    mine.accounts.require_text(CALLER, 1, refused.value.retry_after_ms / 1000)


def test_bucket_leaks_to_zero_whatever_the_clock() -> None:
    bucket = LeakyBucket()
    bucket.add(30)
    assert bucket.leak(60, 0.0) == 30
    assert bucket.leak(60, 10.0) == 20
    assert bucket.leak(60, 5.0) == 20  # a clock that goes back
    bucket.add(-15)
    assert bucket.leak(60, 7.0) == 3
    assert bucket.leak(60, 90.0) == 0
    bucket.add(-1)
    assert bucket.leak(60, 91.0) == 0


def test_require_text_takes_no_allowance() -> None:
    mine = Ring(10).accounts
    for _ in range(5):
        mine.require_text(CALLER, 10, 0.0)
    mine.take_text(CALLER, 10, 0.0)
    with pytest.raises(CapacityError):
        mine.require_text(CALLER, 1, 0.0)


@pytest.mark.parametrize("use", ["contexts", "connections"])
def test_accounts_in_use_are_kept_when_their_key_is_removed(use: str) -> None:
    mine = Ring(None)
    with ExitStack() as stack:
        if use == "contexts":
            mine.accounts.count_contexts(CALLER, 1)
        else:
            stack.enter_context(mine.accounts.connection(CALLER))
        old, mine.ring = mine.ring, KeyRing()
        mine.accounts.forget_unknown()
        mine.ring = old  # the key is back while its context or connection is still open
        ((_, account),) = mine.accounts.tenants()
        assert account.contexts + account.connections == 1


def test_connection_that_fails_is_counted_no_more() -> None:
    mine = Ring(None)
    with pytest.raises(ZeroDivisionError), mine.accounts.connection(CALLER):
        raise ZeroDivisionError
    ((_, account),) = mine.accounts.tenants()
    assert account.connections == 0


async def test_refusals_by_key_limit_are_counted_for_tenant(tmp_path: Path) -> None:
    keys = write_keys(
        tmp_path / "keys.json",
        entry("a", "acme", "speak", "admin", limits={"max_connections": 1}),
        acme={"max_connections": 9},
    )
    async with gateway(api_keys_file=keys, metrics_public=True) as server:
        async with client(server.url, additional_headers=bearer("a")):
            for _ in range(3):
                with pytest.raises(InvalidStatus):
                    await connect(server.url, additional_headers=bearer("a"))
        assert value(await scrape(server), REFUSALS, tenant="acme") == 3


async def test_batch_waiting_for_slots_counts_no_refusals(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("a", "acme"), acme={"max_contexts": 1})
    async with (
        gateway(FakeTalker(row_s=0.001), api_keys_file=keys, metrics_public=True) as server,
        httpx.AsyncClient(headers=bearer("a"), timeout=60) as http,
    ):
        items = [{"input": f"Sentence {n}."} for n in range(6)]
        body = {"items": items, "response_format": "pcm"}
        answer = await http.post(server.http + "/v1/audio/speech/batch", json=body)
        assert answer.json()["succeeded"] == 6
        assert value(await scrape(server), REFUSALS, tenant="acme") == 0


async def test_refused_text_is_not_counted_as_context(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("a", "acme"), acme={"characters_per_minute": 1})
    kept = Kept()
    async with (
        gateway(traces=kept.tracing, api_keys_file=keys, metrics_public=True) as server,
        httpx.AsyncClient(headers=bearer("a"), timeout=60) as http,
    ):
        body = {"input": "Hello there.", "response_format": "pcm"}
        batch = {"items": [{"input": "One."}, {"input": "Two."}], "response_format": "pcm"}
        for status in (200, 429, 429):
            answer = await http.post(server.http + "/v1/audio/speech", json=body)
            assert answer.status_code == status
        answer = await http.post(server.http + "/v1/audio/speech/batch", json=batch)
        assert answer.json()["failed"] == 2
        await server.until_free()
        scraped = await scrape(server)
    assert value(scraped, "tts_contexts_total", protocol="openai", outcome="cancelled") == 0
    assert value(scraped, "tts_contexts_total", protocol="openai", outcome="complete") == 1
    assert value(scraped, "tts_errors_total", code="rate_limited") == 4
    assert value(scraped, REFUSALS, tenant="acme") == 4
    assert value(scraped, "tts_connections_total") == 2  # the served request and the batch
    assert [span.name for span in kept.spans].count("tts.context") == 1


async def test_too_long_text_takes_no_allowance(tmp_path: Path) -> None:
    limits = {"characters_per_minute": 60}
    keys = write_keys(tmp_path / "keys.json", entry("a", "acme", limits=limits))
    async with (
        gateway(api_keys_file=keys, max_text_chars=50) as server,
        client(server.url, additional_headers=bearer("a")) as talk,
    ):
        await talk.create()
        await talk.send("text.append", context_id="c", text="x" * 51)
        assert (await talk.error())["code"] == "text_too_long"
        for text in ("A sentence of forty or so characters. ", "And more. "):
            await talk.send("text.append", context_id="c", text=text)
        await talk.send("context.end", context_id="c")
        assert (await talk.until("context.done"))["reason"] == "complete"


async def test_handshake_refused_by_dialect_is_not_counted_as_connection() -> None:
    async with gateway() as server:
        address = server.http.replace("http", "ws", 1)
        for query in ("?encoding=nothing", "?sample_rate=1"):
            with pytest.raises(InvalidStatus):
                await connect(f"{address}/v1/speak{query}")
        assert value(await scrape(server), "tts_connections_total") == 0
        async with client(server.url):
            assert value(await scrape(server), "tts_connections_total") == 1


@pytest.mark.parametrize(
    ("host", "status"),
    [("evil.example:8001", 403), ("10.1.2.3:8001", 200), ("[fd00::1]", 200), ("localhost", 200)],
)
async def test_admin_metrics_are_refused_for_foreign_host_names(host: str, status: int) -> None:
    """With DNS rebinding, a page reaches any address, but only under its own host name."""
    async with gateway() as server:
        transport = httpx.ASGITransport(create_admin_app(server.runtime, lambda: None))
        async with httpx.AsyncClient(
            timeout=60, transport=transport, base_url=f"http://{host}"
        ) as http:
            assert (await http.get("/metrics")).status_code == status
            assert (await http.get("/health/ready")).status_code == 200
