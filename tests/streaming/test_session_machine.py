"""A session under any possible order of events, by Hypothesis' state machine.

Everything behaves as badly as its contract allows: rows come one by one or in large batches,
windows are decoded late, timers fire at any time, clients report impossible positions, and
anything fails at any time. Every frame has the number of its utterance, and a model of the
listener computes how far playback has got.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.events import (
    AudioDecoded,
    AudioRead,
    Cancelled,
    CancelRequested,
    Command,
    Decode,
    Done,
    EndRequested,
    Event,
    Failed,
    Flushed,
    FlushRequested,
    MakeSilence,
    NothingToSay,
    PauseTalker,
    PlaybackReported,
    ResumeTalker,
    RowsReceived,
    SendAudio,
    SetTimer,
    StartTalker,
    StopTalker,
    StopWork,
    TakeRows,
    TextAppended,
    TimerFired,
    VoiceChanged,
)
from streaming.ports import TalkerRows
from streaming.session import Session, State
from streaming.spec import Samples
from tests.streaming.session_model import HOP, RATE, Listener, Speech, heard
from tests.streaming.session_world import SPEC
from tests.streaming.session_world import settings as session_settings
from text.markup.elements import Element, Pause, Substitute, Text
from text.markup.reader import MarkupReader
from text.markup.rendering import Rendering
from text.turns import TurnSettings

MOST_CHARS = 120
#: Frames that may be in hand beyond the credit: two of the largest chunks, the lookahead and one
#: chunk in the codec (``streaming.utterance_queue``).
SPARE_FRAMES = 3 * 50 + 3
MARKS = st.sampled_from(("[pause:300ms]", "<break/>", "<spell>a1</spell>", "<b>", "[sad]", "[pau"))
TEXT = st.text(alphabet="ab .!\n\u3002<|>1", min_size=0, max_size=40) | MARKS
#: Samples of pauses, which are zeros otherwise.
PAUSED = -1.0


def letters(text: str) -> int:
    """Number of characters that are no whitespace, which pieces of text may lack."""
    return len("".join(text.split()))


class SessionMachine(RuleBasedStateMachine):
    """One context. Rules are possible events; invariants must hold after each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.text, self.spoken = "", ""
        #: What is to be spoken of the text, and samples of pauses in it.
        self.reader, self.readable, self.pauses = MarkupReader(), "", 0
        #: Letters of the readable text before each change of the voice, and the voice.
        self.voices: list[tuple[int, str | None]] = [(0, None)]
        self.pausing: MakeSilence | None = None
        self.listener = Listener()
        self.talking: Speech | None = None
        self.decoding: Decode | None = None
        self.timer: float | None = None
        self.expected: list[Samples] = []
        self.audio: list[Samples] = []
        self.asked: list[str] = []
        self.flushed: list[str] = []
        self.last: Cancelled | Done | None = None
        self.said_last = self.stopped = self.cut_off = self.paused = False

    @initialize(
        mode=st.sampled_from(("chunked", "chunked", "whole")),
        lead_s=st.sampled_from((0.2, 1.0, 10.0)),
        frames=st.integers(1, 120),
        cut=st.booleans(),
        turn=st.sampled_from((0, 0, 15, 60)),
        text=st.sampled_from(("", "a b. ", "ab a! b ab. a", "a. b. ab. a b ab. ")),
    )
    def create(
        self, mode: str, lead_s: float, frames: int, cut: bool, turn: int, text: str
    ) -> None:
        config = session_settings(mode, lead_s, chars=MOST_CHARS)  # type: ignore[arg-type]
        config = replace(config, turns=TurnSettings(turn))
        self.session, self.mode, self.lead_s = Session(config), mode, lead_s
        self.frames, self.cut, self.slack_s = frames, cut, max(0.0, 2.0 - lead_s)
        self.append(text)

    # -- the client

    @rule(text=TEXT)
    def append(self, text: str) -> None:
        if self.asks(TextAppended(text), allowed=len(self.text) + len(text) <= MOST_CHARS):
            self.text += text
            self.expect(self.reader.push(text))

    def expect(self, elements: list[Element]) -> None:
        for element in Rendering().render(elements):
            if isinstance(element, Text | Substitute):
                self.readable += element.text
            elif isinstance(element, Pause):
                self.pauses += round(element.seconds * RATE)

    @precondition(lambda self: len(self.asked) < len(self.flushed) + 64)
    @rule()
    def flush(self) -> None:
        name = f"f{len(self.asked)}"
        self.asked.append(name)
        if self.asks(FlushRequested(name)):
            self.expect(self.reader.flush())
        else:
            self.asked.pop()

    @rule(voice=st.sampled_from((None, "emma", "adam")))
    def change_voice(self, voice: str | None) -> None:
        if self.asks(VoiceChanged(voice)):
            self.expect(self.reader.flush())
            self.voices.append((letters(self.readable), voice))

    @precondition(lambda self: self.text and self.now > 0.5)
    @rule()
    def end(self) -> None:
        if self.asks(EndRequested()):
            self.expect(self.reader.flush(is_last=True))

    @precondition(lambda self: self.now > 1.0)
    @rule(played=st.none() | st.integers(0, 1 << 21), unsent=st.integers(0, 5000))
    def cancel(self, played: int | None, unsent: int) -> None:
        self.post(CancelRequested(played, unsent))
        assert self.last is not None

    @rule(played=st.integers(0, 1 << 21), at_most=st.booleans())
    def report(self, played: int, at_most: bool) -> None:
        if self.last is None:
            self.listener.report(played, at_most=at_most)
        self.post(PlaybackReported(played, at_most))

    @rule(part=st.floats(0, 1.5))
    def read(self, part: float) -> None:
        samples = int(self.listener.sent * part)
        if self.last is None:
            self.listener.take(samples)
        self.post(AudioRead(samples))

    # -- the engines and the clock

    @precondition(lambda self: self.talking is not None and not self.paused)
    @rule(count=st.integers(1, 40))
    def rows_come(self, count: int) -> None:
        assert self.talking is not None
        talking, batch = self.talking, self.talking.more(count)
        if batch.finish is not None:
            self.talking = None
            self.cut_off |= talking.cut
        self.post(RowsReceived(talking.utterance, batch, 0.005))

    @precondition(lambda self: self.decoding is not None)
    @rule()
    def samples_come(self) -> None:
        assert self.decoding is not None
        decode, self.decoding = self.decoding, None
        samples = decode.window.trim(heard(decode.window.codes))
        self.post(AudioDecoded(decode.utterance, samples))

    @precondition(lambda self: self.pausing is not None)
    @rule()
    def silence_comes(self) -> None:
        assert self.pausing is not None
        pause, self.pausing = self.pausing, None
        self.post(AudioDecoded(pause.utterance, np.full(pause.samples, PAUSED, np.float32)))

    @precondition(lambda self: self.talking is not None and not self.talking.given)
    @rule()
    def nothing_to_say(self) -> None:
        assert self.talking is not None
        talking, self.talking = self.talking, None
        self.expected[talking.utterance] = np.zeros(0, np.float32)
        self.post(NothingToSay(talking.utterance))

    @rule(utterance=st.integers(0, 20))
    def something_late_comes(self, utterance: int) -> None:
        """Results for an utterance that is not in progress must change nothing."""
        if self.talking is None or self.talking.utterance != utterance:
            self.post(
                RowsReceived(utterance, TalkerRows(np.zeros((1, SPEC.num_codebooks), np.int16)))
            )
            self.post(NothingToSay(utterance))
        if self.decoding is None or self.decoding.utterance != utterance:
            self.post(AudioDecoded(utterance, np.ones(HOP, np.float32)))

    @precondition(lambda self: self.now > 2.0)
    @rule()
    def something_breaks(self) -> None:
        self.post(Failed(BackendError(ErrorCode.ENGINE_FAILED, "It broke.")))
        assert self.last is not None

    @rule(seconds=st.floats(0.001, 3.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.listener.wait(seconds)

    @precondition(lambda self: self.timer is not None)
    @rule()
    def timer_rings(self) -> None:
        if self.timer is not None:
            self.wait(max(0.0, self.timer - self.now))
            self.timer = None
        self.post(TimerFired())

    # -- the session's commands

    def asks(self, event: Event, *, allowed: bool = True) -> bool:
        """Post a request of the client; return whether it was accepted."""
        state = self.session.state
        if state is State.CLOSED or (allowed and state is State.OPEN):
            self.post(event)
            return state is State.OPEN
        with pytest.raises(RequestError) as refused:
            self.post(event)
        assert self.session.state is state
        code = ErrorCode.TEXT_TOO_LONG if state is State.OPEN else ErrorCode.CONTEXT_CLOSED
        assert refused.value.code is code
        return False

    def post(self, event: Event) -> None:
        over = self.last
        commands = self.session.handle(event, self.now)
        assert np.isfinite(self.session.talker_deadline), "the talker cannot put it in order"
        assert over is None or commands == [], "a word after the last one"
        for command in commands:
            self.obey(command)

    def obey(self, command: Command) -> None:
        assert self.last is None, "a word after the last one"
        match command:
            case StartTalker(utterance, text):
                assert self.talking is None or self.talking.left <= 1, "two utterances at once"
                assert utterance == len(self.expected)
                before, after = letters(self.spoken), letters(self.spoken + text)
                (*_, voice) = (voice for at, voice in self.voices if at <= before)
                assert command.voice == voice
                assert not any(before < at < after for at, _ in self.voices), "two voices in one"
                self.paused = False
                self.talking = Speech(text, utterance, self.frames, cut=self.cut)
                self.expected.append(heard(self.talking.frames.T))
                self.spoken += text
            case StopTalker(utterance):
                assert self.talking is not None
                assert (self.talking.utterance, self.talking.given) == (utterance, 0)
                self.spoken = self.spoken.removesuffix(self.talking.text)
                self.talking = None
                self.expected.pop()
            case TakeRows(utterance, demand):
                assert not self.paused
                assert self.talking is None or utterance == self.talking.utterance
                assert 0 <= demand.delay_s <= 0.4
            case PauseTalker():
                self.paused = True
            case ResumeTalker():
                assert self.paused
                self.paused = False
            case Decode():
                assert self.decoding is self.pausing is None, "two windows at the codec"
                assert self.listener.lead_s(self.slack_s) < self.lead_s + 1e-3, "over the credit"
                self.decoding = command
            case MakeSilence():
                assert self.decoding is self.pausing is None, "a pause beside a window"
                assert self.listener.lead_s(self.slack_s) < self.lead_s + 1e-3, "over the credit"
                assert 0 < command.samples <= RATE
                self.pausing = command
            case SendAudio():
                self.hear(command)
            case SetTimer(at):
                assert at >= self.now
                self.timer = at
            case StopWork():
                self.stopped, self.talking, self.decoding, self.timer = True, None, None, None
                self.pausing, self.paused = None, False
            case Flushed(flush_id):
                self.flushed.append(flush_id)
            case Cancelled() | Done():
                assert self.stopped, "work was left behind"
                self.last = command
                self.is_well_told(command)

    def hear(self, audio: SendAudio) -> None:
        assert not self.said_last, "audio after what was said to be the last"
        assert audio.sample_offset == self.listener.sent, "a gap in the offsets"
        assert audio.is_first is (self.listener.sent == 0)
        assert len(audio.samples)
        self.said_last = audio.is_last
        self.audio.append(audio.samples)
        self.listener.sent += len(audio.samples)

    def is_well_told(self, last: Cancelled | Done) -> None:
        assert last.report.generated_s * RATE >= self.listener.sent - 1
        if isinstance(last, Cancelled):
            assert last.text_spoken + last.text_remaining == self.text
            assert 0 <= last.played_s <= last.sent_s + 1e-9
            assert last.sent_s * RATE <= self.listener.sent + 1e-6
        elif last.error is None:
            assert self.listener.sent
            assert last.reason == ("length" if self.cut_off else "complete")
            assert "".join(self.spoken.split()) == "".join(self.readable.split())
            assert self.flushed == self.asked
            assert sum(map(len, self.audio)) == sum(map(len, self.expected)) + self.pauses

    @invariant()
    def every_sample_is_heard_once_and_in_order(self) -> None:
        if self.audio:
            sent = np.concatenate(self.audio)
            sent = sent[sent != PAUSED]
            whole = np.concatenate([*self.expected, np.zeros(0, np.float32)])
            assert np.array_equal(sent, whole[: len(sent)])

    @invariant()
    def flushes_are_told_in_order(self) -> None:
        assert self.flushed == self.asked[: len(self.flushed)]

    @invariant()
    def what_is_in_hand_is_bounded(self) -> None:
        """Credit limits the rows too, except for a batch of 40 that may have been under way."""
        if hasattr(self, "session") and self.last is None and self.mode == "chunked":
            made = self.session._queue.generated_samples - self.listener.sent
            credit_s = max(0.0, self.lead_s - self.listener.lead_s(self.slack_s))
            bound = (SPARE_FRAMES + 40) * SPEC.frame_s + max(credit_s, self.lead_s)
            assert made / RATE <= bound

    def teardown(self) -> None:
        """Without its client, the context ends by itself and leaves no work behind."""
        if not hasattr(self, "session"):
            return
        if self.session.state is State.OPEN and self.asks(EndRequested()):
            self.expect(self.reader.flush(is_last=True))
        for _ in range(20_000):
            if self.last is not None:
                break
            if self.listener.read is not None:
                self.read(1.0)
            if self.decoding is not None:
                self.samples_come()
            elif self.pausing is not None:
                self.silence_comes()
            elif self.talking is not None and not self.paused:
                self.rows_come(7)
            else:
                assert self.timer is not None, "it waits for nothing"
                self.timer_rings()
            self.every_sample_is_heard_once_and_in_order()
        assert self.last is not None, "it never ends"
        assert self.session.state is State.CLOSED
        assert (self.talking, self.decoding, self.timer) == (None, None, None)
        assert self.pausing is None
        self.post(TimerFired())


FEW = settings(
    max_examples=60,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_session_invariants_hold_for_any_order_of_events() -> None:
    run_state_machine_as_test(SessionMachine, settings=FEW)


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_session_invariants_hold_for_many_orders_of_events() -> None:
    many = settings(FEW, max_examples=5000, stateful_step_count=80, derandomize=False)
    run_state_machine_as_test(SessionMachine, settings=many)
