"""The driver of one context: executes its session's commands and feeds back their results."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import numpy as np

from service.audio.filters import TimeStretch
from service.auth.caller import ANYBODY, Caller
from service.contexts.options import SpeechPlan
from service.contexts.talker_requests import TalkerRequests
from service.runtime import Runtime
from service.tracing import ContextTrace
from streaming import events
from streaming.errors import TalkwireError, internal_error
from streaming.session import State
from streaming.spec import Samples

log = logging.getLogger(__name__)
#: Resolution of timers. uvloop counts whole milliseconds, and rounds: without one more, a timer
#: would fire too soon, and repeatedly until it is due.
_TIMER_STEP_S = 0.001
#: The longest pause between two texts of a client that is still writing.
_WRITING_S = 1.0


#: Takes a session's outputs on the event loop, without blocking.
Emit = Callable[[events.OutputCommand], None]
#: Waits for room at the client. Returns the samples that it has taken so far, None without a wait.
Room = Callable[[], Awaitable[int | None]]


class ContextDriver:
    """Owns a Session and its tasks.

    ``plan.request`` is the template of the talker requests; its ``conversation``, if any, belongs
    to this context alone. ``plan.options.prepare`` starts at once. ``emit`` gets the outputs.
    ``room`` is awaited before each window is decoded and each part of a pause is made. Text counts
    against the limits of ``caller``.
    """

    def __init__(
        self,
        runtime: Runtime,
        plan: SpeechPlan,
        emit: Emit,
        tasks: asyncio.TaskGroup,
        room: Room | None = None,
        caller: Caller = ANYBODY,
    ) -> None:
        self._runtime = runtime
        self._emit = emit
        self._tasks = tasks
        self._session = plan.session
        #: Names the context in logs.
        self._request_id = plan.request.request_id
        #: Whether the client chose the size of its chunks.
        self._chooses_chunks = plan.own_chunk_frames is not None
        #: Waits for room before audio is made.
        self._room = room
        #: The client, against whose limits text counts.
        self.caller = caller
        #: Tasks of the talker and the codec.
        self._working: set[asyncio.Task[None]] = set()
        #: The task that requests the talker's current utterance.
        self._speaking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: When the timer fires.
        self._timer_at = 0.0
        #: Stretches the utterance that is being sent, if its text sets a speed.
        self._stretch: TimeStretch | None = None
        #: Time of the last event.
        self.touched_at = time.monotonic()
        #: Time of the last text.
        self._text_at = -math.inf
        #: Time since which there has been nothing to speak; None while there is.
        self._resting_since: float | None = self.touched_at
        runtime.lifecycle.open_contexts.add(self)
        #: The context's spans, if traces are on.
        self._trace: ContextTrace | None = None
        if runtime.tracing is not None:
            self._trace = runtime.tracing.open(plan.protocol, self._request_id, self.touched_at)
        request = plan.request
        if not plan.options.buffered:
            request = replace(request, deadline=lambda: plan.session.talker_deadline)
        self._talker = TalkerRequests(runtime, request, self.post, plan.options.prepare, tasks)
        plan.session.hold()
        #: Withdraws the turn in which the session may start.
        self._withdraw_setup = runtime.setup_turns.put(partial(self.post, events.HoldReleased()))

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
        for command in commands:
            self._execute(command)
        if self._trace is not None:
            self._trace.note(event, commands, now, time.monotonic())

    def cancelled(self, request: events.CancelRequested, done: events.Done) -> events.Cancelled:
        """Return the answer to a cancel after ``done``, while audio is still in the encoder."""
        return self._session.cancelled(request, done.report, time.monotonic())

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

    def _leave(self) -> None:
        """Forget a context that is over. Its setup may still wait, behind others' setups."""
        self._runtime.lifecycle.open_contexts.discard(self)
        self._withdraw_setup()

    def _execute(self, command: events.Command) -> None:
        match command:  # the most frequent first
            case events.TakeRows(demand=demand):
                self._talker.take(demand)
            case events.SetTimer(at):
                self._set_timer(at)
            case events.Decode():
                self._work(partial(self._decode, command))
            case events.StartTalker(utterance, text, delivery=delivery, voice=voice):
                arriving = self._talker.begin(text, is_open=command.is_open)
                speak = partial(self._talker.speak, utterance, text, delivery, voice, arriving)
                self._speaking = self._work(speak)
            case events.AppendText(text=text, is_last=is_last):
                self._talker.append(text, is_last=is_last)
            case events.StopTalker():
                if self._speaking is not None:
                    self._speaking.cancel()
            case events.EndSilence(is_running=is_running):
                self._runtime.metrics.ended_by_silence.inc()
                if is_running and self._speaking is not None:
                    self._speaking.cancel()
            case events.PauseTalker():
                self._talker.pause()
            case events.ResumeTalker():
                self._talker.resume()
            case events.MakeSilence():
                self._work(partial(self._make_silence, command))
            case events.StopWork():
                if self._timer is not None:
                    self._timer.cancel()
                # The task that reports the end must finish.
                for task in self._working - {asyncio.current_task()}:
                    task.cancel()
                self._talker.stop()
            case events.Cancelled() | events.Done():
                self._leave()
                self._emit(command)
            case (
                events.SendAudio()
                | events.WordsSent()
                | events.UtteranceEnded()
                | events.Flushed()
                | events.Warned()
            ):
                self._emit(command)

    def _set_timer(self, at: float) -> None:
        """Set the timer. Most events set the same time again, which costs nothing."""
        if self._timer is not None:
            if abs(at - self._timer_at) < _TIMER_STEP_S:
                return
            self._timer.cancel()
        self._timer_at = at
        delay_s = _TIMER_STEP_S * max(0, math.ceil((at - time.monotonic()) / _TIMER_STEP_S) + 1)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def _fire(self) -> None:
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
            log.exception("a context broke", extra={"request_id": self._request_id})
            self.post(events.Failed(internal_error()))

    async def _decode(self, command: events.Decode) -> None:
        """Decode a window when there is room. If that waited for the client, its playback position
        is at most what it has received, and the window's deadline is not before now: a slow client
        is not more urgent than others.
        """
        deadline = command.deadline
        if await self._await_room():
            deadline = max(deadline, time.monotonic())
        samples, stats = await self._runtime.engines.codec.decode(
            command.window, deadline, self._request_id
        )
        if not self._chooses_chunks:  # windows of another size say nothing about other streams
            self._runtime.pace.on_decoded(stats)
        metrics = self._runtime.metrics
        metrics.codec_queue.observe(stats.queue_s)
        metrics.codec_decode.observe(stats.decode_s)
        metrics.codec_batch.observe(stats.batch)
        if command.speed == 1.0:
            self.post(events.AudioDecoded(command.utterance, samples, stats))
            return
        stretched = await self._stretched(command, samples)
        self.post(events.AudioDecoded(command.utterance, stretched, stats, decoded=samples))

    async def _stretched(self, command: events.Decode, samples: Samples) -> Samples:
        """Return what is final of an utterance's samples at its speed; all with the last ones."""
        if command.window.is_first:
            rate = self._runtime.engines.codec.spec.sample_rate
            self._stretch = TimeStretch(rate, command.speed)
        if (stretch := self._stretch) is None:
            raise RuntimeError("the utterance's first window was not stretched")
        final = await asyncio.to_thread(stretch.push, samples)
        if not command.window.is_last:
            return final
        return np.concatenate([final, await asyncio.to_thread(stretch.finish)])

    async def _make_silence(self, command: events.MakeSilence) -> None:
        """Make a part of a pause when there is room. A pause needs no codec."""
        await self._await_room()
        samples = np.zeros(command.samples, np.float32)
        self.post(events.AudioDecoded(command.utterance, samples))

    async def _await_room(self) -> bool:
        """Wait for room at the client. Returns whether there was a wait."""
        if self._room is None or (received := await self._room()) is None:
            return False
        self.post(events.PlaybackReported(received, at_most=True))
        return True
