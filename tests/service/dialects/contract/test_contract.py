"""The contract of all protocols, with the same tests for each."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loadtest.fakes.talker import FakeTalker
from service.transport.websocket import Dialect, Socket
from streaming.errors import BackendError, ErrorCode
from tests.service.dialects.contract.adapters import (
    PROTOCOLS,
    SOCKETS,
    WYOMING,
    End,
    HttpProtocol,
    Protocol,
    SocketProtocol,
    SocketTurn,
    turn,
)
from tests.service.memory import Refused, Served, served

TEXT = "This one is a sentence that is long enough to be sent in several pieces."
OTHER = "Another one, which is spoken after it."
#: With the codec's full lookahead, streamed audio equals whole audio bit for bit.
EXACT: dict[str, Any] = {"first_lookahead_frames": 3, "lookahead_frames": 3}
#: A talker that does not finish during a test.
ENDLESS: dict[str, Any] = {"frames_per_character": 50, "row_s": 0.002}
every = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
every_socket = pytest.mark.parametrize(
    "protocol", SOCKETS, ids=[one.address.partition("?")[0] for one in SOCKETS]
)


def s16(service: Served, text: str) -> bytes:
    samples = np.clip(service.whole(text), -1, 1)
    return np.rint(samples * 32767).astype("<i2").tobytes()


def cancelled(service: Served) -> float:
    """Return how many contexts were cancelled, in any protocol."""
    counts = re.findall(
        r'^tts_contexts_total\{outcome="cancelled",.*\} (.+)$',
        service.runtime.metrics.render().decode(),
        re.MULTILINE,
    )
    return sum(map(float, counts))


@every
async def test_contract_audio_is_exact(protocol: Protocol) -> None:
    async with served(**EXACT) as service:
        async with turn(service, protocol, TEXT) as speaking:
            audio, end = await speaking.rest()
        assert end == End()
        assert audio == s16(service, TEXT)
        await service.until_free()


@every
async def test_contract_lone_surrogate_costs_itself_alone(protocol: Protocol) -> None:
    async with served(**EXACT) as service:
        async with turn(service, protocol, TEXT.replace("enough", "en\ud83dough")) as speaking:
            audio, end = await speaking.rest()
        assert end == End()
        assert audio == s16(service, TEXT.replace("enough", "en\ufffdough"))


@every_socket
async def test_contract_surrogates_meet_in_next_message(protocol: SocketProtocol) -> None:
    if not protocol.has_halves:
        pytest.skip("its texts are valid UTF-8")
    async with served(**EXACT) as service:
        async with service.socket(protocol.address) as socket:
            for message in (*protocol.opening, *cut(protocol, "One \ud83d", "\ude00 and " + OTHER)):
                socket.send(message)
            audio, end = await SocketTurn(protocol, socket).rest()
        assert end == End()
        assert audio == s16(service, f"One 😀 and {OTHER}")


def cut(protocol: SocketProtocol, first: str, second: str) -> Iterator[Any]:
    """The messages of a turn whose text comes in two of them."""
    for message in protocol.turn(first + second):
        if inputs := message.get("inputs"):
            yield message | {"inputs": [inputs[0] | {"text": first}]}
            yield message | {"inputs": [inputs[0] | {"text": second}]}
            continue
        key = next((key for key, value in message.items() if value == first + second), None)
        if key is None:
            yield message
            continue
        yield message | {key: first} | ({"continue": True} if "continue" in message else {})
        yield message | {key: second}


@every
async def test_contract_markup_is_not_spoken_and_pauses_are_exact(protocol: Protocol) -> None:
    text = f'[sad]{TEXT} <break time="0.3s"/> <emotion value="smug"/>{OTHER}</speak>'
    async with served(**EXACT) as service:
        async with turn(service, protocol, text) as speaking:
            audio, end = await speaking.rest()
        assert end == End()
        assert audio == s16(service, TEXT) + bytes(2 * 7200) + s16(service, OTHER)
        await service.until_free()


@every_socket
async def test_contract_socket_speaks_second_turn(protocol: SocketProtocol) -> None:
    if "/stream-input?" in protocol.address:
        pytest.skip("has one turn")
    async with served(**EXACT) as service:
        async with turn(service, protocol, TEXT) as speaking:
            assert isinstance(speaking, SocketTurn)
            await speaking.rest()
            speaking.speak(OTHER)
            audio, end = await speaking.rest()
        assert end == End()
        assert audio == s16(service, OTHER)


@every_socket
async def test_contract_cancel_stops_generation(protocol: SocketProtocol) -> None:
    if not protocol.cancel:
        pytest.skip("is cancelled by leaving")
    async with (
        served(FakeTalker(**ENDLESS), **EXACT) as service,
        turn(service, protocol, TEXT) as speaking,
    ):
        assert isinstance(speaking, SocketTurn)
        assert await speaking.hear()
        speaking.cancel()
        await service.until_free()
        assert cancelled(service) == 1


@every
async def test_contract_disconnect_frees_slot_and_talker(protocol: Protocol) -> None:
    async with served(FakeTalker(**ENDLESS)) as service:
        async with turn(service, protocol, TEXT) as speaking:
            assert await speaking.hear()
            assert service.runtime.admission.active == 1
        await service.until_free()
        assert service.runtime.lifecycle.connections == 0
        assert cancelled(service) == 1


@every
async def test_contract_slow_reader_receives_all_audio(protocol: Protocol) -> None:
    async with served(FakeTalker(row_s=0.0005), **EXACT) as service:
        async with turn(service, protocol, TEXT) as speaking:
            first = await speaking.hear()
            assert isinstance(first, bytes)
            speaking.pause()
            for _ in range(200):  # time in which audio could get lost
                await asyncio.sleep(0.001)
            speaking.resume()
            rest, end = await speaking.rest()
        assert end == End()
        assert first + rest == s16(service, TEXT)


@every
async def test_contract_stalled_reader_loses_slot(protocol: Protocol) -> None:
    talker = FakeTalker(frames_per_character=50)
    async with (
        served(talker, slow_consumer_s=0.1) as service,
        turn(service, protocol, TEXT) as speaking,
    ):
        assert await speaking.hear()
        speaking.pause()
        await service.until_free()
        counted = service.runtime.metrics.render().decode()
        assert 'tts_errors_total{code="slow_consumer"} 1.0' in counted


@every
async def test_contract_drain_finishes_open_turn_and_refuses_new(protocol: Protocol) -> None:
    async with served(FakeTalker(row_s=0.001), **EXACT) as service:
        async with turn(service, protocol, TEXT) as speaking:
            first = await speaking.hear()
            assert isinstance(first, bytes)
            service.runtime.lifecycle.begin_drain()
            rest, end = await speaking.rest()
        assert end == End()
        assert first + rest == s16(service, TEXT)
        async with turn(service, protocol, OTHER) as refused:
            assert await refused.hear() == End("draining")


@every
async def test_contract_full_server_answers_overloaded(protocol: Protocol) -> None:
    async with served(max_contexts=1) as service:
        lease = service.runtime.admission.acquire()
        async with turn(service, protocol, TEXT) as speaking:
            assert await speaking.hear() == End("overloaded")
            if isinstance(protocol, HttpProtocol):
                assert speaking.status == 429
                assert int(speaking.headers["retry-after"]) >= 1
        lease.release()


@every
async def test_contract_too_long_text_is_refused(protocol: Protocol) -> None:
    async with served(max_text_chars=20) as service:
        async with turn(service, protocol, "x" * 21) as speaking:
            assert await speaking.hear() == End("text_too_long")
        await service.until_free()


@every
async def test_contract_unready_server_answers_503(protocol: Protocol) -> None:
    async with served(hold_s=0.0) as service:
        service.codec.is_ready = False
        async with turn(service, protocol, TEXT) as speaking:
            assert await speaking.hear() == End("not_ready")
            if protocol is not WYOMING:
                assert speaking.status == 503
                assert speaking.headers["retry-after"] == "1"


@every
async def test_contract_engine_failure_is_reported(protocol: Protocol) -> None:
    async with served() as service:
        async with turn(service, protocol, "This will !fail now.") as speaking:
            assert (await speaking.rest())[1] == End("engine_failed")
        await service.until_free()
        service.codec.fail_with = BackendError(ErrorCode.CODEC_FAILED, "The codec failed.")
        async with turn(service, protocol, TEXT) as speaking:
            assert (await speaking.rest())[1] == End("codec_failed")
        await service.until_free()


@every_socket
@pytest.mark.parametrize("at", range(5))
async def test_contract_invalid_message_is_answered_with_error(
    protocol: SocketProtocol, at: int
) -> None:
    if at >= len(protocol.nonsense):
        pytest.skip("has fewer kinds of nonsense")
    async with served(**EXACT) as service, service.socket(protocol.address) as socket:
        for message in protocol.opening:
            socket.send(message)
        socket.send(protocol.nonsense[at])
        speaking = SocketTurn(protocol, socket)
        end = await speaking.hear()
        assert isinstance(end, End)
        assert end.code in ("invalid_json", "invalid_message", "unknown_message")
        if protocol.survives:
            speaking.speak(TEXT)
            assert await speaking.rest() == (s16(service, TEXT), End())
        else:
            assert (await speaking.hear()) in (End("closed 1008"), End("closed 1003"))
        assert service.runtime.admission.active == 0


@pytest.mark.parametrize(
    "protocol",
    [one for one in PROTOCOLS.values() if isinstance(one, HttpProtocol)],
    ids=[name for name, one in PROTOCOLS.items() if isinstance(one, HttpProtocol)],
)
@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'"x"', b"\xff", b"[" * 5000])
async def test_contract_invalid_body_is_refused(protocol: HttpProtocol, body: bytes) -> None:
    async with served() as service:
        headers = {"content-type": "application/json"}
        answer = await service.http.post(protocol.address, content=body, headers=headers)
        assert answer.status_code in (400, 422)
        assert "invalid_" in answer.text.lower()
        assert len(answer.headers["x-request-id"]) == 32


@every_socket
async def test_contract_socket_beyond_connection_limit_is_refused(protocol: SocketProtocol) -> None:
    async with served(max_connections=1) as service, service.socket(protocol.address):
        with pytest.raises(Refused) as refused:
            async with service.socket(protocol.address):
                pass
        assert refused.value.status in (429, 503)
        assert int(refused.value.headers["retry-after"]) >= 1


@every_socket
async def test_bug_ends_socket_with_internal_error_that_is_counted_and_logged(
    protocol: SocketProtocol, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(text: str) -> None:
        raise ZeroDivisionError

    run = Socket.run

    async def run_broken(self: Socket, dialect: Dialect) -> None:
        monkeypatch.setattr(dialect, "on_text", broken)
        await run(self, dialect)

    monkeypatch.setattr(Socket, "run", run_broken)
    async with served() as service, service.socket(protocol.address) as socket:
        socket.send({})
        ended: list[End] = []
        while (message := await socket.next()) is not None:
            if isinstance(heard := protocol.read(message), End):
                ended.append(heard)
        assert socket.close_code == 1011
        assert len(ended) == 1
        metrics = service.runtime.metrics.render().decode()
    assert 'tts_errors_total{code="internal"} 1.0' in metrics
    (told,) = [one for one in caplog.records if one.exc_info]
    assert isinstance(told.exc_info and told.exc_info[1], ZeroDivisionError)
    assert len(vars(told)["request_id"]) >= 32
