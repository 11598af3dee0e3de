"""Reading of clips in the sandbox: formats, limits, forged headers and failing child processes."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import uvloop

from service.voices import clip_reader as clip_module
from service.voices import clip_sandbox
from service.voices.clip_reader import REFUSALS, ClipLimits, ClipReader, decode_base64
from streaming.errors import CapacityError, ErrorCode, RequestError
from tests.service.voices import clips

CHILD = Path(clip_module.__file__).with_name("clip_sandbox.py")
TONE = clips.tone()
GOOD = clips.every_format(TONE)


def pitch(samples: np.ndarray) -> float:
    return float(np.abs(np.fft.rfft(samples)).argmax() * clips.RATE / len(samples))


async def read(data: bytes, **limits: float) -> np.ndarray:
    return await ClipReader(clips.RATE, ClipLimits(**limits)).read(data)  # type: ignore[arg-type]


async def refusal(data: bytes, **limits: float) -> str:
    with pytest.raises(RequestError) as refused:
        await read(data, **limits)
    assert refused.value.code is ErrorCode.INVALID_AUDIO
    return next(name for name, text in REFUSALS.items() if text == refused.value.message)


@pytest.mark.parametrize("kind", GOOD)
async def test_clip_reader_decodes_every_format(kind: str) -> None:
    samples = await read(GOOD[kind])
    assert samples.dtype == np.float32
    assert abs(len(samples) - len(TONE)) <= 2400  # codecs add up to a tenth of a second
    assert abs(pitch(samples) - 440) < 2
    assert 0.2 < samples.std() < 0.5
    if "wav" in kind or kind == "flac":
        assert np.abs(samples - TONE).max() < 1e-4


@pytest.mark.parametrize(("rate", "channels"), [(8_000, 1), (44_100, 2), (48_000, 6), (96_000, 1)])
async def test_clip_reader_converts_rates_and_channels(rate: int, channels: int) -> None:
    samples = await read(clips.wav(clips.tone(rate=rate), rate, channels))
    assert abs(len(samples) - len(TONE)) <= 2
    middle = slice(2400, -2400)
    assert np.abs(samples[: len(TONE)][middle] - TONE[: len(samples)][middle]).max() < 5e-3


@pytest.mark.parametrize("second", [-1.0, -0.9, 0.0])
async def test_clip_reader_hears_stereo_whose_channels_cancel(second: float) -> None:
    """A microphone wired the wrong way round gives opposite channels."""
    samples = await read(clips.float_wav(np.stack([TONE, second * TONE], 1), channels=2))
    loudness = 0.5 if second == 0.0 else 1.0  # a silent channel is mixed
    assert np.abs(samples - loudness * TONE).max() < 1e-4


@pytest.mark.parametrize(("bits", "valid"), [(32, 24), (32, 20), (32, 16), (24, 16), (16, 12)])
async def test_clip_reader_decodes_wav_whose_samples_are_wider_than_needed(
    bits: int, valid: int
) -> None:
    steps = np.rint(TONE * (2 ** (valid - 1) - 1)).astype("<i4") << (32 - valid)
    data = steps.view(np.uint8).reshape(-1, 4)[:, 4 - bits // 8 :].tobytes()
    size, pcm = bits // 8, b"\1\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    format_ = (0xFFFE, 1, clips.RATE, clips.RATE * size, size, bits, 22, valid, 4, pcm)
    head = struct.pack("<4sI4s4sI", b"RIFF", 60 + len(data), b"WAVE", b"fmt ", 40)
    head += struct.pack("<HHIIHHHHI16s", *format_) + struct.pack("<4sI", b"data", len(data))
    samples = await read(head + data)
    assert len(samples) == len(TONE)
    assert np.abs(samples - TONE).max() < 2.0 ** (2 - valid)


async def test_clip_reader_accepts_truncated_recordings() -> None:
    for kind in ("wav", "flac", "mp3", "opus"):
        samples = await read(GOOD[kind][: int(len(GOOD[kind]) * 0.8)])
        assert 1.3 * clips.RATE < len(samples) < 1.8 * clips.RATE, kind
    streamed = bytearray(GOOD["wav"])
    streamed[4:8] = streamed[40:44] = b"\xff\xff\xff\xff"  # length not known yet
    assert np.abs(await read(bytes(streamed)) - TONE).max() < 1e-4


async def test_padding_of_mp3_does_not_make_clip_too_long() -> None:
    longest = clips.encoded("mp3", clips.tone(30.0))
    untold = longest.replace(b"Xing", b"none").replace(b"Info", b"none")
    assert len(await read(untold)) == 30 * clips.RATE
    assert await refusal(clips.encoded("mp3", clips.tone(30.2))) == "too_long"


async def test_clip_reader_refuses_invalid_clips_with_reason() -> None:
    assert await refusal(b"") == "unknown_format"
    assert await refusal(b"<html>") == "unknown_format"
    assert await refusal(b"#EXTM3U\nfile:///etc/passwd\n") == "unknown_format"
    assert await refusal(clips.wav(clips.tone(0.5))) == "too_short"
    assert await refusal(clips.wav(clips.tone(31.0))) == "too_long"
    assert await refusal(clips.flac_bomb(600)) == "too_long"
    assert await refusal(clips.flac_bomb(5)) == "silent"
    assert await refusal(clips.float_wav(np.full(48_000, 0.3))) == "silent"  # only an offset
    assert await refusal(GOOD["wav"], max_bytes=1000) == "too_large"
    assert await refusal(clips.float_wav(np.full(48_000, np.nan))) == "not_finite"
    assert await refusal(b"fLaC" + bytes(5000)) == "damaged"
    assert await refusal(b"RIFF\0\0\0\0WAVEfmt ") in ("damaged", "no_audio")


def test_refusals_name_limits() -> None:
    limits = ClipLimits()
    for reason, limit in [
        ("too_large", f"{limits.max_bytes >> 20} MiB"),
        ("too_short", f"{limits.min_s:g} second"),
        ("too_long", f"{limits.max_s:g} seconds"),
        ("too_many_channels", f"{clip_sandbox._MOST_CHANNELS}"),
        ("bad_rate", f"{clip_sandbox._RATES[0] // 1000} to {clip_sandbox._RATES[-1] // 1000} kHz"),
    ]:
        assert f" {limit}" in REFUSALS[reason]


async def test_clip_reader_calls_aac_unknown_rather_than_damaged() -> None:
    """ADTS begins with the same eleven bits as MP3, and both may begin with a tag."""
    aac = clips.encoded("aac", TONE)
    assert await refusal(aac) == "unknown_format"
    assert await refusal(clips.id3(0, b"") + clips.id3(300, bytes(300)) + aac) == "unknown_format"


async def test_clip_reader_decodes_flac_and_mp3_behind_tags() -> None:
    tags = clips.id3(0, b"") + clips.id3(300, bytes(300))
    assert np.array_equal(await read(tags + GOOD["flac"]), await read(GOOD["flac"]))
    assert np.array_equal(await read(tags + GOOD["mp3"]), await read(GOOD["mp3"]))


async def test_clip_reader_decodes_joined_mp3_files_with_tags() -> None:
    """A recording is often put together from files that each begin with a tag."""
    tag = clips.id3(300, bytes(300))
    samples = await read(tag + GOOD["mp3"] + tag + GOOD["mp3"])
    assert abs(len(samples) - 2 * len(await read(GOOD["mp3"]))) <= 2400
    assert await refusal(GOOD["mp3"] + b"abc" * 500 + GOOD["mp3"]) == "damaged"


async def test_clip_reader_decodes_mp3_behind_zeros() -> None:
    assert np.array_equal(await read(bytes(500) + GOOD["mp3"]), await read(GOOD["mp3"]))
    aac = clips.encoded("aac", TONE)
    assert await refusal(bytes(500) + aac) == "unknown_format"


async def test_clip_reader_starts_no_child_for_unknown_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clip_module, "_CHILD", "nowhere.py")  # any child process would fail
    for junk in (b"junk!", b"\0\0\0\0\0", b"RIFF\0\0\0\0AVI "):
        assert await refusal(junk) == "unknown_format"
    assert await refusal(GOOD["wav"]) == "damaged"


@pytest.mark.parametrize("rate", [0, 1, 7999, 192_001, 2**31 - 1, 2**32 - 1])
async def test_clip_reader_refuses_forged_sample_rates(rate: int) -> None:
    forged = bytearray(GOOD["wav"])
    forged[24:28] = struct.pack("<I", rate)
    assert await refusal(bytes(forged)) in ("bad_rate", "damaged", "no_audio")


async def test_clip_reader_refuses_forged_channel_count() -> None:
    forged = bytearray(GOOD["wav"])
    forged[22:24] = struct.pack("<H", 65535)
    assert await refusal(bytes(forged)) in ("too_many_channels", "damaged", "no_audio")


async def test_clip_reader_turns_loud_recordings_down() -> None:
    """Recorders of 32-bit floats, and lossy decoders, give samples beyond 1."""
    samples = await read(clips.float_wav(TONE * 4))
    assert np.abs(samples - TONE / np.abs(TONE).max()).max() < 1e-4


async def test_clip_reader_clips_loud_samples() -> None:
    samples = await read(clips.float_wav(TONE * 1e30))
    assert np.abs(samples).max() <= 1.0


async def test_clip_reader_limits_running_and_waiting_clips() -> None:
    reader = ClipReader(clips.RATE, at_once=1, waiting=1)
    first, second = (asyncio.create_task(reader.read(GOOD["wav"])) for _ in range(2))
    await asyncio.sleep(0)
    with pytest.raises(CapacityError) as full:
        await reader.read(GOOD["wav"])
    assert full.value.code is ErrorCode.OVERLOADED
    assert len(await first) == len(await second) == len(TONE)
    assert len(await reader.read(GOOD["flac"])) == len(TONE)


def children(script: Path) -> list[psutil.Process]:
    return [c for c in psutil.Process().children() if str(script) in c.cmdline()]


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A program that does not end, in the place of the one that reads clips."""
    program = tmp_path / "stuck.py"
    program.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(clip_module, "_CHILD", program)
    return program


