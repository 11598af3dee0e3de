"""One session, carried out: speaks to the service as an agent would, and writes down what came."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence

from clients.context import ClientContext
from clients.errors import ClientError, RefusedError, ServerError
from clients.native import NativeClient
from clients.report import LeadingSilence
from loadtest.patience import Patience, judge_unfinished
from loadtest.records import REFUSALS, Plan, TurnRecord
from loadtest.script import Turn
from streaming.playback import PlaybackClock
from streaming.wire import AudioOptions

Sink = Callable[[TurnRecord], None]
#: Not in the plan, which is written down with the figures; workers inherit the environment.
API_KEY = os.environ.get("TALKWIRE_API_KEY") or None
#: A cancelled context's metrics come after the answer: so often they are looked for, every so
#: many seconds; and so long is waited after them for audio that should not come.
_METRICS_LOOKS, _LOOK_S, _AFTER_S = 100, 0.01, 0.25


async def converse(
    plan: Plan, number: int, turns: Sequence[Turn], begin_s: float, zero_s: float, sink: Sink
) -> None:
    """Session ``number``, which was to begin at ``begin_s`` (after ``zero_s``, monotonic).

    Hands a record to ``sink`` for each turn that was due before the plan's end, also when it
    is itself cancelled. A turn that was refused or failed ends the session: its caller hangs up.
    """
    due_s = begin_s
    record = new_record(number, 0, turns[0], due_s, zero_s)
    try:
        opened = NativeClient.connect(plan.url, api_key=API_KEY, open_timeout_s=plan.turn_limit_s)
        # The group: what may still come of cancelled turns, while the next ones go on.
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
        if not record.ended_s:  # the socket did not open: no turn has told of it
            _conclude(record, error, zero_s)
            sink(record)
        if isinstance(error, asyncio.CancelledError):
            raise


def new_record(session: int, turn: int, script: Turn, due_s: float, zero_s: float) -> TurnRecord:
    """A turn that is due; nothing has happened yet."""
    return TurnRecord(
        session=session,
        turn=turn,
        characters=script.characters,
        intended_s=due_s,
        sentence_s=due_s + script.sentence_s,
        started_s=time.monotonic() - zero_s,
    )


def _conclude(record: TurnRecord, error: BaseException | None, zero_s: float) -> None:
    """Word what ended a turn."""
    record.ended_s = time.monotonic() - zero_s
    if isinstance(error, asyncio.CancelledError):
        judge_unfinished(record)
    elif error is None:
        record.outcome = "complete" if record.cancelled_s is None else "cancelled"
    elif isinstance(error, TimeoutError):
        record.outcome, record.code = "failed", "timeout"
    elif isinstance(error, ClientError):
        record.code = _code(error)
        # What is refused is refused before any sound; later the same code is a broken promise.
        refused = record.code in REFUSALS and not record.arrivals
        record.outcome = "refused" if refused else "failed"


def _code(error: ClientError) -> str:
    if isinstance(error, ServerError):
        return str(error.code)
    if isinstance(error, RefusedError):
        return f"http_{error.status}"
    return type(error).__name__


class _Speech:
    """One turn on an open socket. Times are the run's, in seconds from ``zero_s``."""

    def __init__(self, plan: Plan, turn: Turn, record: TurnRecord, zero_s: float) -> None:
        self._plan, self._turn, self._record, self._zero_s = plan, turn, record, zero_s
        self._playback = PlaybackClock(record.sample_rate)
        self._silence = LeadingSilence()
        self._barge_at: float | None = None
        self._cutting: asyncio.Task[None] | None = None
        self._context: ClientContext | None = None
        self._patience = Patience(plan.turn_limit_s)

    def _now(self) -> float:
        return time.monotonic() - self._zero_s

    def silent_s(self) -> float:
        """When the listener has heard the last of it: played to the end, or cut off."""
        end_s = max(self._playback.dry_at, self._record.intended_s)
        if self._barge_at is not None and self._barge_at < end_s:
            return max(self._barge_at, self._record.intended_s)
        return end_s

    async def run(self, client: NativeClient) -> None:
        """Speak, listen, perhaps barge in; the record says how it went. Raises only Cancelled."""
        record = self._record
        record.sample_rate = client.created.sample_rate
        self._playback = PlaybackClock(record.sample_rate)
        error: BaseException | None = None
        try:
            async with self._patience:
                await self._speak(client)
        except (ClientError, TimeoutError, asyncio.CancelledError) as caught:
            error = caught
            if isinstance(caught, asyncio.CancelledError):
                raise
        finally:
            record.silence = self._silence.samples
            _conclude(record, error, self._zero_s)

    def hand_over(self, settling: asyncio.TaskGroup, sink: Sink) -> None:
        """Give the record to ``sink``: at once, or when all has come that may after a cancel."""
        if self._record.outcome != "cancelled":
            sink(self._record)
            return

        def settled(task: asyncio.Task[None]) -> None:
            self._read_server()
            sink(self._record)

        settling.create_task(self._settle()).add_done_callback(settled)

    async def _settle(self) -> None:
        """Until the metrics are there (for a while at most), and a little longer."""
        for _ in range(_METRICS_LOOKS):
            if self._is_settled():
                break
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(_AFTER_S)

    def _is_settled(self) -> bool:
        return self._context is None or self._context.metrics is not None

    async def _speak(self, client: NativeClient) -> None:
        record = self._record
        options = client.context(
            context_id=record.context_id,
            audio=AudioOptions(sample_rate=record.sample_rate),
            max_lead_ms=self._plan.max_lead_ms,
        )
        async with options as context:
            self._context = context
            record.opened_s = self._now()
            helpers = [asyncio.create_task(self._feed(context))]
            if self._plan.report_every_s:
                helpers.append(asyncio.create_task(self._report(context)))
            try:
                await self._listen(context)
            finally:
                helpers += [self._cutting] if self._cutting else []
                for task in helpers:
                    task.cancel()
                await asyncio.wait(helpers)
                self._read_server()

    async def _listen(self, context: ClientContext) -> None:
        record = self._record
        async for chunk in context:
            self._patience.progress()
            at = chunk.arrived_s - self._zero_s
            if chunk.samples and not record.arrivals and self._turn.barge_in_s is not None:
                self._barge_at = at + self._turn.barge_in_s
                self._cutting = asyncio.create_task(self._barge_in(context, self._barge_at))
            if chunk.samples:
                record.arrivals.append((at, chunk.samples))
                self._silence.push(chunk.pcm)
                self._playback.on_sent(chunk.samples, at)
        if self._cutting is not None and record.cancel_s is not None:
            await self._cutting  # the answer is there; let it be written down
        if context.errors:
            raise context.errors[0]

    def _read_server(self) -> None:
        record, context = self._record, self._context
        if context is None:
            return
        if context.last_audio_s is not None:
            record.last_audio_s = context.last_audio_s - self._zero_s
        if context.metrics is not None:
            record.rtf = context.metrics.rtf
            record.underrun_ms = context.metrics.underrun_ms

    async def _feed(self, context: ClientContext) -> None:
        """The text, each piece when it is due: one that is late does not delay the next."""
        with contextlib.suppress(ClientError):  # the listener is told of it, too
            for piece in self._turn.pieces:
                wait_s = self._record.intended_s + piece.at_s - self._now()
                self._patience.progress(wait_s)  # what waits for its text does not stand still
                await asyncio.sleep(wait_s)
                if context.is_over or self._record.cancel_s is not None:
                    return
                await context.append(piece.text)
            await context.end()

    async def _report(self, context: ClientContext) -> None:
        """Playback reports while something plays."""
        with contextlib.suppress(ClientError):
            while not context.is_over and self._record.cancel_s is None:
                await asyncio.sleep(self._plan.report_every_s)
                played = self._playback.played_samples(self._now())
                if played and not context.is_over and self._record.cancel_s is None:
                    await context.report_played(played)

    async def _barge_in(self, context: ClientContext, at: float) -> None:
        await asyncio.sleep(at - self._now())
        if context.is_over:
            return
        played_ms = 1000 * self._playback.played_samples(self._now()) / self._record.sample_rate
        self._record.cancel_s = self._now()
        with contextlib.suppress(ClientError):
            if await context.cancel(played_ms) is not None:
                self._record.cancelled_s = self._now()
