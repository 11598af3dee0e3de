"""The driver of one context: executes its session's commands and feeds back their results."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol

from service.auth.caller import ANYBODY, Caller
from service.contexts.options import SpeechPlan
from service.runtime import Runtime
from service.timers import align_deadline
from service.tracing import ContextTrace
from service.voices.cloning import Prepare
from streaming import events
from streaming.errors import BackendError, ErrorCode, RequestError, TalkwireError, internal_error
from streaming.ports import Arrival, Reference, RowDemand, SpeechRequest
from streaming.session import State
from streaming.word_timing import WordTiming

log = logging.getLogger(__name__)


class TalkerRequests:
    """The talker requests of one context: ``template`` with the text of each utterance.

    Their results are posted to ``post``; errors are raised. They wait for ``prepare``'s references.
    """

    def __init__(
        self,
        runtime: Runtime,
        template: SpeechRequest,
        post: Callable[[events.Event], None],
        prepare: Prepare | None,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._runtime, self._template, self._post = runtime, template, post
        self._preparing = None if prepare is None else tasks.create_task(self._prepare(prepare))
        self._demand: RowDemand | None = None
        self._is_wanted, self._is_stopped = asyncio.Event(), False
        self._row_s = 0.0  # recent time per row
        self._has_rows = False

    def take(self, demand: RowDemand) -> None:
        """Take the next rows with ``demand``."""
        self._demand = demand._replace(delay_s=align_deadline(demand.delay_s, time.monotonic()))

    def pause(self) -> None:
        """Take no more rows. The talker pauses, and its engine continues with other requests."""
        self._is_wanted.clear()

    def resume(self) -> None:
        """Take rows again, as they come."""
        self._demand = None
        self._is_wanted.set()

    def stop(self) -> None:
        """Release the context's references and conversation at its end."""
        self._is_stopped = True
        if self._template.conversation is not None:
            self._runtime.talker.forget(self._template.conversation)
        if self._preparing is not None:
            self._preparing.cancel()

    async def speak(self, utterance: int, text: str, delivery: str = "") -> None:
        """Request one utterance, and post its rows. Raises TalkwireError."""
        request = dataclasses.replace(
            self._template,
            request_id=f"{self._template.request_id}-{utterance}",
            text=text,
            delivery=delivery,
        )
        if self._preparing is not None:
            prepared = await asyncio.shield(self._preparing)  # later utterances may need it
            if isinstance(prepared, TalkwireError):
                raise prepared
            first, *others = prepared
            request = dataclasses.replace(request, reference=first, other_references=tuple(others))
            self._post(events.TalkerAsked(utterance))
        try:
            try:
                await self._take_rows(utterance, request)
            except BackendError as error:
                # retried only before the context's first rows, so that no speech breaks off
                if error.code is not ErrorCode.ENGINE_RESTARTING or self._has_rows:
                    raise
                if not await self._runtime.wait_for_restart():
                    raise
                await self._take_rows(utterance, request)
        except RequestError as error:
            if error.code is not ErrorCode.INVALID_TEXT:
                raise
            self._post(events.NothingToSay(utterance))

    async def _take_rows(self, utterance: int, request: SpeechRequest) -> None:
        """Post the rows of a request. Raises TalkwireError."""
        pace = self._runtime.engine_pace.estimator.open()
        self.resume()
        try:
            self._runtime.talker.check(request)
            async with aclosing(self._runtime.talker.generate(request)) as batches:
                while True:
                    demand, self._demand = self._demand, None
                    try:
                        batch = await batches.asend(demand)
                    except StopAsyncIteration:
                        message = "The talker stopped too soon."
                        raise BackendError(ErrorCode.ENGINE_FAILED, message) from None
                    self._has_rows = True
                    pace.observe_all(batch.came or (Arrival(len(batch.rows), time.monotonic()),))
                    self._row_s = pace.row_s or self._row_s
                    row_s = self._row_s if batch.came else 0.0
                    self._post(events.RowsReceived(utterance, batch, row_s))
                    if batch.finish is not None or self._is_stopped:
                        break
                    if not self._is_wanted.is_set():
                        pace.pause()
                        await self._is_wanted.wait()
        finally:
            pace.close()

    async def _prepare(self, prepare: Prepare) -> tuple[Reference, ...] | TalkwireError:
        """Return the references of ``prepare``, or its error."""
        try:
            return await prepare()
        except TalkwireError as error:
            return error
        except Exception:
            log.exception("cloning broke", extra={"request_id": self._template.request_id})
            return internal_error()


