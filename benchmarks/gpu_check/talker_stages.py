"""The stages' work with a real talker: compare its codes, time its steps, profile them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.reference_talker import Chance, ReferenceTalker, Spoken
from benchmarks.sampler_step import leaves
from benchmarks.talker_steps import first_row_ms, running, steps_per_s
from ipc.child import LinkClosed
from streaming.ports import Sampling, SpeechRequest
from streaming.spec import Codes
from talker.checkpoint import open_checkpoint
from talker.engine import TalkerProcessEngine
from talker.messages import Generate, Ready, Step
from talker.settings import TalkerSettings

_TEXTS = ("hello there", "the quick brown fox", "again and again", "a lazy dog", "one more")
_ROWS = 40
_FRAMES = 120
#: Steps before the profile.
_SETTLED = 20
#: Steps in the profile.
_PROFILED = 20
#: Two choices whose scores differ by less may change places by rounding. On a GPU vLLM attends to
#: float32 by Triton kernels, which multiply in TF32 (three digits) unless told otherwise.
_NEAR_TIE = {"cpu": 2e-5, "cuda": 3e-3}
#: Names of launches in the CUDA runtime and driver.
_LAUNCHES = (
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaGraphLaunch",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
)


@dataclass(slots=True)
class Conformance:
    """A comparison of streams with the reference.

    A stream agrees if its rows are equal, or equal up to a row in which the reference nearly had a
    tie. ``rows`` is the number of equal rows; ``differences`` describe where streams differ.
    """

    streams: int = 0
    agreeing: int = 0
    rows: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, wanted: Spoken, rows: Codes, near_tie: float) -> None:
        """Compare one stream's rows ``[n, K]`` with the reference's."""
        count = min(len(wanted.rows), len(rows))
        differ = (wanted.rows[:count] != rows[:count]).any(axis=1)
        first = int(differ.argmax()) if differ.any() else count
        is_equal = len(wanted.rows) == len(rows) == first
        margin = None if first == len(wanted.rows) else float(wanted.margins[first])
        self.streams += 1
        self.rows += first
        self.agreeing += is_equal or (margin is not None and margin < near_tie)
        if not is_equal:
            at = "after the last row" if margin is None else f"by {margin:.1e}"
            self.differences.append(f"differs from row {first} on, decided {at}")


async def compare_with_reference(
    folder: Path, settings: dict[str, object], device: str
) -> Conformance:
    """Compare the codes of an engine with these settings, in float32, with the reference's."""
    checkpoint = open_checkpoint(str(folder))
    reference = ReferenceTalker(folder)
    prompts = checkpoint.prompt_builder(1024)
    wanted: dict[tuple[str, float], Spoken] = {}
    for number, text in enumerate(_TEXTS):
        for temperature in (0.0, 1.0):
            chance = Chance(number, temperature) if temperature else None
            wanted[text, temperature] = reference.speak(prompts.build(text).ids, _ROWS, chance)
    chosen = msgspec.convert({"dtype": "float32", **settings}, TalkerSettings)
    async with running(str(folder), chosen) as engine:
        spoken_rows = await asyncio.gather(
            *(_hear(engine, text, temperature) for text, temperature in wanted)
        )
    found = Conformance()
    for spoken, rows in zip(wanted.values(), spoken_rows, strict=True):
        found.add(spoken, rows, _NEAR_TIE[device])
    return found


async def _hear(engine: TalkerProcessEngine, text: str, temperature: float) -> Codes:
    sampling = Sampling(temperature=temperature, top_k=50, top_p=0.95, seed=_TEXTS.index(text))
    request = SpeechRequest("check", text, sampling=sampling, max_frames=_ROWS)
    return np.concatenate([piece.rows async for piece in engine.generate(request)])


async def measure(
    folder: Path, small: bool, streams: Sequence[int], settings: dict[str, object]
) -> tuple[Ready, float, float, dict[int, float]]:
    """Return the talker's description of itself, seconds to ready, milliseconds to the first row,
    and steps per second by the number of streams.
    """
    chosen = {"dtype": "auto" if small else "bfloat16", **settings}
    began = time.perf_counter()
    async with running(str(folder), msgspec.convert(chosen, TalkerSettings)) as engine:
        ready_s = time.perf_counter() - began
        assert engine.info is not None
        first_ms = await first_row_ms(engine, 5)
        rates = {count: await steps_per_s(engine, count, _FRAMES) for count in streams}
        return engine.info, ready_s, first_ms, rates


@dataclass(frozen=True, slots=True)
class StepProfile:
    """For one step: launches (on a CPU: operators that move data), and milliseconds in which the
    device was idle.
    """

    launches: float
    gap_ms: float


def profile_steps(folder: Path, trace: Path, streams: int = 4) -> StepProfile:
    """Profile steps of the in-process engine, which runs the same model runner as the service."""
    from talker.request_table import RequestTable
    from talker.vllm_setup import engine_arguments, make_plan, ring_size, set_environment

    settings = TalkerSettings(engine="inprocess", max_num_seqs=16, max_positions=1024)
    set_environment(settings)
    checkpoint = open_checkpoint(str(folder))
    plan = make_plan(settings, checkpoint)
    prompts = checkpoint.prompt_builder(1024)
    stop = prompts.stop_id
    arguments = engine_arguments(settings, plan, checkpoint, stop)
    from talker.host_inprocess import InProcessHost

    host = InProcessHost(arguments, checkpoint, stop, RequestTable(ring_size(arguments), 1, 16))
    ids = prompts.build("hello there").ids
    requests = [
        Generate(
            handle=number,
            ids=ids,
            max_frames=200,
            temperature=1.0,
            top_p=0.95,
            top_k=50,
            seed=number,
        )
        for number in range(streams)
    ]
    host.warm_up(requests[0])
    script = _Script(requests)
    with contextlib.suppress(LinkClosed):
        host.run(script)  # type: ignore[arg-type]  # the part of a link that the host uses
    script.profiler.export_chrome_trace(str(trace))
    events: Any = script.profiler.events() or ()  # type: ignore[no-untyped-call]
    if torch.cuda.is_available():
        launches = sum(event.name in _LAUNCHES for event in events)
        busy_us = sum(event.device_time for event in events if event.device_type.name == "CUDA")
        gap_ms = 1000 * script.seconds - busy_us / 1000
    else:
        launches = leaves(events)
        gap_ms = 0.0
    return StepProfile(launches / _PROFILED, gap_ms / _PROFILED)


class _Script:
    """Replaces the gateway's link: sends the requests, and ends after the profile."""

    def __init__(self, requests: Sequence[Generate]) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self.profiler = profile(activities=activities)
        self.seconds = 0.0
        self._requests = list(requests)
        self._steps = 0
        self._began = 0.0

    def receive(self, wait: bool) -> list[Generate]:
        """Return the requests, once. Raises LinkClosed after the profile or when all have ended."""
        if self._steps >= _SETTLED + _PROFILED or (wait and not self._requests):
            raise LinkClosed
        requests, self._requests = self._requests, []
        return requests

    def send(self, message: Any) -> None:
        """Handle a message at the end of a step."""
        if not isinstance(message, Step):
            return
        self._steps += 1
        if self._steps == _SETTLED:
            self.profiler.start()
            self._began = time.perf_counter()
        elif self._steps == _SETTLED + _PROFILED:
            self.seconds = time.perf_counter() - self._began
            self.profiler.stop()
