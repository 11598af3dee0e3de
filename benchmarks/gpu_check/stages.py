"""The stages in the order in which they run, from the bare device to the whole service.

Each runs in a process of its own, so that a crash or hang does not affect the others. It returns
its results and reports what is broken.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from benchmarks.gpu_check import arithmetic, dummy_model
from benchmarks.gpu_check.arithmetic import CODEC_SHARE, Model, Range
from benchmarks.gpu_check.context import Context, Stage
from codec.families.higgs.checkpoint import open_higgs
from loadtest.program import median_seconds
from loadtest.run import LoadTestError
from talker.sampler import RowSampler
from talkwire_client import Client, ClientError, Word

#: Higgs Audio v2's hidden size and that of its MLPs, and sizes for a CPU.
_TWO_MLPS = (3072, 8192)
_SMALL_MLPS = (64, 96)
#: Agreement of two ways to compute in bfloat16, in dB.
_LEAST_SNR = 35.0
#: CUDA 13's libraries in the locked packages need this driver or a later one.
_LEAST_DRIVER = 580
_STREAMS = (1, 4, 16)


def device(context: Context) -> None:
    """Check the driver, the compilers, and that the packages load."""
    context.check(importlib.util.find_spec("vllm") is not None, "vLLM is not installed")
    if context.small:
        context.notes.append("no GPU: the small model, in float32, on the CPU")
        return
    for compiler in ("gcc", "g++"):
        context.check(shutil.which(compiler) is not None, f"no {compiler}: torch.compile needs it")
    properties = torch.cuda.get_device_properties(0)
    context.add("memory", "GB", properties.total_memory / 1e9)
    driver = _driver_version()
    if driver is not None:
        context.add("driver", "version", driver)
        context.check(driver >= _LEAST_DRIVER, f"driver {driver:.0f} is older than {_LEAST_DRIVER}")
    context.check(torch.version.cuda is not None, "this torch was built without CUDA")
    context.check(importlib.util.find_spec("triton") is not None, "Triton is not installed")
    import vllm._custom_ops  # noqa: F401  (loads vLLM's compiled operators)

    context.check(hasattr(torch.ops._C, "rms_norm"), "vLLM's compiled operators did not load")
    if context.bandwidth is None:
        name = torch.cuda.get_device_name()
        context.notes.append(f"the bandwidth of {name} is not listed: nothing to compare with")


def floor(context: Context) -> None:
    """Time reading all weights of a step once, in one graph: no talker can be faster."""
    model = context.model
    dtype = torch.float32 if context.small else torch.bfloat16
    hidden = torch.randn(1, model.hidden, dtype=dtype, device=context.device)
    layers = [
        (
            torch.randn(model.inner, model.hidden, dtype=dtype, device=context.device),
            torch.randn(model.hidden, model.inner, dtype=dtype, device=context.device),
        )
        for _ in range(_matrix_pairs(model))
    ]

    def work() -> None:
        x = hidden
        for up, down in layers:
            x = (x @ up.T) @ down.T * 1e-4

    ms = 1000 * _seconds_of(work, context)
    read = sum(a.nbytes + b.nbytes for a, b in layers)
    context.add("weights of a step read", "ms", ms, arithmetic.step_ms(model, 0, context.bandwidth))
    context.add("bandwidth", "TB/s", read / ms / 1e9)


def sampler(context: Context) -> None:
    """Time the sampler, the embeddings and fast ARs, in PyTorch and as Triton kernels."""
    from benchmarks import sampler_step

    rows = sampler_step.new_sampler().to(context.device)
    for streams in (1, 16):
        logits, *given = sampler_step.moved(sampler_step.inputs(streams), context.device)
        step = partial(_torch_step, rows, logits, given)
        known = None if context.small else Range(None, 1000 * arithmetic.TORCH_FORM_MS)
        us = 1e6 * _seconds_of(step, context, graph=False)
        context.add(f"PyTorch's form at {streams}", "us", us, known)
    if not context.small:
        _check_kernels(context)
        _check_fast_ar(context)
    else:
        context.notes.append("the Triton kernels need a GPU; make test-v2 interprets them")


def two_mlps(context: Context) -> None:
    """Compare and time Higgs Audio v2's MLPs: both for all rows, and as two experts."""
    from benchmarks.gpu_check.mlp_stages import TwoMLPs, has_cpu_operator

    if context.small and not has_cpu_operator():
        context.notes.append("vLLM's fused MoE does not run on this processor")
        return
    dtype = torch.float32 if context.small else torch.bfloat16
    sizes = _SMALL_MLPS if context.small else _TWO_MLPS
    # together larger than any cache, as the weights of a step are
    layers = [TwoMLPs.random(*sizes, dtype, context.device) for _ in range(4)]
    for rows in (1, 16, 64):
        x = torch.randn(rows, sizes[0], dtype=dtype, device=context.device)
        for kinds in ("audio", "text", "mixed"):
            is_audio = torch.full((rows,), kinds == "audio", device=context.device)
            if kinds == "mixed":
                is_audio[::2] = True
            ways = (layers[0].both(x, is_audio), layers[0].experts(x, is_audio))
            snr = _snr_db(*([way.float().cpu().numpy()] for way in ways))
            context.check(snr > _LEAST_SNR, f"two experts, {rows} {kinds} rows: {snr:.0f} dB")
        is_audio = torch.ones(rows, dtype=torch.bool, device=context.device)
        for name, way in (("both MLPs", TwoMLPs.both), ("two experts", TwoMLPs.experts)):
            us = 1e6 * _seconds_of(partial(_in_turn, way, layers, x, is_audio), context)
            context.add(f"{name}, a layer at {rows}", "us", us / len(layers))


