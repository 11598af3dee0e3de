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
    """One turn. Times are seconds from the run's beginning; None: the turn did not get that far.

    ``intended_s``: when the first piece of text was due, by the script and the listener's playback
    alone. ``started_s``: when the generator began it. ``sentence_s``: when the end of the first
    sentence was due. ``opened_s``: the context (for a session's first turn also the socket) was
    open; over HTTP the connection, if its answer was a 200. ``arrivals``: (time, samples) of each
    chunk that was kept; ``silence``: samples before the first audible one. ``cancel_s``: the cancel
    was sent; ``cancelled_s``: it was acknowledged; ``last_audio_s``: the last frame arrived, kept
    or not, also after ``ended_s``. ``rtf`` and ``underrun_ms`` are the server's own measurements,
    ``code`` its error code. ``run``: the label of the row to which the turn belongs.
    """

    session: int
    turn: int
    characters: int
    intended_s: float
    sentence_s: float
    started_s: float
    outcome: Outcome = "unfinished"
    code: str | None = None
    sample_rate: int = 24_000
    opened_s: float | None = None
    arrivals: list[tuple[float, int]] = []
    silence: int | None = None
    cancel_s: float | None = None
    cancelled_s: float | None = None
    last_audio_s: float | None = None
    ended_s: float = 0.0
    rtf: float | None = None
    underrun_ms: float | None = None
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
