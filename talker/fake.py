"""A talker without a model, for tests and load tests: deterministic rows at a chosen pace."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator

import numpy as np

from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.ports import SpeechRequest, TalkerRows
from streaming.spec import Codes

_FAILED = "The speech engine could not finish this text."


class FakeTalker:
    """Implements ``streaming.ports.TalkerEngine``.

    An utterance has ``frames_per_character`` frames per character of text, random codes that
    follow from text and seed alone, and then the end ramp of a real talker. ``row_s`` is the
    pace; 0 makes rows as fast as they are taken. ``fail_after`` rows of a request whose text
    contains ``"!fail"``, the engine "fails". ``outstanding`` counts requests in flight,
    ``rows_made`` the rows that were taken. Like the real one it pauses when nobody takes
    ``hold_rows`` rows.
    """

    def __init__(
        self,
        *,
        num_codebooks: int = 8,
        codebook_size: int = 1024,
        frames_per_character: float = 2.0,
        first_row_s: float = 0.0,
        row_s: float = 0.0,
        max_frames: int = 2048,
        fail_after: int = 5,
        capacity: int = 16,
        hold_rows: int = 64,
    ) -> None:
        self.num_codebooks, self.codebook_size = num_codebooks, codebook_size
        self._frames_per_character, self._max_frames = frames_per_character, max_frames
        self._first_row_s, self._row_s = first_row_s, row_s
        self._fail_after, self.capacity = fail_after, capacity
        self._hold_rows = hold_rows
        self.voices: tuple[str, ...] = ("default",)
        self.outstanding = self.restarts = self.rows_made = 0

    def frames_of(self, request: SpeechRequest) -> Codes:
        """The frames ``[T, K]`` int16 that ``generate`` will speak, still aligned."""
        count = max(1, round(len(request.text) * self._frames_per_character))
        seed = request.sampling.seed or 0
        digest = hashlib.blake2b(f"{seed}:{request.text}".encode(errors="replace"), digest_size=8)
        rng = np.random.default_rng(int.from_bytes(digest.digest(), "little"))
        codes = rng.integers(0, self.codebook_size, (count, self.num_codebooks), np.int16)
        return codes

    def rows_of(self, request: SpeechRequest) -> Codes:
        """The rows ``[T + K, K]`` int16 that ``generate`` yields if nothing cuts it off."""
        frames = self.frames_of(request)
        count, books = frames.shape
        boc, eoc = self.codebook_size, self.codebook_size + 1
        rows = np.full((count + books, books), eoc, np.int16)
        for book in range(books):
            rows[:book, book] = boc
            rows[book : book + count, book] = frames[:, book]
        return rows

    @property
    def is_ready(self) -> bool:
        """A fake is always ready."""
        return True

    @property
    def live(self) -> int:
        """A fake works on all that it has."""
        return self.outstanding

    async def start(self) -> None:
        """There is nothing to start."""

    async def stop(self) -> None:
        """There is nothing to stop."""

    def check_options(self, request: SpeechRequest) -> None:
        """Any sampling will do; the only voice is ``default``."""
        if request.voice not in self.voices:
            raise RequestError(
                ErrorCode.UNKNOWN_VOICE, "There is no voice of that name.", param="voice"
            )

    def check(self, request: SpeechRequest) -> None:
        """Refuses unknown voices, and text without a letter or digit, as real talkers do."""
        self.check_options(request)
        if not any(character.isalnum() for character in request.text):
            raise RequestError(
                ErrorCode.INVALID_TEXT, "The text has nothing that can be spoken.", param="text"
            )

    async def generate(self, request: SpeechRequest) -> AsyncGenerator[TalkerRows, None]:
        """Rows one by one at the pace; those that are late by then come together."""
        self.check(request)
        rows = self.rows_of(request)
        limit = min(self._max_frames, request.max_frames or self._max_frames)
        finish = "length" if limit < len(rows) else "stop"
        rows = rows[:limit]
        self.outstanding += 1
        try:
            sent, began = 0, time.monotonic()
            while sent < len(rows):
                due = began + self._first_row_s + sent * self._row_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                ready = self._ready(time.monotonic() - began, sent, len(rows))
                if ready - sent > self._hold_rows:  # nobody took them: it has paused
                    ready = sent + self._hold_rows
                    began = time.monotonic() - self._first_row_s - ready * self._row_s
                if "!fail" in request.text and ready > self._fail_after:
                    raise BackendError(ErrorCode.ENGINE_FAILED, _FAILED)
                last = ready == len(rows)
                self.rows_made += ready - sent
                yield TalkerRows(
                    rows[sent:ready], ("stop" if finish == "stop" else "length") if last else None
                )
                sent = ready
        finally:
            self.outstanding -= 1

    def _ready(self, elapsed_s: float, sent: int, total: int) -> int:
        if self._row_s <= 0:
            return sent + 1
        made = int((elapsed_s - self._first_row_s) / self._row_s) + 1
        return max(sent + 1, min(made, total))