def codec(context: Context) -> None:
    """Check the codec: graph captures, speed with and without TF32, and TF32's effect on the
    samples.
    """
    from benchmarks.codec_throughput import seconds_of, ways_of, windows
    from benchmarks.random_weights import random_decoder
    from codec.layers import set_tf32
    from codec.snake import use_kernel

    set_tf32(False)
    decoder = (
        open_higgs(str(dummy_model.EMBEDDED)).load_decoder()
        if context.small
        else random_decoder(context.device)
    )
    rows = 1 if context.small else 8
    (work,) = windows(decoder, 25, rows)
    audio_s = len(work) * 25 * decoder.spec.frame_s
    use_kernel("cpu")  # none
    exact = decoder.decode_windows(work)
    has_kernel = use_kernel(context.device)
    context.check(has_kernel or context.small, "the Snake kernel is not used: see the log")
    for tf32 in (False,) if context.small else (False, True):
        set_tf32(tf32)
        name = "TF32" if tf32 else "float32"
        began = time.perf_counter()
        ways = ways_of(decoder, context.device, 8)
        if not context.small:
            context.check("graphs" in ways, f"CUDA graphs of the codec in {name} do not capture")
            context.add(f"captures, {name}", "s", time.perf_counter() - began, Range(None, 20))
        for way, way_decoder in ways.items():
            seconds = seconds_of(way_decoder, [work], time.perf_counter)
            expected = _CODEC_MS.get((way, name))
            known = None if context.small or expected is None else Range(None, expected)
            context.add(f"{rows} x 25 frames, {way}, {name}", "ms", 1000 * seconds, known)
            context.add(f"audio per second, {way}, {name}", "s/s", audio_s / seconds)
            snr = _snr_db(exact, way_decoder.decode_windows(work))
            context.add(f"against eager float32, {way}, {name}", "dB", snr)
            context.check(tf32 or snr > 80, f"{way} in float32 are off by {snr:.0f} dB")
    if not context.small:
        context.add("memory", "GB", torch.cuda.max_memory_allocated() / 1e9, Range(None, 2.2))
        cpu = random_decoder("cpu").decode_windows(work[:1])
        set_tf32(False)
        snr = _snr_db(cpu, exact[:1])
        context.add("GPU against CPU, float32", "dB", snr)
        context.check(snr > 80, f"the GPU decodes other samples than the CPU: {snr:.0f} dB")


