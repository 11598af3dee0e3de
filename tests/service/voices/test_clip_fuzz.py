"""Mutated clips: each is read or refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from service.voices import clip_reader as clip_module
from service.voices import clip_sandbox
from service.voices.clip_reader import REFUSALS, ClipReader
from streaming.errors import ErrorCode, RequestError
from tests.service.voices import clips

CHILD = Path(clip_module.__file__).with_name("clip_sandbox.py")
GOOD = clips.every_format(clips.tone())


#: Changes to a valid file: truncation, replaced bytes, a removed range. Places are fractions of
#: the file from 0 to 1, or one of its first two hundred bytes.
_PLACE = st.one_of(st.integers(0, 200), st.floats(0, 1))
MUTATIONS = st.tuples(
    st.one_of(st.just(1.0), _PLACE),
    st.lists(st.tuples(_PLACE, st.integers(0, 255)), max_size=8),
    st.tuples(_PLACE, st.integers(0, 64)),
)
Mutation = tuple[float, list[tuple[float, int]], tuple[float, int]]
UNCHANGED: Mutation = (1.0, [], (0, 0))


def mutated(data: bytes, mutation: Mutation) -> bytes:
    def place(where: float) -> int:
        return where if isinstance(where, int) else int(where * (len(data) - 1))

    cut, changes, (hole, size) = mutation
    changed = bytearray(data)
    for at, value in changes:
        changed[place(at)] = value
    del changed[place(hole) : place(hole) + size]
    return bytes(changed if cut == 1.0 else changed[: place(cut)])


#: Reads one clip per line in one process: the work of the child processes, only faster.
FUZZED = """
import base64, sys
sys.path.insert(0, sys.argv[1])
import av, clip_sandbox
av.logging.set_level(None)
wanted = clip_sandbox.Wanted(24000, 10 << 20, 1.0, 30.0)
clip_sandbox.load_everything()
clip_sandbox.give_up_rights()
assert clip_sandbox.filter_system_calls()
for line in sys.stdin:
    try:
        answer = clip_sandbox.read_clip(base64.b64decode(line), wanted)[1]
    except clip_sandbox.Refused as refusal:
        answer = str(refusal)
    except MemoryError:
        answer = "too_large"
    print(answer, flush=True)
"""


@pytest.fixture(scope="module")
def fuzzed():
    """Return a function that answers a clip, and restarts the process if it has ended."""
    state: dict[str, subprocess.Popen[str]] = {}
    died: list[int] = []

    def ask(data: bytes) -> str:
        child = state.get("child")
        if child is None or child.poll() is not None:
            if child is not None:
                child.communicate()
            child = state["child"] = subprocess.Popen(
                [sys.executable, "-c", FUZZED, str(CHILD.parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(clips.as_base64(data) + "\n")
        child.stdin.flush()
        answer = child.stdout.readline().strip()
        if not answer:
            died.append(child.wait())
            # its time limit was reached after many clips, not because of this one
            return "again" if died[-1] in (-24, -14, -9) else f"died {died[-1]}"
        return answer

    yield ask
    if child := state.get("child"):
        child.kill()
        child.communicate()


@pytest.mark.parametrize("kind", GOOD)
def test_fuzzed_clips_are_read_or_refused(kind: str, fuzzed) -> None:
    allowed = {*REFUSALS, *clip_sandbox._CODECS}
    heard = set()

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(MUTATIONS)
    @example(UNCHANGED)
    def check(mutation: Mutation) -> None:
        data = mutated(GOOD[kind], mutation)
        answer = fuzzed(data)
        if answer == "again":
            answer = fuzzed(data)
        assert answer in allowed
        heard.add(answer)

    check()
    assert heard & clip_sandbox._CODECS.keys()
    assert heard & set(REFUSALS)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(GOOD)), MUTATIONS)
def test_clip_reader_reads_or_refuses_fuzzed_clips(kind: str, mutation: Mutation) -> None:
    data = mutated(GOOD[kind], mutation)

    async def once() -> np.ndarray | RequestError:
        try:
            return await ClipReader(clips.RATE).read(data)
        except RequestError as refused:
            return refused

    answer = asyncio.run(once())
    if isinstance(answer, RequestError):
        assert answer.code is ErrorCode.INVALID_AUDIO
        assert answer.message in REFUSALS.values()
    else:
        assert np.isfinite(answer).all()
