"""The native protocol: refused messages, failures, timeouts and closed sockets."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from loadtest.fakes.talker import FakeTalker
from service.contexts.driver import ContextDriver
from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.events import Event, RowsReceived
from streaming.ports import SpeechRequest
from streaming.window import DecodeWindow
from tests.service.dialects.native.texts import EXACT, SENTENCES, TEXT, get, is_done
from tests.service.live import Client, client, gateway
from tests.waiting import until

BAD_CREATES: list[tuple[dict[str, Any], str, str | None]] = [
    ({"voice": "nobody"}, "unknown_voice", "voice"),
    ({"model": "other"}, "unknown_model", "model"),
    ({"timestamps": True}, "unsupported", "timestamps"),
    ({"audio": {"sample_rate": 11025}}, "unsupported", "audio.sample_rate"),
    ({"audio": {"encoding": "mp3"}}, "invalid_message", "audio.encoding"),
    ({"audio": {"frame_ms": -1}}, "invalid_message", "audio.frame_ms"),
    ({"sampling": {"temperature": 9}}, "invalid_message", "sampling.temperature"),
    ({"sampling": {"beam": 4}}, "invalid_message", "sampling.beam"),
    ({"mode": "half"}, "invalid_message", "mode"),
    ({"max_lead_ms": 10**9}, "invalid_parameter", "max_lead_ms"),
    ({"context_id": ""}, "invalid_message", "context_id"),
    ({"context_id": 4}, "invalid_message", "context_id"),
    ({"context_id": "x" * 129}, "invalid_message", "context_id"),
    ({"context_id": "\ud800"}, "invalid_message", "context_id"),
    ({"colour": "red"}, "invalid_message", "colour"),
]


@pytest.mark.parametrize(("fields", "code", "param"), BAD_CREATES)
async def test_context_create_error_names_invalid_option(
    fields: dict[str, Any], code: str, param: str | None
) -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.send(**{"kind": "context.create", "context_id": "x", **fields})
        error = await talk.error()
        assert (error["code"], error.get("param")) == (code, param)
        assert error.get("context_id") == (None if "context_id" in fields else "x")
        assert len(await talk.say("Still here.")) > 0
        assert server.runtime.admission.active == 0


async def test_invalid_messages_do_not_affect_open_context() -> None:
    async with gateway(FakeTalker(row_s=0.001)) as server, client(server.url) as talk:
        handle = await talk.create(chunking=EXACT)
        await talk.send("text.append", context_id="c", text=TEXT)
        wrong: list[tuple[str | bytes, str]] = [
            (b"\0\1\2", "invalid_message"),
            ("{", "invalid_json"),
            ("[]", "invalid_message"),
            ('{"type":"no.such"}', "unknown_message"),
            ('{"type":"text.append","context_id":"c","text":null}', "invalid_message"),
            ('{"type":"text.append","context_id":"c","text":"a","x":1}', "invalid_message"),
            ('{"type":"text.append","context_id":"nobody","text":"a"}', "unknown_context"),
            ('{"type":"context.create","context_id":"c"}', "context_exists"),
            ('{"type":"session.configure","framing":"raw"}', "invalid_message"),
        ]
        for message, code in wrong:
            await talk.socket.send(message)
            assert (await talk.error())["code"] == code
        await talk.send("context.end", context_id="c")
        await talk.send("context.end", context_id="c")
        assert (await talk.error())["code"] == "context_closed"
        await talk.until("context.done")
        want = np.concatenate([server.whole(sentence) for sentence in SENTENCES])
        assert np.array_equal(talk.samples(handle), want)


@pytest.mark.parametrize("text", ["", "   "])
async def test_unspeakable_text_is_error_of_its_context_only(text: str) -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.create()
        await talk.send("text.append", context_id="c", text=text)
        await talk.send("context.end", context_id="c")
        error = await talk.error()
        assert (error["code"], error["context_id"]) == ("invalid_text", "c")
        assert (await talk.until("context.done"))["reason"] == "error"
        assert len(await talk.say("Still here.")) > 0
        assert server.runtime.admission.active == 0


async def test_session_is_configured_whenever_no_context_is_open() -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.create()
        await talk.send("session.configure", framing="json")
        error = await talk.error()
        assert error["message"] == "A session is configured while no context is open."
        await talk.send("context.cancel", context_id="c")
        await talk.until("context.cancelled")
        await talk.send("session.configure", framing="json")
        await talk.create()
        await talk.send("text.append", context_id="c", text=TEXT)
        await talk.send("context.end", context_id="c")
        await talk.until("audio")


async def test_text_beyond_limit_is_not_added() -> None:
    async with gateway(max_text_chars=30) as server, client(server.url) as talk:
        handle = await talk.create(chunking=EXACT)
        await talk.send("text.append", context_id="c", text="Twenty characters. ")
        await talk.send("text.append", context_id="c", text="Too much of it.")
        error = await talk.error()
        assert (error["code"], error["context_id"]) == ("text_too_long", "c")
        await talk.send("context.end", context_id="c")
        await talk.until("context.done")
        assert np.array_equal(talk.samples(handle), server.whole("Twenty characters."))


async def test_full_server_refuses_context_with_retry_after() -> None:
    talker = FakeTalker(row_s=0.01)
    async with gateway(talker, max_contexts=2) as server, client(server.url) as talk:
        await talk.create("a")
        await talk.create("b")
        await talk.send("context.create", context_id="c")
        error = await talk.error()
        assert error["code"] == "overloaded"
        assert error["retryable"] is True
        assert error["retry_after_ms"] > 0
        await talk.send("context.cancel", context_id="a")
        await talk.until("context.cancelled")
        await talk.create("c")
        assert server.runtime.admission.active == 2


async def test_handshake_beyond_max_connections_is_refused() -> None:
    async with gateway(max_connections=1) as server, client(server.url):
        with pytest.raises(InvalidStatus) as caught:
            await connect(server.url)
        assert caught.value.response.status_code == 503
        assert b"overloaded" in caught.value.response.body
        assert caught.value.response.headers["retry-after"]


async def test_handshake_with_other_subprotocol_is_refused() -> None:
    async with gateway() as server:
        with pytest.raises(InvalidStatus) as caught:
            await connect(server.url, subprotocols=["other.v9"])  # type: ignore[list-item]
        assert caught.value.response.status_code == 400


async def test_message_over_limit_closes_socket_with_1009() -> None:
    async with gateway(max_message_bytes=2048) as server, client(server.url) as talk:
        await talk.send("text.append", context_id="c", text="x" * 4000)
        with pytest.raises(ConnectionClosed) as caught:
            await talk.next()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


@pytest.mark.parametrize("code", [ErrorCode.CODEC_FAILED, ErrorCode.OVERLOADED])
async def test_codec_failure_is_reported_and_ends_context(code: ErrorCode) -> None:
    async with gateway() as server, client(server.url) as talk:
        server.codec.fail_with = BackendError(code, "Told.")
        await talk.create()
        await talk.send("text.append", context_id="c", text=TEXT)
        error = await talk.error()
        assert (error["code"], error["retryable"]) == (code.value, True)
        assert (await talk.until("context.done"))["reason"] == "error"
        await server.until_free()


async def test_codec_gets_request_id_that_client_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the log of a window that fails can be found by the client's error."""
    async with gateway() as server, client(server.url) as talk:
        told: list[str] = []

        async def fail(window: DecodeWindow, deadline_s: float, request_id: str = "") -> NoReturn:
            told.append(request_id)
            raise BackendError(ErrorCode.CODEC_FAILED, "Told.")

        monkeypatch.setattr(server.codec, "decode", fail)
        await talk.create()
        await talk.send("text.append", context_id="c", text=TEXT)
        error = await talk.error()
        assert set(told) == {error["request_id"]}