#: Milliseconds of eight windows of 25 frames on an H200.
_CODEC_MS = {("graphs", "float32"): 10.0, ("graphs", "TF32"): 3.6}


def codec_streams(context: Context) -> None:
    """Check the codecs that keep states of streams, and the Snake kernel: samples and speed with
    graphs and kernel, against PyTorch with neither.
    """
    from benchmarks.codec_growth import FISH
    from benchmarks.codec_throughput import seconds_of, streams, ways_of
    from benchmarks.random_weights import random_decoder, random_tensors
    from codec.families.fish.config import decoder_shapes
    from codec.families.fish.decoder import FishDecoder
    from codec.layers import set_tf32
    from codec.snake import use_kernel

    set_tf32(False)
    rows, frames = (1, 25) if context.small else (8, 25)
    for family in ("fish_s2",) if context.small else ("fish_s2", "qwen3_tts"):
        decoder = (
            FishDecoder(FISH, random_tensors(decoder_shapes(FISH)))
            if context.small
            else random_decoder(context.device, family)
        )
        turns = streams(decoder, frames, rows)
        audio_s = rows * frames * decoder.spec.frame_s
        use_kernel("cpu")  # none
        exact = [samples for turn in turns for samples in decoder.decode_windows(turn)]
        plain_s = seconds_of(decoder, turns, time.perf_counter)
        context.add(f"{family}: {rows} x {frames} frames, without kernel", "ms", 1000 * plain_s)
        has_kernel = use_kernel(context.device)
        context.check(has_kernel or context.small, "the Snake kernel is not used: see the log")
        began = time.perf_counter()
        ways = ways_of(decoder, context.device, rows)
        context.add(f"{family}: captures", "s", time.perf_counter() - began)
        context.check("graphs" in ways or context.small, f"{family}: graphs do not capture")
        for way, one in ways.items():
            seconds = seconds_of(one, turns, time.perf_counter)
            context.add(f"{family}: {rows} x {frames} frames, {way}", "ms", 1000 * seconds)
            context.add(f"{family}: audio per second, {way}", "s/s", audio_s / seconds)
            made = [samples for turn in turns for samples in one.decode_windows(turn)]
            snr = _snr_db(exact, made)
            context.add(f"{family}: {way}, against without kernel", "dB", snr)
            context.check(snr > 80, f"{family}: {way} is off by {snr:.0f} dB")
        if not context.small:
            context.add("memory", "GB", torch.cuda.max_memory_allocated() / 1e9)


def conformance(context: Context) -> None:
    """Compare the engine's codes with the reference talker's, in float32: they must be equal but
    for near ties. On a GPU a step must not wait for the device.
    """
    from benchmarks.gpu_check.talker_stages import compare_with_reference

    os.environ["VLLM_GPU_SYNC_CHECK"] = "warn"
    folder = context.checkpoint("conformance")
    ways = _CONFORMANCE[:1] if context.small else _CONFORMANCE
    for way, settings in ways:
        found = asyncio.run(compare_with_reference(folder, settings, context.device))
        context.add(f"streams that agree, {way}", "", found.agreeing)
        context.add(f"rows equal, {way}", "", found.rows)
        context.notes += [f"{way}: a stream {what}" for what in found.differences]
        context.check(
            found.agreeing == found.streams,
            f"{found.streams - found.agreeing} of {found.streams} streams differ ({way})",
        )
    waits = context.said("called a synchronizing")
    context.check(not waits, "a step waits for the device: the log says where")


#: The settings that must not change the codes.
_CONFORMANCE: tuple[tuple[str, dict[str, object]], ...] = (
    ("PyTorch's form", {"step_kernels": "off"}),
    ("whole-step graphs", {"step_kernels": "on", "graphs": "full"}),
    ("piecewise graphs", {"step_kernels": "on", "graphs": "mixed"}),
)


def weights(context: Context) -> None:
    """Make the random talker that all later stages load."""
    began = time.perf_counter()
    folder = context.checkpoint()
    context.add("made", "s", time.perf_counter() - began)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    context.add("size", "GB", size / 1e9)
    free = shutil.disk_usage(context.work).free
    context.check(free > 1e9, f"only {free / 1e9:.1f} GB are left in {context.work}")


