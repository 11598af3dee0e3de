"""Drives one context: carries out what its Session decides, and feeds back what happens.

The Session decides synchronously; only the talker's rows, the codec's samples and the
timer are awaited, each in a task of the socket's group.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Protocol

from service.auth.caller import current_caller
from service.context_trace import ContextTrace
from service.runtime import Runtime
from service.talker_feed import Prepare, TalkerFeed, internal
from streaming.errors import TalkwireError
from streaming.events import (
    Broke,
    Cancelled,
    Command,
    Decode,
    Done,
    Event,
    Flushed,
    PlaybackReported,
    SamplesCame,
    SendAudio,
    SetTimer,
    StartTalker,
    StopWork,
    TextAppended,
    TimerRang,
    WordsSent,
)
from streaming.ports import SpeechRequest
from streaming.session import Session, State
from streaming.words import WordTiming

log = logging.getLogger(__name__)
#: Two times nearer than this are the same to a timer. uvloop counts in these, from the last whole
#: one, and rounds: without one more it would ring too soon, and again and again until it is time.
_TIMER_STEP_S = 0.001
#: Whoever writes a text pauses for less than this between two pieces of it.
_WRITING_S = 1.0


class ContextSink(Protocol):
    """The dialect's side of a context: how its news are worded for the client.

    Called on the event loop; must not block. After ``on_cancelled`` or ``on_done`` nothing
    more is called.
    """

    def on_audio(self, audio: SendAudio) -> None:
        """Samples to send."""

    def words(self, timings: Sequence[WordTiming]) -> None:
        """Words whose audio ``on_audio`` has been given, in order. Only where the template of
        the context's requests asks for them (``SpeechRequest.word_timings``).
        """

    def on_flushed(self, flushed: Flushed) -> None:
        """A flush is done."""

    def on_cancelled(self, cancelled: Cancelled) -> None:
        """The context was cancelled."""

    def on_done(self, done: Done) -> None:
        """The context is closed."""


#: Returns when the client has room for more audio: how many samples it has taken in all if
#: that had to be waited for, else None.
Room = Callable[[], Awaitable[int | None]]


class ContextDriver:
    """Owns a Session and the tasks that work for it.

    ``request`` is the template of the talker's requests; each utterance fills in its text. Its
    ``conversation``, if it has one, is this context's own and ends with it.
    ``room`` is waited for before each window is decoded; without it audio is taken always.
    ``prepare`` is begun at once, and the first utterance waits for it. ``protocol`` is what the
    trace calls the dialect.
    """

    def __init__(
        self,
        runtime: Runtime,
        session: Session,
        request: SpeechRequest,
        sink: ContextSink,
        tasks: asyncio.TaskGroup,
        room: Room | None = None,
        prepare: Prepare | None = None,
        protocol: str = "native",
    ) -> None:
        self._runtime, self._session, self._sink, self._tasks = runtime, session, sink, tasks
        self._request, self._room = request, room
        self._working: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.touched_at = time.monotonic()
        self._text_at = -math.inf
        self._trace: ContextTrace | None = None
        if runtime.tracing is not None:
            self._trace = runtime.tracing.open(protocol, request.request_id, self.touched_at)
        self._feed = TalkerFeed(runtime, session, request, self.post)
        if prepare is not None:
            self._feed.begin(prepare, tasks)

    @property
    def is_closed(self) -> bool:
        """Whether the context is over."""
        return self._session.state is State.CLOSED

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do but wait for the client."""
        return self.is_closed or self._session.is_idle

    def is_settled(self, now: float) -> bool:
        """Whether a server that ends need not wait for it: all text has been spoken, and none has
        come of late, as it does while somebody writes.
        """
        if self.is_closed:
            return True
        return self._session.is_settled and now - self._text_at >= _WRITING_S

    def idle_s(self, now: float) -> float:
        """Seconds since anything happened, or 0 while there is work to do."""
        return now - self.touched_at if self.is_idle else 0.0

    def post(self, event: Event) -> None:
        """Let something happen. Raises RequestError if the context's state forbids it, and
        CapacityError for text that its caller's limits forbid.
        """
        now = self.touched_at = time.monotonic()
        if isinstance(event, TextAppended):
            self._text_at = now
        commands = self._handled(event, now)
        for command in commands:
            self._carry_out(command)
        if self._trace is not None:
            self._trace.note(event, commands, now, time.monotonic())
        self._feed.stir()

    def _handled(self, event: Event, now: float) -> list[Command]:
        """What the session decides. Text counts against what its sender may have spoken."""
        if not isinstance(event, TextAppended):
            return self._session.handle(event, now)
        accounts, caller = self._runtime.accounts, current_caller()
        accounts.take_text(caller, len(event.text), now)
        try:
            return self._session.handle(event, now)
        except TalkwireError:
            accounts.give_text_back(caller, len(event.text))
            raise

    def _carry_out(self, command: Command) -> None:
        match command:
            case StartTalker(utterance, text):
                self._work(self._feed.talk(utterance, text))
            case Decode():
                self._work(self._decode(command))
            case SetTimer(at):
                self._set_timer(at)
            case StopWork():
                self._stop_work()
            case SendAudio():
                self._sink.on_audio(command)
            case WordsSent(timings):
                self._sink.words(timings)
            case Flushed():
                self._sink.on_flushed(command)
            case Cancelled():
                self._sink.on_cancelled(command)
            case Done():
                self._sink.on_done(command)

    def _set_timer(self, at: float) -> None:
        """Most events ask for the time that is set already: that costs nothing."""
        if self._timer is not None:
            if abs(at - self._timer_at) < _TIMER_STEP_S:
                return
            self._timer.cancel()
        self._timer_at = at
        delay_s = _TIMER_STEP_S * max(0, math.ceil((at - time.monotonic()) / _TIMER_STEP_S) + 1)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.post(TimerRang())

    def _stop_work(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # A task that is itself reporting the end finishes by itself.
        for task in self._working - {asyncio.current_task()}:
            task.cancel()
        self._feed.stop()

    def _work(self, work: Coroutine[None, None, None]) -> None:
        task = self._tasks.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _decode(self, command: Decode) -> None:
        try:
            deadline = await self._when_wanted(command.deadline)
            samples = await self._runtime.codec.decode(command.window, deadline)
            self.post(SamplesCame(command.utterance, samples))
        except TalkwireError as error:
            self.post(Broke(error))
        except Exception:
            log.exception("decoding broke", extra={"request_id": self._request.request_id})
            self.post(Broke(internal()))

    async def _when_wanted(self, deadline: float) -> float:
        """Wait for room. A client that made us wait has played no more than it has taken, and
        its windows are not more urgent than others' for its slowness.
        """
        if self._room is None or (taken := await self._room()) is None:
            return deadline
        self.post(PlaybackReported(taken, at_most=True))
        return max(deadline, time.monotonic())