async def test_clip_reader_kills_child_on_cancellation(stuck: Path) -> None:
    reader = ClipReader(clips.RATE, wall_s=600.0)
    task = asyncio.create_task(reader.read(GOOD["wav"]))
    async with asyncio.timeout(60):
        while not children(stuck):
            await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not children(stuck)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_clip_is_fed_to_child_that_ends_at_once_without_error(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def feed_ended_child() -> None:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec("true", stdin=pipe, stdout=pipe)
        assert child.stdin is not None
        await child.communicate()
        await clip_module._feed(child, GOOD["flac"])

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(feed_ended_child())


async def test_clip_reader_is_overloaded_if_child_takes_too_long(stuck: Path) -> None:
    with pytest.raises(CapacityError) as busy:
        await ClipReader(clips.RATE, wall_s=0.5).read(GOOD["wav"])
    assert busy.value.code is ErrorCode.OVERLOADED
    assert not children(stuck)


@pytest.mark.parametrize(
    "says",
    [
        "",
        "nonsense",
        "[]\n",
        '{"samples": 5}\n',
        '{"samples": 1}\n\0\0\xc0\x7f',
        '{"refused": "<script>"}\n',
        "x" * 5_000_000,
    ],
)
async def test_clip_reader_refuses_invalid_output_of_child(
    says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    liar = tmp_path / "liar.py"
    liar.write_text(f"import sys\nsys.stdout.buffer.write({says.encode('latin-1')!r})\n")
    monkeypatch.setattr(clip_module, "_CHILD", liar)
    with pytest.raises(RequestError) as refused:
        await ClipReader(clips.RATE).read(GOOD["wav"])
    assert refused.value.message in REFUSALS.values()


async def test_clip_reader_is_not_blocked_by_output_of_killed_child(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The unread output is so large that asyncio pauses reading and never sees its end."""
    liar = tmp_path / "liar.py"
    liar.write_text("import sys\nsys.stdout.write('x' * 5_000_000)\n")
    monkeypatch.setattr(clip_module, "_CHILD", liar)

    async def listen(self: ClipReader, child: asyncio.subprocess.Process) -> bytes:
        await asyncio.sleep(0.5)
        raise TimeoutError

    monkeypatch.setattr(ClipReader, "_listen", listen)
    reader = ClipReader(clips.RATE)
    async with asyncio.timeout(60):
        for _ in range(3):  # more than are read at a time
            with pytest.raises(CapacityError):
                await reader.read(GOOD["wav"])


SANDBOX = """
import os, resource, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
import clip_sandbox
clip_sandbox.load_everything()
clip_sandbox.give_up_rights()
def refused(what):
    try:
        what()
    except (OSError, MemoryError, ValueError):
        return True
    return False
print([
    refused(lambda: open("/etc/passwd")),
    refused(lambda: open(sys.argv[2], "w")),
    refused(lambda: socket.socket()),
    refused(lambda: subprocess.run(["true"])),
    refused(lambda: bytearray(2 << 30)),
    refused(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))),
    os.geteuid() != 0,
])
"""


def test_sandbox_denies_files_sockets_processes_and_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SANDBOX, str(CHILD.parent), str(tmp_path / "new")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{[True] * 7}\n"


def test_decode_base64_accepts_data_urls_and_refuses_addresses() -> None:
    data = GOOD["mp3"][:1000]
    text = clips.as_base64(data)
    assert decode_base64(text, 1000, "ref_audio") == data
    assert decode_base64(f"data:audio/mpeg;base64,{text}", 1000, "ref_audio") == data
    for address in ("https://x.example/a.wav", "http://127.0.0.1/", "file:///etc/passwd"):
        with pytest.raises(RequestError) as refused:
            decode_base64(address, 1000, "ref_audio")
        assert (refused.value.code, refused.value.param) == (ErrorCode.UNSUPPORTED, "ref_audio")
    for bad in ("data:audio/wav", "åäö", "a b c", "abc", text + "\n", "=" * 8):
        with pytest.raises(RequestError) as refused:
            decode_base64(bad, 1000, "ref_audio")
        assert refused.value.code is ErrorCode.INVALID_AUDIO
    with pytest.raises(RequestError, match="too large"):
        decode_base64("A" * 2000, 1000, "ref_audio")


def test_sandbox_writes_header_line_and_samples() -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(CHILD), "24000", "10000000", "1", "30"],
        input=GOOD["flac"],
        capture_output=True,
        check=True,
    )
    head, _, body = done.stdout.partition(b"\n")
    assert json.loads(head) == {"format": "flac", "samples": len(TONE)}
    assert np.abs(np.frombuffer(body, "<f4") - TONE).max() < 1e-4
    assert not done.stderr