#: Time until the first row, in steps, on an H200 with whole-step graphs.
_FIRST_ROW = 3.0


def talker(variant: str, **settings: object) -> Callable[[Context], None]:
    """Make a stage that measures the whole talker at several numbers of streams, with these
    settings.
    """

    def run(context: Context) -> None:
        from benchmarks.gpu_check.talker_stages import measure

        streams = (1, 2) if context.small else _STREAMS
        info, ready_s, first_ms, steps = asyncio.run(
            measure(context.checkpoint(), context.small, streams, settings)
        )
        if not context.small:
            context.check(info.runner == "v2", f"model runner {info.runner}, not v2")
            wants = settings.get("step_kernels") != "off"
            context.check(info.step_kernels == wants, "the step's kernels are not as asked for")
            context.check(info.graphs != "none", "no CUDA graphs were asked for")
            context.check(
                context.said("Capturing") or context.said("Graph capturing"),
                "vLLM's log names no captured graphs",
            )
        if any(context.said("attention backend", name) for name in _BACKENDS):
            used = next(name for name in _BACKENDS if context.said("attention backend", name))
            context.notes.append(f"attention backend {used}; graphs {info.graphs}")
        context.add("ready", "s", ready_s, None if context.small else Range(None, 120))
        kernels = settings.get("step_kernels") != "off"
        bits = settings.get("quantization", "none") != "none"
        for count, rate in steps.items():
            known = arithmetic.step_ms(
                context.model, count, context.bandwidth, kernels=kernels, eight_bits=bits
            )
            context.add(f"step at {count}", "ms", 1000 / rate, known)
            context.add(f"RTF at {count}", "", 25 / rate, arithmetic.rtf(known))
        one = arithmetic.step_ms(context.model, 1, context.bandwidth, kernels=kernels)
        expected = None if one.expected is None else _FIRST_ROW * one.expected
        context.add("first row", "ms", first_ms, Range(one.floor, expected))

    run.__doc__ = f"The talker: {variant}."
    return run


_BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "CPU_ATTN")


def profile(context: Context) -> None:
    """Count the launches of a step, by torch's profiler around vLLM's in-process engine."""
    from benchmarks.gpu_check.talker_stages import profile_steps

    found = profile_steps(context.checkpoint(), context.work / "trace.json")
    if context.small:
        context.add("operators of a step", "", found.launches)
    else:
        context.add("launches of a step", "", found.launches, Range(None, 8 + _VLLM_OWN))
        context.add("idle in a step", "ms", found.gap_ms)
    context.notes.append(f"the trace lies in {context.work / 'trace.json'}")


#: Launches by vLLM itself between two graphs: inputs, positions, slots, the head, copies.
_VLLM_OWN = 25

#: Longest sentence of random weights, in frames: two of them are shorter than a client's lead, so
#: the service does not wait for playback.
_MOST_FRAMES = 120


