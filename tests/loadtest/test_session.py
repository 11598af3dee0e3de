"""Native sessions with servers that stall or send audio after a cancel, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from loadtest import bare_server, worker
from loadtest.figures import figures
from loadtest.plan import Plan
from loadtest.records import TurnRecord
from loadtest.report import Row, make_report, markdown
from loadtest.session import TurnSpeech, judge_unfinished
from loadtest.workload import Workload, session
from talkwire_client import protocol
from tests.loadtest.small_plan import carried_out

#: A second and a half of audio, in chunks of a tenth.
SPOKEN = TurnRecord(
    0, 0, 9, 0, 0, 0, "complete", opened_s=0.0, arrivals=[(i / 20, 2400) for i in range(15)]
)
WHOLE = Workload(turns=(1, 1), sentences=(1, 1), tokens_per_s=0, barge_in=0, think_s=0)


def speech(turn_limit_s: float) -> TurnSpeech:
    limited = Plan("", 1.0, 0.0, turn_limit_s=turn_limit_s)
    return TurnSpeech(limited, session(WHOLE, 1, 0)[0], msgspec.structs.replace(SPOKEN), 0.0)


async def test_session_without_usable_tls_is_counted_as_such(monkeypatch) -> None:
    async def speak_plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(speak_plain, "127.0.0.1", 0) as server:
        url = f"wss://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        plan = Plan(url, 0.5, 0.0, rate_per_s=10.0, max_sessions=1, workload=WHOLE)
        (record,) = await carried_out(plan, monkeypatch)
    assert (record.outcome, record.code) == ("failed", "SSLError")


async def test_turn_speech_progress_extends_timeout() -> None:
    turn = speech(60.0)

    def when() -> float:
        ends = turn._stall.when()
        assert ends is not None
        return ends

    async with asyncio.timeout(60.0) as turn._stall:
        first = when()
        await asyncio.sleep(0.01)
        turn._progress()
        assert when() > first
        turn._progress(ahead_s=100.0)
        far = when()
        turn._progress()
        assert when() == far > first + 90


async def test_turn_speech_progress_after_timeout_has_no_effect() -> None:
    turn = speech(0.01)

    async def stand_still() -> None:
        async with asyncio.timeout(0.01) as turn._stall:
            try:
                await asyncio.Event().wait()
            finally:
                turn._progress()

    with pytest.raises(TimeoutError):
        await stand_still()


@pytest.mark.parametrize(
    ("sentence_s", "arrivals", "outcome"),
    [(5.0, [], "failed"), (25.0, [], "unfinished"), (5.0, [(6.0, 100)], "unfinished")],
)
def test_judge_unfinished_fails_turn_silent_for_long(sentence_s, arrivals, outcome) -> None:
    record = TurnRecord(0, 0, 9, 4.0, sentence_s, 4.0, arrivals=arrivals, ended_s=30.0)
    judge_unfinished(record)
    assert record.outcome == outcome
    assert record.code == ("no_audio" if outcome == "failed" else None)


# -- sessions against modified replay servers


class Hung(bare_server.ReplaySession):
    """A server that opens every context and never sends audio."""

    async def _speak(self, context_id: str, handle: int) -> None:
        await asyncio.Event().wait()


class Late(bare_server.ReplaySession):
    """A server that sends more audio after the answer to a cancel, and then the metrics."""

    async def _on(self, message: protocol.ClientMessage | None) -> None:
        if not isinstance(message, protocol.ContextCancel):
            return await super()._on(message)
        if (task := self._speaking.pop(message.context_id, None)) is not None:
            await self._say(protocol.ContextCancelled(message.context_id, 0, 0, 0, "", ""))
            await asyncio.sleep(0.25)
            task.cancel()
            metrics = protocol.Metrics(message.context_id, None, None, None, 0.0, 0.25, 0.0)
            await self._say(metrics)


@contextlib.asynccontextmanager
async def listening(
    talk: type[bare_server.ReplaySession], spoken: TurnRecord = SPOKEN
) -> AsyncIterator[str]:
    choose: Callable[[str], bare_server.Chunks] = bare_server.chooser([spoken])

    async def answer(socket: ServerConnection) -> None:
        await talk(socket, choose).run()

    protocols = [Subprotocol(protocol.SUBPROTOCOL)]
    async with serve(answer, "127.0.0.1", 0, subprotocols=protocols, compression=None) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/"


async def test_native_session_fails_when_server_hangs(monkeypatch) -> None:
    monkeypatch.setattr("loadtest.session._SILENT_S", 0.0)
    async with listening(Hung) as url:
        plan = Plan(url, 0.3, 0.0, streams=3, workload=WHOLE, grace_s=0.5)
        records = await carried_out(plan, monkeypatch)
    assert [(r.outcome, r.code) for r in records] == [("failed", "no_audio")] * 3
    made = figures(plan, records, slo_ttfa_ms=500)
    said = markdown(make_report("test", [Row("3", plan, made)]))
    assert "`no_audio` 3" in said
    assert "| unfinished |" in said


async def test_native_session_records_audio_after_cancel(monkeypatch) -> None:
    # The barge-in comes within a quarter of a second. Audio is sent for another quarter, however
    # late either is: it would last for a minute.
    long = msgspec.structs.replace(SPOKEN, arrivals=[(i / 20, 2400) for i in range(1200)])
    cut = Workload(turns=(2, 2), texts=("Hi.",), tokens_per_s=0, barge_in=1.0, think_s=0)
    async with listening(Late, long) as url:
        plan = Plan(url, 20.0, 0.0, streams=4, workload=cut, report_every_s=0)
        records = await carried_out(plan, monkeypatch)
    assert [record.outcome for record in records] == ["cancelled"] * 8
    for record in records:
        assert record.cancelled_s is not None
        assert record.last_audio_s is not None
        assert record.rtf == 0.25
        assert record.ended_s < record.last_audio_s
    made = figures(plan, records, slo_ttfa_ms=500)
    assert made.cancel_last_byte.max is not None
    assert made.cancel_ack.max is not None
    assert made.cancel_last_byte.max > made.cancel_ack.max


async def test_native_session_text_and_audio_extend_stall_timeout(monkeypatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(TurnSpeech, "_progress", lambda self, ahead_s=0.0: told.append(ahead_s))
    paced = Workload(turns=(1, 1), texts=("Two words.",), tokens_per_s=200, barge_in=0)
    async with listening(bare_server.ReplaySession) as url:
        plan = Plan(url, 1.0, 0.0, streams=1, workload=paced, report_every_s=0)
        (record,) = await carried_out(plan, monkeypatch)
    assert record.outcome == "complete"
    assert len(told) == len(record.arrivals) + len(worker.scripts(plan, 0).__next__()[2][0].pieces)
