"""A session over the native protocol: speaks as an agent would, and records the audio."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Sequence

from loadtest.plan import Plan
from loadtest.records import REFUSALS, TurnRecord
from loadtest.session import API_KEY, Sink, TurnSpeech, judge_unfinished, new_record
from loadtest.workload import Turn
from talkwire_client import Client, ClientError, PlaybackClock, RefusedError, ServerError, Speech

#: A cancelled context's metrics follow the answer: the number of checks for them, the seconds
#: between two checks, and the wait afterwards for audio that should not come.
_METRICS_LOOKS = 100
_LOOK_S = 0.01
_AFTER_S = 0.25


async def converse(
    plan: Plan, number: int, turns: Sequence[Turn], begin_s: float, zero_s: float, sink: Sink
) -> None:
    """Run session ``number``, which was to begin at ``begin_s`` after ``zero_s`` (monotonic).

    Passes a record to ``sink`` for each turn that was due before the plan's end, also when this is
    cancelled. A refused or failed turn ends the session, as if the caller hung up.
    """
    due_s = begin_s
    record = new_record(number, 0, turns[0], due_s, zero_s)
    try:
        opened = Client(plan.url, api_key=API_KEY, open_timeout_s=plan.turn_limit_s)
        # The group waits for messages of cancelled turns, while the next turns go on.
        async with opened as client, asyncio.TaskGroup() as settling:
            for index, turn in enumerate(turns):
                if index:
                    if due_s >= plan.duration_s:
                        return
                    await asyncio.sleep(due_s + zero_s - time.monotonic())
                    record = new_record(number, index, turn, due_s, zero_s)
                speech = _Speech(plan, turn, record, zero_s)
                try:
                    await speech.run(client)
                finally:
                    speech.hand_over(settling, sink)
                if record.outcome not in ("complete", "cancelled"):
                    return
                due_s = speech.silent_s() + turn.think_s
    except (ClientError, asyncio.CancelledError) as error:
        if not record.ended_s:  # the socket did not open, so no turn has recorded it
            _conclude(record, error, zero_s)
            sink(record)
        if isinstance(error, asyncio.CancelledError):
            raise


def _conclude(record: TurnRecord, error: BaseException | None, zero_s: float) -> None:
    """Record how a turn ended."""
    record.ended_s = time.monotonic() - zero_s
    if isinstance(error, asyncio.CancelledError):
        judge_unfinished(record)
    elif error is None:
        record.outcome = "complete" if record.cancelled_s is None else "cancelled"
    elif isinstance(error, TimeoutError):
        record.outcome, record.code = "failed", "timeout"
    elif isinstance(error, ClientError):
        record.code = _code(error)
        # Refusals come before any sound; afterwards the same code is a failure.
        refused = record.code in REFUSALS and not record.arrivals
        record.outcome = "refused" if refused else "failed"


def _code(error: ClientError) -> str:
    if isinstance(error, ServerError):
        return str(error.code)
    if isinstance(error, RefusedError):
        return f"http_{error.status}"
    if isinstance(error.__cause__, ssl.SSLError):  # a server answers, as openai_session tells too
        return "SSLError"
    return type(error).__name__


class _Speech(TurnSpeech):
    """One turn on an open socket."""

    _cutting: asyncio.Task[None] | None = None
    _speech: Speech | None = None

    async def run(self, client: Client) -> None:
        """Speak, listen, perhaps barge in, and record it. Raises only CancelledError."""
        record = self._record
        record.sample_rate = client.server.sample_rate
        self._playback = PlaybackClock(record.sample_rate)
        error: BaseException | None = None
        try:
            async with asyncio.timeout(self._plan.turn_limit_s) as self._stall:
                await self._speak(client)
        except (ClientError, TimeoutError, asyncio.CancelledError) as caught:
            error = caught
            if isinstance(caught, asyncio.CancelledError):
                raise
        finally:
            record.silence = self._silence.samples
            _conclude(record, error, self._zero_s)

    def hand_over(self, settling: asyncio.TaskGroup, sink: Sink) -> None:
        """Pass the record to ``sink``, after a cancel only once no more messages are expected."""
        if self._record.outcome != "cancelled":
            sink(self._record)
            return

        def settled(task: asyncio.Task[None]) -> None:
            self._read_server()
            sink(self._record)

        settling.create_task(self._settle()).add_done_callback(settled)

    async def _settle(self) -> None:
        """Wait until the metrics have arrived (for a limited time), and a little longer."""
        for _ in range(_METRICS_LOOKS):
            if self._speech is None or self._speech.metrics is not None:
                break
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(_AFTER_S)

    async def _speak(self, client: Client) -> None:
        record = self._record
        opened = client.speak(
            context_id=record.context_id,
            sample_rate=record.sample_rate,
            max_lead_ms=self._plan.max_lead_ms,
        )
        async with opened as speech:
            self._speech = speech
            record.opened_s = self._now()
            helpers = [asyncio.create_task(self._feed(speech))]
            if self._plan.report_every_s:
                helpers.append(asyncio.create_task(self._report(speech)))
            try:
                await self._listen(speech)
            finally:
                helpers += [self._cutting] if self._cutting else []
                for task in helpers:
                    task.cancel()
                await asyncio.wait(helpers)
                self._read_server()

    async def _listen(self, speech: Speech) -> None:
        record = self._record
        async for chunk in speech:
            self._progress()
            at = chunk.arrived_s - self._zero_s
            if chunk.samples and not record.arrivals and self._turn.barge_in_s is not None:
                self._barge_at = at + self._turn.barge_in_s
                self._cutting = asyncio.create_task(self._barge_in(speech, self._barge_at))
            if chunk.samples:
                record.arrivals.append((at, chunk.samples))
                self._silence.push(chunk.data)
                self._playback.on_audio(chunk.samples, at)
        if self._cutting is not None and record.cancel_s is not None:
            await self._cutting  # the answer has arrived: let it be recorded
        if speech.errors:
            raise speech.errors[0]

    def _read_server(self) -> None:
        record = self._record
        speech = self._speech
        if speech is None:
            return
        if speech.last_audio_s is not None:
            record.last_audio_s = speech.last_audio_s - self._zero_s
        if speech.metrics is not None:
            record.rtf = speech.metrics.rtf
            record.underrun_ms = speech.metrics.underrun_ms

    async def _feed(self, speech: Speech) -> None:
        """Send each piece of the text when it is due; a late one does not delay the next."""
        with contextlib.suppress(ClientError):  # the listener gets the error too
            for piece in self._turn.pieces:
                wait_s = self._record.intended_s + piece.at_s - self._now()
                self._progress(wait_s)  # waiting for text is no stall
                await asyncio.sleep(wait_s)
                if speech.is_over or self._record.cancel_s is not None:
                    return
                await speech.append(piece.text)
            await speech.end()

    async def _report(self, speech: Speech) -> None:
        """Send playback reports during playback."""
        with contextlib.suppress(ClientError):
            while not speech.is_over and self._record.cancel_s is None:
                await asyncio.sleep(self._plan.report_every_s)
                played = self._playback.played_samples(self._now())
                if played and not speech.is_over and self._record.cancel_s is None:
                    await speech.report_playback(played)

    async def _barge_in(self, speech: Speech, at: float) -> None:
        await asyncio.sleep(at - self._now())
        if speech.is_over:
            return
        played_ms = 1000 * self._playback.played_samples(self._now()) / self._record.sample_rate
        self._record.cancel_s = self._now()
        with contextlib.suppress(ClientError):
            if await speech.cancel(played_ms) is not None:
                self._record.cancelled_s = self._now()