def service(context: Context) -> None:
    """Run the whole service with the codec beside the talker, and kill a codec worker."""
    from benchmarks.speakers import served, speakers, summary

    # the number of streams is fixed here, and not by the service's measurements
    os.environ["TALKWIRE_ADMISSION"] = "fixed"
    if not context.small:
        os.environ["TALKWIRE_MODEL"] = str(context.checkpoint())
    counts, rounds = ((1,), 1) if context.small else ((1, 16, 32), 3)
    # random weights would speak for a minute
    max_frames = None if context.small else _MOST_FRAMES

    async def speak() -> None:
        async with served() as (url, ready_s):
            context.add("ready", "s", ready_s)
            await speakers(url, 1, 1, max_frames)
            for count in counts:
                row = summary(await speakers(url, count, rounds, max_frames))
                known = Range(None, 40) if not context.small and count == 1 else None
                context.add(f"TTFA p50 at {count}", "ms", row["ttfa_p50_ms"], known)
                context.add(f"RTF at {count}", "", row["rtf_p50"])
                context.add(f"gap-free at {count}", "", row["gap_free"], higher=True)
                # a CPU may be shared with other work
                gap_free = context.small or row["gap_free"] >= 0.99
                context.check(gap_free, f"gaps in speech at {count} streams")
            talking = asyncio.ensure_future(speakers(url, counts[0], 1, max_frames))
            await asyncio.sleep(0.3)
            workers = [
                child
                for child in psutil.Process().children(recursive=True)
                if "codec.worker" in child.cmdline()
            ]
            context.check(bool(workers), "no codec worker was found to kill")
            for worker in workers:
                worker.kill()
            spoken = (await talking).reports
            context.check(
                all(one.ttfa_ms is not None for one in spoken),
                "speech was lost when the codec was killed",
            )

    asyncio.run(speak())
    if not context.small:
        share = f"{CODEC_SHARE:.0%} of the GPU's time"
        context.notes.append(f"expected of the codec at 16 streams: {share}")
        context.notes.append("run it again under nvidia-cuda-mps-control to see what MPS gives")


#: What may be at fault if several speakers break the embedded voice, as settings to try instead.
_SUSPECTS = (
    {"TALKWIRE_TALKER_GRAPHS": "mixed"},
    {"TALKWIRE_TALKER_STEP_KERNELS": "off"},
    {"TALKWIRE_TALKER_DTYPE": "bfloat16"},
    {"TALKWIRE_TALKER_PREFIX_CACHING": "false"},
    {"TALKWIRE_TALKER_COMPILE": "off"},
)


def voice(context: Context) -> None:
    """Speak to several listeners at once with the embedded voice, which has word timings and silent
    codebooks. If that breaks, find the settings with which it works.
    """
    os.environ.pop("TALKWIRE_MODEL", None)
    problem = asyncio.run(_speak_together(context))
    if problem is None:
        return
    context.problems.append(problem)
    for suspect in _SUSPECTS:
        os.environ.update(suspect)
        found = asyncio.run(_speak_together(context, measures=False))
        (setting,) = (f"{name}={value}" for name, value in suspect.items())
        context.notes.append(f"with {setting}: {found or 'sound'}")
        for name in suspect:
            del os.environ[name]