#: Resolution of timers. uvloop counts whole milliseconds, and rounds: without one more, a timer
#: would fire too soon, and repeatedly until it is due.
_TIMER_STEP_S = 0.001
#: The longest pause between two texts of a client that is still writing.
_WRITING_S = 1.0


class ContextSink(Protocol):
    """Takes a session's outputs. Called on the event loop; must not block. The last call is
    ``on_cancelled`` or ``on_done``.
    """

    def on_audio(self, audio: events.SendAudio, words: Sequence[WordTiming]) -> None:
        """Send samples and, if the context has word timings, the words that end in them."""

    def on_word_timings(self, timings: Sequence[WordTiming]) -> None:
        """Send word timings of earlier audio, which have become known only now."""

    def on_utterance_ended(self) -> None:
        """Note that an utterance has ended whose audio was all sent before that was known."""

    def on_flushed(self, flushed: events.Flushed) -> None:
        """Report the end of a flush."""

    def on_cancelled(self, cancelled: events.Cancelled) -> None:
        """Report that the context was cancelled."""

    def on_done(self, done: events.Done) -> None:
        """Report that the context is closed."""


#: Waits for room at the client. Returns the samples that it has taken so far, None without a wait.
Room = Callable[[], Awaitable[int | None]]


class ContextDriver:
    """Owns a Session and its tasks.

    ``plan.request`` is the template of the talker requests; its ``conversation``, if any, belongs
    to this context alone. ``plan.prepare`` starts at once. ``room`` is awaited before each window
    is decoded. Text counts against the limits of ``caller``.
    """

    def __init__(
        self,
        runtime: Runtime,
        plan: SpeechPlan,
        sink: ContextSink,
        tasks: asyncio.TaskGroup,
        room: Room | None = None,
        caller: Caller = ANYBODY,
    ) -> None:
        self._runtime, self._sink, self._tasks = runtime, sink, tasks
        self._session, self._request = plan.session, plan.request
        self._room, self.caller = room, caller
        self._working: set[asyncio.Task[None]] = set()
        self._speaking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.touched_at = time.monotonic()
        self._text_at = -math.inf
        #: Time since which there has been nothing to speak; None while there is.
        self._resting_since: float | None = self.touched_at
        runtime.open_contexts.add(self)
        self._trace: ContextTrace | None = None
        if runtime.tracing is not None:
            request_id = plan.request.request_id
            self._trace = runtime.tracing.open(plan.protocol, request_id, self.touched_at)
        self._talker = TalkerRequests(runtime, plan.request, self.post, plan.prepare, tasks)
        plan.session.hold()
        runtime.setup_turns.put(partial(self.post, events.HoldReleased()))

    @property
    def is_closed(self) -> bool:
        """Whether the session is closed."""
        return self._session.state is State.CLOSED

    @property
    def is_idle(self) -> bool:
        """Whether the context is closed or only waits for its client."""
        return self.is_closed or self._session.is_idle

    @property
    def has_pending_text(self) -> bool:
        """Whether only text without the end of its sentence is waiting."""
        return self._session.is_idle and not self._session.is_settled

    def is_settled(self, now: float) -> bool:
        """Whether a drain need not wait for this context: all text has been spoken, and none has
        come recently.
        """
        is_quiet = self._session.is_settled and now - self._text_at >= _WRITING_S
        return self.is_closed or is_quiet

    def idle_s(self, now: float) -> float:
        """Return the seconds since the last event; 0 while there is work to do."""
        return now - self.touched_at if self.is_idle else 0.0

    def resting_s(self, now: float) -> float:
        """Return for how many seconds there has been nothing to speak; 0 while there is. Unlike
        ``idle_s``, messages that lead to no speech do not reset it.
        """
        return 0.0 if self._resting_since is None else now - self._resting_since

    def post(self, event: events.Event) -> None:
        """Handle an event. Raises RequestError (wrong state), CapacityError (limits of text)."""
        now = self.touched_at = time.monotonic()
        if isinstance(event, events.TextAppended):
            commands = self._take_text(event, now)
        else:
            commands = self._session.handle(event, now)
        if not self.is_idle:
            self._resting_since = None
        elif self._resting_since is None:
            self._resting_since = now
        self._carry_out_all(commands)
        if self._trace is not None:
            self._trace.note(event, commands, now, time.monotonic())

    def cancelled(self, asked: events.CancelAsked, done: events.Done) -> events.Cancelled:
        """Return the answer to a cancel after ``done``, while audio is still in the encoder."""
        return self._session.cancelled(asked, done.report, time.monotonic())

    def _take_text(self, event: events.TextAppended, now: float) -> list[events.Command]:
        """Count text against its caller's limits, unless the session refuses or ignores it."""
        if self.is_closed:
            return self._session.handle(event, now)
        if event.text:
            self._text_at = now
        accounts, caller = self._runtime.accounts, self.caller
        accounts.take_text(caller, len(event.text), now)
        try:
            return self._session.handle(event, now)
        except TalkwireError:
            accounts.give_text_back(caller, len(event.text))
            raise

    def _carry_out_all(self, commands: Sequence[events.Command]) -> None:
        """Execute commands in order. Words are sent with the audio before them."""
        audio: events.SendAudio | None = None
        words: list[WordTiming] = []
        for command in commands:
            if audio is not None:
                if isinstance(command, events.WordsSent):
                    words += command.timings
                    continue
                self._sink.on_audio(audio, words)
                audio, words = None, []
            if isinstance(command, events.SendAudio):
                audio = command
            else:
                self._carry_out(command)
        if audio is not None:
            self._sink.on_audio(audio, words)

    def _carry_out(self, command: events.Command) -> None:
        match command:
            case events.StartTalker(utterance, text, delivery=delivery):
                self._speaking = self._work(partial(self._talker.speak, utterance, text, delivery))
            case events.StopTalker():
                if self._speaking is not None:
                    self._speaking.cancel()
            case events.TakeRows(demand=demand):
                self._talker.take(demand)
            case events.PauseTalker():
                self._talker.pause()
            case events.ResumeTalker():
                self._talker.resume()
            case events.Decode():
                self._work(partial(self._decode, command))
            case events.SetTimer(at):
                self._set_timer(at)
            case events.StopWork():
                if self._timer is not None:
                    self._timer.cancel()
                # The task that reports the end must finish.
                for task in self._working - {asyncio.current_task()}:
                    task.cancel()
                self._talker.stop()
            case events.WordsSent(timings):
                self._sink.on_word_timings(timings)
            case events.UtteranceEnded():
                self._sink.on_utterance_ended()
            case events.Flushed():
                self._sink.on_flushed(command)
            case events.Cancelled():
                self._runtime.open_contexts.discard(self)
                self._sink.on_cancelled(command)
            case events.Done():
                self._runtime.open_contexts.discard(self)
                self._sink.on_done(command)

    def _set_timer(self, at: float) -> None:
        """Set the timer. Most events set the same time again, which costs nothing."""
        if self._timer is not None:
            if abs(at - self._timer_at) < _TIMER_STEP_S:
                return
            self._timer.cancel()
        self._timer_at = at
        delay_s = _TIMER_STEP_S * max(0, math.ceil((at - time.monotonic()) / _TIMER_STEP_S) + 1)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.post(events.TimerFired())

    def _work(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = self._tasks.create_task(self._guarded(work))
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return task

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work; an error fails the context."""
        try:
            await work()
        except TalkwireError as error:
            self.post(events.Failed(error))
        except Exception:
            log.exception("a context broke", extra={"request_id": self._request.request_id})
            self.post(events.Failed(internal_error()))

    async def _decode(self, command: events.Decode) -> None:
        """Decode a window when there is room. A client that made us wait has played at most what
        it has taken, and its slowness does not make its windows more urgent than others'.
        """
        deadline = command.deadline
        if self._room is not None and (taken := await self._room()) is not None:
            self.post(events.PlaybackReported(taken, at_most=True))
            deadline = max(deadline, time.monotonic())
        samples, stats = await self._runtime.codec.decode(
            command.window, deadline, self._request.request_id
        )
        self._runtime.on_decoded(stats)
        self.post(events.AudioDecoded(command.utterance, samples, stats))
