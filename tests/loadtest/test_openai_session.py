"""Load over OpenAI's HTTP API, against the gateway with fake engines and a scripted server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest

from loadtest import servers
from loadtest.fakes.talker import FakeTalker
from loadtest.openai_session import address, converse
from loadtest.plan import Plan
from loadtest.records import TurnRecord
from loadtest.run import LoadTestError, require_local, run_plan
from loadtest.session import TurnSpeech
from loadtest.workload import Piece, Turn, session
from tests.loadtest.small_plan import WORK, carried_out, metrics, plan
from tests.service.live import gateway

#: One second of a tone.
TONE = (np.sin(np.arange(24_000) / 10) * 20_000).astype("<i2").tobytes()


async def test_openai_session_records_match_server_metrics(monkeypatch) -> None:
    # Rows are slow, so that a barge-in comes before the audio is complete.
    async with gateway(FakeTalker(row_s=0.03)) as server:
        mine = plan(server.url, protocol="openai", processes=1)
        records = await carried_out(mine, monkeypatch)
        told = await asyncio.to_thread(metrics, server.url)
    assert {record.outcome for record in records} == {"complete", "cancelled"}
    ended = {
        outcome: told[f'tts_contexts_total{{outcome="{outcome}",protocol="openai"}}']
        for outcome in ("complete", "cancelled")
    }
    assert sum(ended.values()) == len(records)
    # All audio may have been sent already when the client closes the connection.
    assert 0 < ended["cancelled"] <= sum(record.outcome == "cancelled" for record in records)
    for record in records:
        turn = session(WORK, mine.seed, record.session)[record.turn]
        written_s = turn.pieces[-1].at_s
        assert record.sentence_s - record.intended_s == pytest.approx(written_s)
        assert record.opened_s is not None
        assert record.opened_s >= record.sentence_s - 0.01
        assert (record.outcome == "cancelled") == (record.cancel_s is not None)
    characters = sum(record.characters for record in records)
    assert told['tts_characters_total{protocol="openai"}'] == characters


@pytest.mark.long
@pytest.mark.slow
async def test_openai_session_is_refused_by_full_server() -> None:
    async with servers.started(servers.fake(["--capacity", "1"])) as server:
        busy = plan(server.url, protocol="openai", rate_per_s=10.0, duration_s=3.0)
        made = (await run_plan(busy)).figures
    assert set(made.outcomes) <= {"complete", "cancelled", "refused"}
    assert made.outcomes["refused"] > 0
    assert made.codes == {"overloaded": made.outcomes["refused"]}


# -- one turn against a scripted server

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await script(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/audio/speech"


async def asked(reader: asyncio.StreamReader) -> tuple[str, dict[str, object]]:
    """Read a request; return its head and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    return head, json.loads(await reader.readexactly(length))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def one_turn(
    url: str, barge_in_s: float | None = None, *, turn_limit_s: float = 60.0, text_s: float = 0.05
) -> TurnRecord:
    turn = Turn((Piece(0.0, "Hello "), Piece(text_s, "there.")), text_s, barge_in_s, 0.0)
    records: list[TurnRecord] = []
    mine = Plan(url, 5.0, 0.0, protocol="openai", turn_limit_s=turn_limit_s)
    await converse(mine, 0, (turn,), 0.0, time.monotonic(), records.append)
    (record,) = records
    return record


async def test_openai_session_counts_samples_split_across_chunks() -> None:
    requests = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await asked(reader))
        writer.write(HEAD)
        for begin, end in ((0, 1), (1, 2), (2, 1001), (1001, len(TONE))):
            writer.write(chunk(TONE[begin:end]))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")

    async with scripted(speak) as url:
        record = await one_turn(url)
    assert record.outcome == "complete"
    assert sum(samples for _, samples in record.arrivals) == 24_000
    assert record.silence == 1  # a sine begins at 0
    ((head, body),) = requests
    assert head.startswith("post /v1/audio/speech http/1.1")
    assert body == {
        "model": "tts-1",
        "voice": "alloy",
        "input": "Hello there.",
        "response_format": "pcm",
    }