async def _speak_together(context: Context, measures: bool = True) -> str | None:
    """Return what breaks while one, two and four clients speak at once; None if nothing does."""
    from benchmarks.speakers import served, speakers, summary

    try:
        async with served() as (url, ready_s):
            for count in (1,) if context.small else (1, 2, 4):
                row = summary(await speakers(url, count, 2))
                if row["gap_free"] < 0.99 and not context.small:  # a CPU may be shared
                    return f"gaps in speech at {count} streams"
                if measures:
                    context.add(f"TTFA p50 at {count}", "ms", row["ttfa_p50_ms"])
            words = await _timed_words(url)
            if measures:
                context.add("ready", "s", ready_s)
                context.add("words with times", "", words, higher=True)
            return None if words else "no word timings"
    except (ClientError, LoadTestError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


async def _timed_words(url: str) -> int:
    """Return the number of words that came with times."""
    came: list[Word] = []
    async with (
        Client(url) as client,
        client.speak("One two three four.", on_words=came.extend) as speech,
    ):
        async for _ in speech:
            pass
    return len(came)


STAGES: tuple[Stage, ...] = (
    Stage("device", device, 120),
    Stage("floor", floor, 120),
    Stage("sampler", sampler, 180),
    Stage("two-mlps", two_mlps, 180),
    Stage("codec", codec, 300),
    Stage("codec-streams", codec_streams, 300),
    Stage("conformance", conformance, 480),
    Stage("weights", weights, 300),
    Stage("talker", talker("as the service runs it"), 480),
    Stage("talker-torch-form", talker("no kernels", step_kernels="off"), 420, True),
    Stage("talker-mixed-graphs", talker("piecewise with prompts", graphs="mixed"), 420, True),
    Stage("talker-int8", talker("int8", quantization="int8"), 420, True),
    Stage("talker-fp8", talker("fp8", quantization="fp8"), 420, True),
    Stage("talker-invariant", talker("batch invariance", batch_invariant=True), 420, True),
    Stage("profile", profile, 300),
    Stage("voice", voice, 540),
    Stage("service", service, 540),
)


def _torch_step(rows: RowSampler, logits: Tensor, given: Sequence[Any]) -> object:
    return rows.step(logits.clone(), *given)  # it writes into its logits


def _check_kernels(context: Context) -> None:
    """Compare the kernels' codes with PyTorch's on the same device, and time them."""
    from benchmarks.gpu_check.kernel_stages import compare, seconds
    from benchmarks.sampler_step import LOOK_BACK

    found = [compare(context.device, look_back) for look_back in (0, LOOK_BACK)]
    equal, compared = (sum(one) for one in zip(*found, strict=True))
    context.check(
        equal == compared, f"{compared - equal} of {compared} codes of the kernels differ"
    )
    context.add("codes equal to PyTorch's", "%", 100 * equal / compared, higher=True)
    for streams in (1, 16):
        us = 1e6 * seconds(streams, context.device)
        context.add(
            f"Triton kernels at {streams}", "us", us, Range(None, 1000 * arithmetic.KERNELS_MS)
        )
        for what, look_back, warps in (("one warp", 0, 1), ("repetition-aware", LOOK_BACK, 4)):
            us = 1e6 * seconds(streams, context.device, look_back, warps)
            context.add(f"Triton kernels at {streams}, {what}", "us", us)


def _in_turn(way: Any, layers: Sequence[Any], x: Tensor, is_audio: Tensor) -> None:
    for layer in layers:
        way(layer, x, is_audio)


def _check_fast_ar(context: Context) -> None:
    """Compare the layers of a fast AR in both forms, and time a frame without its draws."""
    from benchmarks.frame_launches import FAMILIES, RandomBooks
    from talker.fast_ar_kernels import adopt, compare

    rows = _STREAMS[-1]
    for family, sizes in FAMILIES.items():
        fast = RandomBooks(sizes.small() if context.small else sizes, context.device)
        hidden = torch.randn(rows, fast.part.hidden_size, device=context.device).bfloat16()
        first = torch.zeros(rows, dtype=torch.int64, device=context.device)
        difference = compare(fast, hidden)
        context.add(f"{family}: kernels against PyTorch's form", "%", 100 * difference)
        frame = partial(fast, hidden, first, lambda logits, book, first=first: first)
        ms = 1000 * _seconds_of(frame, context)
        context.add(f"{family}: a frame at {rows} in PyTorch", "ms", ms)
        context.check(adopt(fast, hidden), f"the kernels of {family}'s fast AR are not used")
        ms = 1000 * _seconds_of(frame, context)
        context.add(f"{family}: a frame at {rows} with Triton kernels", "ms", ms)


def _matrix_pairs(model: Model) -> int:
    """Number of pairs of matrices [inner, hidden] that together have as many weights as a step
    reads.
    """
    return max(1, round(model.step_bytes / model.width / (2 * model.hidden * model.inner)))


def _seconds_of(work: Callable[[], object], context: Context, graph: bool = True) -> float:
    """Return the median seconds of one call; on a GPU as one graph if requested."""
    with torch.inference_mode():
        for _ in range(3):
            work()
        if context.small:
            return median_seconds(work, 10, 1)
        run = work
        if graph:
            captured = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(captured):
                work()
            run = captured.replay
        return median_seconds(run, 10, 20, wait=torch.cuda.synchronize)


def _snr_db(wanted: Iterable[np.ndarray], got: Iterable[np.ndarray]) -> float:
    signal = 0.0
    noise = 0.0
    for one, other in zip(wanted, got, strict=True):
        signal += float(np.square(one, dtype=np.float64).sum())
        noise += float(np.square(one.astype(np.float64) - other).sum())
    return 200.0 if noise == 0 else float(10 * np.log10(signal / noise))


def _driver_version() -> float | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=30
        ).stdout
        return float(".".join(said.splitlines()[0].split(".")[:2]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
