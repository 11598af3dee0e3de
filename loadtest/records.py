"""Raw records of a run, one per turn, from which all results are computed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

#: ``refused``: the server said at once that it had no room or was not ready. ``failed``: it sent an
#: error, or nothing in time. ``unfinished``: the run ended first, and the server was not late with
#: the first sound. ``dropped``: this generator had no room, so the results are not those of the
#: requested load.
Outcome = Literal["complete", "cancelled", "refused", "failed", "unfinished", "dropped"]

#: Codes of an ``error``, or of a refused handshake, after which the request can be repeated later.
REFUSALS = frozenset(
    {
        "overloaded",
        "not_ready",
        "draining",
        "too_many_contexts",
        "rate_limited",
        "http_429",
        "http_503",
    }
)


class TurnRecord(Struct):
    """One turn. Times are seconds from the run's beginning; None: the turn did not get that far."""

    #: Number of the session in the run.
    session: int
    #: Number of the turn in its session.
    turn: int
    #: Length of the text.
    characters: int
    #: When the first piece of text was due, by the script and the listener's playback alone.
    intended_s: float
    #: When the end of the first sentence was due.
    sentence_s: float
    #: When the generator began the turn.
    started_s: float
    outcome: Outcome = "unfinished"
    #: The server's error code.
    code: str | None = None
    #: Of the audio, in Hz.
    sample_rate: int = 24_000
    #: When the context (for a session's first turn also the socket) was open; over HTTP the
    #: connection, if its answer was a 200.
    opened_s: float | None = None
    #: Time and samples of each chunk that was kept.
    arrivals: list[tuple[float, int]] = []
    #: Samples before the first audible one.
    silence: int | None = None
    #: When the cancel was sent.
    cancel_s: float | None = None
    #: When the cancel was acknowledged.
    cancelled_s: float | None = None
    #: When the last frame arrived, kept or not, also after ``ended_s``.
    last_audio_s: float | None = None
    #: When the turn was over.
    ended_s: float = 0.0
    #: The server's own measurement of the talker's pace.
    rtf: float | None = None
    #: The server's own measurement of underruns.
    underrun_ms: float | None = None
    #: Label of the row of the report to which the turn belongs.
    run: str = ""

    @property
    def context_id(self) -> str:
        """The id of the turn's context."""
        return f"s{self.session}t{self.turn}"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(TurnRecord)


def to_line(record: TurnRecord) -> bytes:
    """Encode a record as one line of JSON."""
    return _encoder.encode(record) + b"\n"


def from_line(line: bytes | str) -> TurnRecord:
    """Decode a line of ``to_line``. Raises msgspec.MsgspecError for any other."""
    return _decoder.decode(line)


def write_records(path: Path, *runs: Iterable[TurnRecord]) -> None:
    """Write a JSON-lines file, each run's records in order of intended start. Raises OSError."""
    with path.open("wb") as file:
        for records in runs:
            ordered = sorted(records, key=lambda record: (record.intended_s, record.session))
            file.writelines(map(to_line, ordered))


def read_records(path: Path) -> list[TurnRecord]:
    """Read a file of ``write_records``."""
    return [from_line(line) for line in path.read_bytes().splitlines()]
