"""A model of a listener, and speech with numbered frames, for tests of the session."""

from __future__ import annotations

import numpy as np

from streaming.ports import TalkerRows
from streaming.spec import Codes, Samples
from tests.streaming.session_world import SPEC, rows_of

HOP, RATE = SPEC.hop_length, SPEC.sample_rate


class Listener:
    """A listener that plays audio in real time, as docs/reference/protocol.md describes."""

    def __init__(self) -> None:
        self.sent = self.reported = 0
        self.read: int | None = None
        self.played = 0.0

    def wait(self, seconds: float) -> None:
        self.played = min(self.sent, self.played + seconds * RATE)

    def report(self, samples: int, *, at_most: bool) -> None:
        if self.sent and not (at_most and round(self.played) <= samples):
            self.reported = max(self.reported, min(samples, self.sent))
            self.played = self.reported

    def take(self, samples: int) -> None:
        self.read = max(self.read or 0, min(samples, self.sent))

    def lead_s(self, slack_s: float) -> float:
        unread_s = 0.0 if self.read is None else (self.sent - self.read) / RATE - slack_s
        return max((self.sent - self.played) / RATE, unread_s)


class Speech:
    """The rows of one utterance. Each frame has the numbers of its utterance and of itself."""

    def __init__(self, text: str, utterance: int, frames: int, *, cut: bool) -> None:
        self.text, self.utterance = text, utterance
        own = np.full((frames, SPEC.num_codebooks), utterance % 1000, np.int16)
        own[:, 1] = np.arange(frames) % 1000
        #: If cut off, there is no end code and the frames of the last rows are never complete.
        self.rows = rows_of(own) if not cut else rows_of(own)[:frames]
        self.frames = own if not cut else own[: max(0, frames - SPEC.num_codebooks + 1)]
        self.cut, self.given = cut, 0

    @property
    def left(self) -> int:
        """Number of rows to come. The end is known one row before the last
        (``DelayReverter.ended``), so the next utterance may begin while one row is left.
        """
        return len(self.rows) - self.given

    def more(self, count: int) -> TalkerRows:
        rows = self.rows[self.given : self.given + count]
        self.given += len(rows)
        finish = None if self.given < len(self.rows) else "length" if self.cut else "stop"
        return TalkerRows(rows, finish)  # type: ignore[arg-type]


def heard(codes: Codes) -> Samples:
    """Decode ``[K, T]`` codes: each sample has the numbers of its utterance and its frame."""
    return np.repeat(codes[0] * 1000.0 + codes[1], HOP).astype(np.float32)