async def test_internal_error_does_not_reveal_exception() -> None:
    async with gateway() as server, client(server.url) as talk:
        server.codec.fail_with = RuntimeError("secret at 0xdeadbeef")
        await talk.create()
        await talk.send("text.append", context_id="c", text=TEXT)
        error = await talk.error()
        assert error["code"] == "internal"
        assert "secret" not in str(error)


async def test_traceback_of_internal_error_is_logged_with_request_id_of_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with gateway() as server, client(server.url) as talk:
        server.codec.fail_with = RuntimeError("secret at 0xdeadbeef")
        await talk.create()
        await talk.send("text.append", context_id="c", text=TEXT)
        error = await talk.error()
        records = [r for r in caplog.records if vars(r).get("request_id") == error["request_id"]]
        assert any("0xdeadbeef" in (record.exc_text or "") for record in records)


async def test_talker_failure_does_not_affect_other_context() -> None:
    async with gateway(FakeTalker(row_s=0.001)) as server, client(server.url) as talk:
        good = await talk.create("good", chunking=EXACT)
        await talk.create("bad")
        await talk.send("text.append", context_id="good", text="One sentence.")
        await talk.send("text.append", context_id="bad", text="This will !fail now.")
        await talk.send("context.end", context_id="good")
        await talk.send("context.end", context_id="bad")
        messages = [await talk.next() for _ in range(3)]
        while sum(is_done(m) for m in messages) < 2:
            messages.append(await talk.next())
        errors = [m for m in messages if isinstance(m, dict) and m["type"] == "error"]
        assert [(e["code"], e["context_id"]) for e in errors] == [("engine_failed", "bad")]
        assert np.array_equal(talk.samples(good), server.whole("One sentence."))


