"""Real talker processes against the oracle, a plain loop: every code of every stream is equal.

The suite covers both vLLM engines and, with TALKWIRE_TEST_RUNNER=v2 in an environment that has
it, Model Runner V2.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from streaming.errors import BackendError, ErrorCode
from streaming.ports import RowDemand, SpeechRequest
from streaming.spec import Codes
from talker.engine import TalkerProcessEngine
from tests.talker.harness import (
    GREEDY,
    MAX_ROWS,
    RUNNER,
    Oracle,
    begun_at_once,
    hear,
    idle,
    preempting,
    running,
    text,
    until,
    warm,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
#: Positions for about a quarter of sixteen streams, so that some are preempted.
TIGHT: dict[str, Any] = {"max_positions": 256, "kv_positions": 512}


@pytest.fixture(scope="module")
def oracle(tiny_checkpoint: Path) -> Oracle:
    return Oracle(tiny_checkpoint)


@pytest.fixture(scope="module", params=["inprocess", pytest.param("async", marks=pytest.mark.long)])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_checkpoint: Path, kind: str) -> AsyncIterator[TalkerProcessEngine]:
    """An engine with room for all streams."""
    async with running(tiny_checkpoint, engine=kind) as started:
        yield started


@pytest.mark.parametrize("streams", [1, 4, 16])
async def test_greedy_streams_match_oracle(
    engine: TalkerProcessEngine, oracle: Oracle, streams: int
) -> None:
    heard = await asyncio.gather(*(hear(engine, text(i)) for i in range(streams)))
    assert [h.same(oracle.speak(text(i))) for i, h in enumerate(heard)] == [True] * streams
    await idle(engine)


async def test_sampled_streams_match_oracle_in_any_batch(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    many = await asyncio.gather(*(hear(engine, text(3), warm(seed)) for seed in range(8)))
    alone = [await hear(engine, text(3), warm(seed)) for seed in (0, 5)]
    wanted = [oracle.speak(text(3), warm(seed)) for seed in range(8)]
    assert [h.same(w) for h, w in zip(many, wanted, strict=True)] == [True] * 8
    assert [alone[0].same(wanted[0]), alone[1].same(wanted[5])] == [True, True]
    assert len({h.rows.tobytes() for h in many}) == 8


async def test_mixed_batch_keeps_sampling_of_each_stream(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    mixed = [
        GREEDY,
        warm(1),
        warm(2, temperature=0.5),
        warm(3, top_k=1024),
        warm(4, top_k=1),
        warm(5, top_p=0.3),
        warm(2**62, top_p=1.0),
    ]
    heard = await asyncio.gather(*(hear(engine, text(i), s) for i, s in enumerate(mixed)))
    wanted = [oracle.speak(text(i), s) for i, s in enumerate(mixed)]
    assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * len(mixed)


async def test_waiting_streams_are_spoken_earliest_deadline_first(
    tiny_checkpoint: Path, oracle: Oracle, kind: str
) -> None:
    """Of one slot, which the first request takes for the longest text. One without a deadline waits
    for those whose listeners run dry soon, and is not overtaken by all others.
    """
    now = time.monotonic()
    dry_in_s = {"first": 0.0, "late": 3600.0, "unhurried": None, "soon": 5.0, "dry": 1.0}
    longest = max(range(len(dry_in_s)), key=lambda i: len(oracle.speak(text(i)).rows))
    numbers = [longest, *(i for i in range(len(dry_in_s)) if i != longest)]
    order = list[str]()

    async def speak(
        engine: TalkerProcessEngine, name: str, seconds: float | None, number: int
    ) -> bool:
        async def note() -> None:
            order.append(name)

        deadline = None if seconds is None else partial(float.__add__, now, seconds)
        heard = await hear(engine, text(number), deadline=deadline, after_first=note)
        return heard.same(oracle.speak(text(number)))

    async with running(tiny_checkpoint, engine=kind, max_num_seqs=1) as started:
        streams = [
            speak(started, *one, i) for one, i in zip(dry_in_s.items(), numbers, strict=True)
        ]
        assert await begun_at_once(started, streams) == [True] * len(dry_in_s)
    assert order == ["first", "dry", "soon", "unhurried", "late"]


async def test_slow_consumer_gets_all_rows_in_fewer_pieces(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    """All rows are made before the second piece is taken; they are too few for a pause."""

    async def all_made() -> None:
        await until(lambda: engine.live == 0)

    slow = [hear(engine, text(i), rows=40, after_first=all_made) for i in range(4)]
    heard = await asyncio.gather(*slow)
    assert [h.same(oracle.speak(text(i), rows=40)) for i, h in enumerate(heard)] == [True] * 4
    assert max(h.pieces for h in heard) <= 3 < min(len(h.rows) for h in heard)


@pytest.mark.parametrize("pause_s", [0.0, 0.03])
async def test_row_demand_changes_no_codes(
    engine: TalkerProcessEngine, oracle: Oracle, pause_s: float
) -> None:
    """The demand rises, falls, and falls while rows are held back."""
    plans = [(8,), (4, 1), (8, 8, 1, 1), (2, 3, 1, 5), (1, 1, 1, 6), (8, 1)]
    heard = await asyncio.gather(
        *(hear(engine, text(i), together=plan, pause_s=pause_s) for i, plan in enumerate(plans))
    )
    assert [h.same(oracle.speak(text(i))) for i, h in enumerate(heard)] == [True] * len(plans)
    # A busy machine may be ahead of the first demands, so there are several tries.
    while not pause_s and heard[0].pieces > len(heard[0].rows) / 8 + 4:
        heard[0] = await hear(engine, text(0), together=plans[0])
    await idle(engine)


async def test_row_demand_of_one_returns_to_single_rows(engine: TalkerProcessEngine) -> None:
    """On a busy machine the engine itself may deliver several rows at once, so several tries."""
    request = SpeechRequest("r", text(1), sampling=warm(1), max_frames=MAX_ROWS)
    singles = 0
    while singles < 4:
        sizes: list[int] = []
        async with aclosing(engine.generate(request)) as pieces:
            piece = await anext(pieces)
            while piece.finish is None:
                sizes += [arrival.rows for arrival in piece.came]
                piece = await pieces.asend(RowDemand(at_once=1 if 6 in sizes else 6))
        singles = sizes[sizes.index(6) :].count(1) if 6 in sizes else 0
    await idle(engine)


async def test_closed_generator_frees_slot_and_later_streams_match_oracle(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    async def leave_early(number: int) -> None:
        rows = engine.generate(
            SpeechRequest("r", text(0), sampling=warm(number), max_frames=MAX_ROWS)
        )
        async for _ in rows:
            break
        await rows.aclose()

    await asyncio.gather(*(leave_early(i) for i in range(16)))
    assert engine.outstanding == 0
    await idle(engine)
    heard = await asyncio.gather(*(hear(engine, text(i)) for i in range(16)))
    assert [h.same(oracle.speak(text(i))) for i, h in enumerate(heard)] == [True] * 16


async def test_cancelled_consumer_frees_slot(engine: TalkerProcessEngine) -> None:
    began = asyncio.Event()

    async def speak_on() -> None:
        while True:  # a request may end before it is cancelled
            await hear(engine, text(0), warm(1), began=began)

    task = asyncio.create_task(speak_on())
    await began.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await idle(engine)


async def test_requests_beyond_slots_wait_and_match_oracle(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    heard = await asyncio.gather(*(hear(engine, text(i % 4), rows=20) for i in range(24)))
    wanted = [oracle.speak(text(i % 4), rows=20) for i in range(24)]
    assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * 24


async def test_prefix_cache_serves_repeated_prompt_without_changing_codes(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    long = " ".join(text(i) for i in range(3))
    first = await hear(engine, long, rows=30)
    hits = engine.last_step.cached
    again = await asyncio.gather(*(hear(engine, long, rows=30) for _ in range(3)))
    assert engine.last_step.cached > hits
    assert [h.same(oracle.speak(long, rows=30)) for h in (first, *again)] == [True] * 4


async def test_reference_voices_match_oracle_beside_plain_streams(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    voices = ["alto", "bass", "default", "alto"]
    heard = await asyncio.gather(
        *(hear(engine, text(i), voice=voice) for i, voice in enumerate(voices))
    )
    wanted = [oracle.speak(text(i), voice=voice) for i, voice in enumerate(voices)]
    assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * 4
    hits = engine.last_step.cached
    assert (await hear(engine, text(0), voice="alto")).same(wanted[0])
    assert engine.last_step.cached > hits


async def test_conversation_is_ignored_by_checkpoint_without_continuity(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    assert not engine.spec.has_continuity
    heard = [await hear(engine, text(i), conversation="one") for i in (3, 4)]
    assert [h.same(oracle.speak(text(i))) for i, h in zip((3, 4), heard, strict=True)] == [True] * 2
    engine.forget("one")


async def test_preempted_streams_match_oracle(
    tiny_checkpoint: Path, kind: str, oracle: Oracle
) -> None:
    async with running(tiny_checkpoint, engine=kind, **TIGHT) as engine:
        heard = await preempting(engine, [hear(engine, text(i)) for i in range(16)])
        assert [h.same(oracle.speak(text(i))) for i, h in enumerate(heard)] == [True] * 16
        mild = [warm(i, temperature=0.4) for i in range(16)]
        heard = await preempting(engine, [hear(engine, text(0), s) for s in mild])
        wanted = [oracle.speak(text(0), s) for s in mild]
        assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * 16
        await idle(engine)


@pytest.mark.long
async def test_chunked_prefill_matches_oracle(
    tiny_checkpoint: Path, kind: str, oracle: Oracle
) -> None:
    small: dict[str, Any] = {
        "max_batched_positions": 24,
        "max_num_seqs": 12,
        "prefix_caching": False,
    }
    async with running(tiny_checkpoint, engine=kind, **small) as engine:
        draws = [GREEDY if i % 2 else warm(i) for i in range(12)]
        heard = await asyncio.gather(
            *(hear(engine, text(i), s, voice="bass" if i == 3 else "default")
              for i, s in enumerate(draws))
        )  # fmt: skip
        wanted = [
            oracle.speak(text(i), s, voice="bass" if i == 3 else "default")
            for i, s in enumerate(draws)
        ]
        assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * 12


@pytest.mark.long
async def test_overwritten_frame_fails_only_its_request(
    tiny_checkpoint: Path, kind: str, oracle: Oracle
) -> None:
    """A request resumes after the frame table has wrapped around and its frames are overwritten.

    The other requests are short: if a slow machine pauses them too, their frames are still there.
    It may also end the first one before its pause; so there are several tries.
    """
    slots, rows = 64, 20
    settings: dict[str, Any] = {"frame_slots": slots, "hold_rows": 8, "prefix_caching": False}
    async with running(tiny_checkpoint, engine=kind, **settings) as engine:
        error: BackendError | None = None
        while error is None:
            async with aclosing(engine.generate(request_of(1))) as paused:
                await anext(paused)
                await until(lambda: engine.live == 0)
                written = 0
                while written < slots:
                    heard = await asyncio.gather(
                        *(hear(engine, text(i), rows=rows) for i in range(2))
                    )
                    wanted = [oracle.speak(text(i), rows=rows) for i in range(2)]
                    assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * 2
                    written += sum(len(h.rows) for h in heard)
                other = asyncio.create_task(hear(engine, text(2), rows=rows))
                try:
                    async for _ in paused:
                        pass
                except BackendError as raised:
                    error = raised
            assert (await other).same(oracle.speak(text(2), rows=rows))
        assert error.code is ErrorCode.ENGINE_FAILED
        await idle(engine)


@pytest.mark.skipif(RUNNER != "v2", reason="Triton is Model Runner V2's")
async def test_step_kernels_match_oracle(tiny_checkpoint: Path, kind: str, oracle: Oracle) -> None:
    """Prefills with reference voices run beside decodes, and the KV cache is small."""
    draws = [GREEDY, warm(1), warm(3, top_k=1024), GREEDY, warm(5, top_p=0.3)]
    room: dict[str, Any] = {"max_positions": 256, "kv_positions": 320, "prefix_caching": False}
    rows = 20
    async with running(tiny_checkpoint, engine=kind, step_kernels="on", **room) as engine:
        assert engine.info is not None
        assert engine.info.step_kernels
        voices = ["default", "bass", "default", "alto", "default"]
        heard = await asyncio.gather(
            *(hear(engine, text(i), s, voice=voices[i], rows=rows) for i, s in enumerate(draws))
        )
        wanted = [oracle.speak(text(i), s, voice=voices[i], rows=rows) for i, s in enumerate(draws)]
        assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * len(draws)


async def test_engine_info_reports_engine_runner_and_shape(
    engine: TalkerProcessEngine, kind: str
) -> None:
    assert engine.info is not None
    assert (engine.info.engine, engine.info.runner) == (kind, RUNNER)
    assert (engine.info.num_codebooks, engine.info.codebook_size) == (8, 1024)
    assert set(engine.info.phases) == {"checkpoint", "imports", "engine", "warm-up"}


async def test_paused_streams_resume_unchanged(
    tiny_checkpoint: Path, oracle: Oracle, kind: str
) -> None:
    """The engine drops paused streams, serves others, and resumes them from their frames.

    A stream is paused only if it is read late. On a busy machine the engine may be so far ahead
    that it is too late for that, so streams are read until enough of them have been paused.
    """
    async with running(tiny_checkpoint, engine=kind, hold_rows=8) as engine:
        wanted = {i: oracle.speak(text(i), warm(i)) for i in range(4)}
        pauses = 0
        while pauses <= 2:
            streams = {i: engine.generate(request_of(i)) for i in wanted}
            heard: dict[int, list[Codes]] = {i: [] for i in streams}
            while streams:
                for i, stream in list(streams.items()):
                    piece = await anext(stream)
                    heard[i].append(piece.rows)
                    if piece.finish:
                        assert piece.finish == wanted[i].finish
                        await stream.aclose()
                        del streams[i]
                await until(lambda: engine.live == 0)  # all are paused or have ended
                assert engine.outstanding == len(streams)
                pauses += bool(streams)
                other = await hear(engine, text(9), rows=20)
                assert other.rows.tobytes() == oracle.speak(text(9)).rows[:20].tobytes()
            for i, rows in heard.items():
                assert np.concatenate(rows).tobytes() == wanted[i].rows.tobytes()
        await idle(engine)


def request_of(number: int) -> SpeechRequest:
    return SpeechRequest("r", text(number), sampling=warm(number), max_frames=MAX_ROWS)


async def test_paused_stream_can_be_closed(tiny_checkpoint: Path, kind: str) -> None:
    async with running(tiny_checkpoint, engine=kind, hold_rows=8) as engine:
        stream = engine.generate(request_of(1))
        await anext(stream)
        await until(lambda: engine.live == 0)
        await stream.aclose()
        await idle(engine)
        assert (await hear(engine, text(2), rows=20)).rows.shape == (20, 8)
