"""What is written down of a run, raw: one record per turn. Everything else follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from loadtest.script import Workload

#: ``refused``: the server said at once that it had no room or was not ready. ``failed``: it
#: broke, or said nothing in time. ``unfinished``: the run ended first, and the server was not
#: late with the first sound. ``dropped``: this generator had no room, so the figures are not
#: those of the load that was asked for.
Outcome = Literal["complete", "cancelled", "refused", "failed", "unfinished", "dropped"]

#: What a service is spoken to in; ``openai`` has neither leads nor playback reports.
Protocol = Literal["native", "openai"]

#: Codes of an ``error``, or of a refused handshake, that mean "not now" rather than "broken".
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


class Plan(Struct, frozen=True):
    """Everything that a run depends on; workers draw the same sessions from it.

    ``rate_per_s`` sessions arrive as a Poisson process for ``duration_s``. Those that would have
    come within ``under_way_s`` before it, and not be over, take part from the first turn that is
    due after the beginning, so that the load is there from then on. Or ``streams`` is
    set: then so many sessions begin evenly over the warm-up and speak turn after turn until
    ``duration_s``, so that as many streams run at any time. Turns that are due before
    ``warmup_s`` are not measured. The run ends ``grace_s`` after ``duration_s`` at the latest.

    A turn fails when nothing has gone on in it for ``turn_limit_s``: no text sent, no audio come.
    """

    url: str
    duration_s: float
    warmup_s: float
    rate_per_s: float = 0.0
    streams: int = 0
    workload: Workload = Workload()
    seed: int = 1
    processes: int = 1
    max_sessions: int = 20_000
    max_open: int = 2_000
    max_lead_ms: int | None = 2_000
    report_every_s: float = 0.5
    turn_limit_s: float = 60.0
    grace_s: float = 30.0
    protocol: Protocol = "native"
    under_way_s: float = 0.0


def warmup_within(warmup_s: float, duration_s: float) -> float:
    """The warm-up; ValueError if it leaves nothing to measure."""
    if warmup_s >= duration_s:
        raise ValueError(
            f"the warm-up of {warmup_s:g} s is as long as the run; nothing would be measured"
        )
    return warmup_s


class TurnRecord(Struct):
    """One turn. Times are seconds from the run's beginning; None: it did not come to that.

    ``intended_s``: when the first piece of text was due, by the script and the listener's
    playback alone. ``started_s``: when the generator got to it. ``sentence_s``: when the first
    sentence's end was due. ``opened_s``: the context (for a session's first turn also the
    socket) was open; over HTTP the connection, if its answer was a 200. ``arrivals``: (time,
    samples) of each chunk that was kept; ``silence``: samples before the first audible one.
    ``cancel_s``: the cancel was sent, ``cancelled_s``: acknowledged; ``last_audio_s``: the last
    frame came, kept or not, also after ``ended_s``. ``rtf`` and ``underrun_ms`` are the server's
    own, ``code`` its word for what went wrong. ``run``: the label of the row that it belongs to.
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
        """What the turn's context is called on the wire."""
        return f"s{self.session}t{self.turn}"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(TurnRecord)


def to_line(record: TurnRecord) -> bytes:
    """A record as one line of JSON."""
    return _encoder.encode(record) + b"\n"


def from_line(line: bytes | str) -> TurnRecord:
    """What ``to_line`` wrote. Raises msgspec.MsgspecError if it is not that."""
    return _decoder.decode(line)


def write_records(path: Path, *runs: Iterable[TurnRecord]) -> None:
    """A JSON-lines file: each run's in order of intended start. Raises OSError."""
    with path.open("wb") as file:
        for records in runs:
            ordered = sorted(records, key=lambda record: (record.intended_s, record.session))
            file.writelines(map(to_line, ordered))


def read_records(path: Path) -> list[TurnRecord]:
    """What ``write_records`` wrote."""
    return [from_line(line) for line in path.read_bytes().splitlines()]
