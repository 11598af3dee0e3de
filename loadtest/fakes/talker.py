"""A talker without a model, for tests and load tests: deterministic rows at a chosen pace."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from streaming.delay import RowLayout, apply_delay
from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.ports import Arrival, RowGenerator, SpeechRequest, TalkerRows, TalkerSpec
from streaming.protocol.field_errors import invalid_parameter, unsupported
from streaming.spec import Codes
from talker.request_builder import VoiceSource

#: Its ``segment_chars`` is typical of a checkpoint.
FAKE_SPEC = TalkerSpec(RowLayout.DELAYED, max_frames=2048, segment_chars=90)
#: The same with word timings.
TIMED_SPEC = replace(FAKE_SPEC, has_word_timings=True)
_FAILED = "The speech engine could not finish this text."


@dataclass
class _Conversation:
    """A conversation: the lines ``said``, one per utterance, and a lock, so that utterances take
    turns.
    """

    said: str = ""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(kw_only=True, eq=False)
class FakeTalker:
    """Implements ``streaming.ports.TalkerEngine``.

    An utterance has ``frames_per_character`` frames per character of text, random codes that depend
    only on text and seed, and then the end ramp of a real talker. ``row_s`` is the time per row,
    and each other stream adds ``stream_s`` to it; 0 makes rows as fast as they are taken. A request
    whose text contains ``"!fail"`` fails after ``fail_after`` rows. ``outstanding`` counts requests
    in flight, ``rows_made`` the rows that were taken. Like the real one it pauses a request with
    ``hold_rows`` waiting rows. It does what its ``spec`` says: with ``has_word_timings`` each frame
    speaks the character that it was generated for, and with ``has_continuity`` the codes of a
    conversation's later utterances depend on the earlier ones, which ``conversations`` remembers.
    Codes depend on instructions too, and on
    the scene with ``takes_scene``. ``watches_repetition``: accept
    repetition-aware sampling, without effect. Codes depend on all references.
    """

    num_codebooks: int = 8
    codebook_size: int = 1024
    frames_per_character: float = 2.0
    first_row_s: float = 0.0
    row_s: float = 0.0
    stream_s: float = 0.0
    fail_after: int = 5
    capacity: int = 16
    hold_rows: int = 64
    takes_scene: bool = False
    watches_repetition: bool = False
    spec: TalkerSpec = FAKE_SPEC

    def __post_init__(self) -> None:
        self._own_voices: tuple[str, ...] = ("default",)
        #: Source of further voices, which may change.
        self.source: VoiceSource | None = None
        self.outstanding = self.restarts = self.rows_made = 0
        self.failures = {"logits": 0, "code": 0}
        self.conversations: dict[str, _Conversation] = {}

    @property
    def voices(self) -> tuple[str, ...]:
        """Its own voices, and those of ``source``."""
        return (*self._own_voices, *(self.source.names() if self.source else ()))

    @voices.setter
    def voices(self, own: tuple[str, ...]) -> None:
        self._own_voices = own

    def _reference(self, request: SpeechRequest) -> bytes:
        """Bytes that distinguish a voice from the default one: its codes and its transcript."""
        if request.reference is not None:
            rows, text = request.reference.codes, request.reference.text
        elif self.source and (voice := self.source.get(request.voice)):
            rows, text = voice.frames, voice.transcript
        else:
            return b""
        identity = rows.tobytes() + (text or "").encode()
        for other in request.other_references:
            identity += b"\0" + other.codes.tobytes() + (other.text or "").encode()
        return identity

    def frames_of(self, request: SpeechRequest, before: str = "") -> Codes:
        """Return the frames ``[T, K]`` int16 that ``generate`` will speak, still aligned.
        ``before`` is the earlier text of the conversation.
        """
        count = max(1, round(len(request.text) * self.frames_per_character))
        seed = request.sampling.seed or 0
        options = (request.scene, request.language, request.instructions)
        led = request.delivery + "".join(filter(None, options))
        spoken = f"{seed}:{before}{led}{request.text}".encode(errors="replace")
        digest = hashlib.shake_128(spoken + self._reference(request))
        # as cheap as possible, since load tests attribute it to the gateway
        drawn = np.frombuffer(digest.digest(2 * count * self.num_codebooks), np.uint16)
        codes: Codes = (drawn % self.codebook_size).astype(np.int16)
        return codes.reshape(count, self.num_codebooks)

    def rows_of(self, request: SpeechRequest, before: str = "") -> Codes:
        """Return the rows ``[T + K, K]`` int16 that ``generate`` yields if not interrupted."""
        boc, eoc = self.codebook_size, self.codebook_size + 1
        rows = apply_delay(self.frames_of(request, before), boc, eoc)
        return np.concatenate([rows, np.full((1, self.num_codebooks), eoc, np.int16)])

    @property
    def is_ready(self) -> bool:
        """True: a fake is always ready."""
        return True

    @property
    def live(self) -> int:
        """All requests in flight: a fake works on each of them."""
        return self.outstanding

    async def start(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    def check_options(self, request: SpeechRequest) -> None:
        """Accept any sampling, and the voice ``default`` only."""
        if request.scene is not None and not self.takes_scene:
            raise unsupported("scene", "A fake takes no scene.")
        if request.instructions is not None and not self.spec.takes_instructions:
            raise unsupported("instructions", "A fake takes no instructions.")
        if request.instructions is None and self.spec.needs_instructions:
            raise invalid_parameter("instructions", "A fake's voice is made from instructions.")
        if request.sampling.ras_win_len is not None and not self.watches_repetition:
            raise unsupported("sampling.ras_win_len", "A fake does not watch repetition.")
        if self.spec.needs_reference and request.reference is None:
            raise invalid_parameter("voice", "A fake that needs a reference has no voice.")
        known = self.source is not None and self.source.get(request.voice) is not None
        if request.voice not in self.voices and not known:
            raise RequestError(
                ErrorCode.UNKNOWN_VOICE, "There is no voice of that name.", param="voice"
            )

    def check(self, request: SpeechRequest) -> None:
        """Refuse unknown voices, and text without a letter or digit, as real talkers do."""
        if request.reference is None:
            self.check_options(request)
        if not any(character.isalnum() for character in request.text):
            raise RequestError(
                ErrorCode.INVALID_TEXT, "The text has nothing that can be spoken.", param="text"
            )

    async def generate(self, request: SpeechRequest) -> RowGenerator:
        """Yield rows one by one at the pace; rows that are due already come together."""
        self.check(request)
        if request.conversation is None or not self.spec.has_continuity:
            talk = _Conversation()
        else:
            talk = self.conversations.setdefault(request.conversation, _Conversation())
        async with talk.turn, aclosing(self._speak(request, talk.said)) as pieces:
            async for piece in pieces:
                if piece.finish == "stop":
                    talk.said += request.text + "\n"
                demand = yield piece
                if demand is not None and demand.delay_s:
                    await asyncio.sleep(demand.delay_s)

    async def _speak(self, request: SpeechRequest, before: str) -> AsyncGenerator[TalkerRows, None]:
        rows = self.rows_of(request, before)
        limit = min(self.spec.max_frames, request.max_frames or self.spec.max_frames)
        finish: Literal["stop", "length"] = "length" if limit < len(rows) else "stop"
        rows = rows[:limit]
        self.outstanding += 1
        try:
            sent = 0
            due = time.monotonic() + self.first_row_s
            held: tuple[Arrival, ...] = ()
            while sent < len(rows):
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                row_s = self.row_s + self.stream_s * (self.outstanding - 1)
                late_s = max(0.0, time.monotonic() - due)  # the rows due in it come too
                ready = min(len(rows), sent + 1 + (int(late_s / row_s) if row_s > 0 else 0))
                came = tuple(Arrival(1, due + i * row_s) for i in range(ready - sent))
                came = came if row_s else ()
                came, held = held + came, ()
                due += (ready - sent) * row_s
                if ready - sent > self.hold_rows:  # they were not taken: it has paused
                    came = came[: len(came) - (ready - sent) + self.hold_rows]
                    ready = sent + self.hold_rows
                    due = time.monotonic() + row_s
                    held = (Arrival(0, time.monotonic()),)
                if "!fail" in request.text and ready > self.fail_after:
                    raise BackendError(ErrorCode.ENGINE_FAILED, _FAILED)
                last = ready == len(rows)
                self.rows_made += ready - sent
                yield TalkerRows(
                    rows[sent:ready],
                    finish if last else None,
                    self._spoken(request, sent, ready),
                    came,
                )
                sent = ready
        finally:
            self.outstanding -= 1

    def _spoken(
        self, request: SpeechRequest, start: int, end: int
    ) -> npt.NDArray[np.float32] | None:
        if not (self.spec.has_word_timings and request.word_timings):
            return None
        return np.arange(start, end, dtype=np.float32) / np.float32(self.frames_per_character)

    def forget(self, conversation: str) -> None:
        """See ``streaming.ports``."""
        self.conversations.pop(conversation, None)