async def test_voice_removed_during_context_is_reported() -> None:
    class Leaving(FakeTalker):
        is_gone = False

        def check(self, request: SpeechRequest) -> None:
            if self.is_gone:
                raise RequestError(ErrorCode.UNKNOWN_VOICE, "It has gone.", param="voice")
            super().check(request)

    talker = Leaving()
    async with gateway(talker) as server, client(server.url) as talk:
        await talk.create()
        await talk.send("text.append", context_id="c", text="One is here. ")
        await talk.send("context.flush", context_id="c", flush_id="f")
        await talk.until("flush.done")
        talker.is_gone = True
        await talk.send("text.append", context_id="c", text="Two is here. ")
        await talk.send("context.end", context_id="c")
        came = [await talk.next()]
        while not is_done(came[-1]):
            came.append(await talk.next())
        errors = [m for m in came if isinstance(m, dict) and m["type"] == "error"]
        assert [error["code"] for error in errors] == ["unknown_voice"]


async def test_idle_context_is_closed_but_socket_stays_open() -> None:
    async with gateway(context_idle_s=0.2) as server, client(server.url) as talk:
        await talk.create()
        error = await talk.error()
        assert (error["code"], error["context_id"]) == ("idle_timeout", "c")
        assert len(await talk.say("Still here.", "d")) > 0
        assert server.runtime.admission.active == 0


async def test_idle_socket_is_closed() -> None:
    async with gateway(session_idle_s=0.2) as server, client(server.url) as talk:
        assert (await talk.error())["code"] == "idle_timeout"
        with pytest.raises(ConnectionClosed) as caught:
            await talk.next()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1001


async def test_slow_consumer_is_closed_without_affecting_others() -> None:
    talker = FakeTalker(frames_per_character=100)
    settings: dict[str, Any] = {
        "max_outbox_bytes": 1 << 20,
        "slow_consumer_s": 0.5,
        "max_lead_ms": 10**7,
    }
    async with gateway(talker, **settings) as server, client(server.url) as good:
        async with connect(server.url, max_queue=1, compression=None, close_timeout=0.2) as socket:
            stalled = Client(socket)
            await stalled.next()
            await stalled.create(max_lead_ms=10**7)
            await stalled.send("text.append", context_id="c", text=TEXT)
            await until(lambda: not server.runtime.admission.active)
            assert len(await good.say("Still here.", max_lead_ms=10**7)) > 0
        text = (await get(server.http + "/metrics")).text
        assert 'tts_errors_total{code="slow_consumer"} 1.0' in text
        assert 'tts_ws_close_total{code="1008"} 1.0' in text


async def test_ping_is_answered_and_session_close_ends_socket() -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.send("ping", id="7")
        assert await talk.next() == {"type": "pong", "id": "7"}
        await talk.create()
        await talk.send("session.close")
        with pytest.raises(ConnectionClosed) as caught:
            await talk.until("never")
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1000
        await server.until_free()


async def test_stream_ahead_of_playback_takes_rows_in_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    post = ContextDriver.post

    def spy(driver: ContextDriver, event: Event) -> None:
        if isinstance(event, RowsReceived):
            taken.append(len(event.batch.rows))  # rows that were taken together
        post(driver, event)

    monkeypatch.setattr(ContextDriver, "post", spy)
    talker = FakeTalker(row_s=0.002, frames_per_character=6)
    async with gateway(talker, **EXACT) as server, client(server.url) as talk:
        before = talker.rows_made
        got = await talk.say(TEXT, chunking=EXACT, sampling={"seed": 5})
        want = np.concatenate([server.whole(sentence, 5) for sentence in SENTENCES])
    assert np.array_equal(got, want)
    assert sum(taken) == talker.rows_made - before
    assert len(taken) < sum(taken) / 3