@pytest.mark.parametrize(
    ("answer", "outcome", "code"),
    [
        (HEAD + chunk(TONE), "failed", "broken_off"),
        (b"", "failed", "broken_off"),
        (b"HTTP/1.1 503 Gone\r\nContent-Length: 2\r\n\r\n{}", "refused", "http_503"),
        (
            b"HTTP/1.1 503 No\r\nContent-Length: 40\r\n\r\n"
            b'{"error":{"code":"service_unavailable"}}',
            "refused",
            "http_503",
        ),
        (
            b'HTTP/1.1 503 No\r\nContent-Length: 38\r\n\r\n{"error":{"code":"engine_restarting"}}',
            "failed",
            "engine_restarting",
        ),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nwhat", "failed", "http_500"),
        (
            b'HTTP/1.1 429 No\r\nContent-Length: 31\r\n\r\n{"error":{"code":"overloaded"}} ',
            "refused",
            "overloaded",
        ),
    ],
)
async def test_openai_session_error_has_outcome_and_code(
    answer: bytes, outcome: str, code: str
) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(answer)
        await writer.drain()

    async with scripted(speak) as url:
        record = await one_turn(url)
    assert (record.outcome, record.code) == (outcome, code)
    assert (record.opened_s is not None) == answer.startswith(HEAD)  # otherwise no stream was open


async def test_openai_session_ignores_informational_responses() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + HEAD + chunk(TONE))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with scripted(speak) as url:
        record = await one_turn(url)
    assert (record.outcome, record.code) == ("complete", None)
    assert sum(samples for _, samples in record.arrivals) == 24_000


async def test_openai_session_audio_extends_stall_timeout(monkeypatch) -> None:
    told = []
    monkeypatch.setattr(TurnSpeech, "_progress", lambda self, ahead_s=0.0: told.append(ahead_s))

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(HEAD)
        for _ in range(3):
            writer.write(chunk(TONE))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")

    async with scripted(speak) as url:
        record = await one_turn(url)
    assert record.outcome == "complete"
    assert len(told) >= len(record.arrivals) > 0


async def test_openai_session_stall_timeout_starts_after_text() -> None:
    """Writing the text may take longer than a turn may stall."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(HEAD + chunk(TONE) + b"0\r\n\r\n")
        await writer.drain()

    async with scripted(speak) as url:
        record = await one_turn(url, turn_limit_s=0.5, text_s=0.75)
    assert (record.outcome, record.code) == ("complete", None)


async def test_openai_session_barge_in_closes_connection() -> None:
    gone = asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(HEAD + chunk(TONE))
        await writer.drain()
        assert await reader.read() == b""
        gone.set()

    async with scripted(speak) as url:
        record = await one_turn(url, barge_in_s=0.05)
        async with asyncio.timeout(30):
            await gone.wait()
    assert (record.outcome, record.code) == ("cancelled", None)
    assert record.cancel_s is not None
    assert record.cancel_s >= record.arrivals[0][0] + 0.049


async def test_openai_session_without_server_fails() -> None:
    record = await one_turn("http://127.0.0.1:9/")
    assert record.outcome == "failed"
    assert record.code == "ConnectionRefusedError"


def test_openai_address_is_derived_from_url() -> None:
    assert address("ws://h:81/v1/tts/stream") == ("h", 81, False, "/v1/audio/speech")
    assert address("wss://h") == ("h", 443, True, "/v1/audio/speech")
    for base in ("http://h:81/v1", "http://h:81/v1/"):  # as OpenAI's clients name a server
        assert address(base) == ("h", 81, False, "/v1/audio/speech")
    assert address("https://h/other/v1/audio/speech") == ("h", 443, True, "/other/v1/audio/speech")
    with pytest.raises(ValueError, match="not an HTTP address"):
        address("ftp://h/")
    assert require_local("http://127.0.0.1/", "openai") == 80
    with pytest.raises(LoadTestError, match="another machine"):
        require_local("http://192.0.2.7:8000/", "openai")
