"""Reading of clips in the sandbox: formats, limits, forged headers and failing child processes."""

from __future__ import annotations

import asyncio
import base64
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

from service.auth.caller import Caller, serving
from service.voices import clip_head
from service.voices import clip_reader as clip_module
from service.voices.clip_reader import REFUSALS, ClipLimits, ClipReader, decode_base64
from streaming.errors import CapacityError, ErrorCode, RequestError
from tests.service.voices import clips
from tests.waiting import until

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
    if "wav" in kind or kind in ("flac", "aiff", "mov_alac", "matroska"):
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
        ("too_many_channels", f"{clip_head.MAX_CHANNELS}"),
        ("too_many_channels", f"{clip_head.MAX_SAMPLES_PER_S:,} samples a second"),
        ("bad_rate", f"{clip_head.RATES[0] // 1000} to {clip_head.RATES[-1] // 1000} kHz"),
    ]:
        assert f" {limit}" in REFUSALS[reason]


async def test_clip_reader_decodes_flac_and_mp3_behind_tags() -> None:
    tags = clips.id3(0, b"") + clips.id3(300, bytes(300))
    assert np.array_equal(await read(tags + GOOD["flac"]), await read(GOOD["flac"]))
    assert np.array_equal(await read(tags + GOOD["mp3"]), await read(GOOD["mp3"]))
    assert np.array_equal(await read(tags + GOOD["aac"]), await read(GOOD["aac"]))


async def test_clip_reader_decodes_joined_mp3_files_with_tags() -> None:
    """A recording is often put together from files that each begin with a tag."""
    tag = clips.id3(300, bytes(300))
    samples = await read(tag + GOOD["mp3"] + tag + GOOD["mp3"])
    assert abs(len(samples) - 2 * len(await read(GOOD["mp3"]))) <= 2400
    assert await refusal(GOOD["mp3"] + b"abc" * 500 + GOOD["mp3"]) == "damaged"


async def test_clip_reader_decodes_mp3_behind_zeros() -> None:
    assert np.array_equal(await read(bytes(500) + GOOD["mp3"]), await read(GOOD["mp3"]))
    assert np.array_equal(await read(bytes(500) + GOOD["aac"]), await read(GOOD["aac"]))


def flac_head(rate: int, channels: int, samples: int) -> bytes:
    """Make the beginning of a FLAC file from RFC 9639."""
    packed = rate << 44 | (channels - 1) << 41 | 15 << 36 | samples
    return b"fLaC\x80\0\0\x22" + bytes(10) + packed.to_bytes(8, "big") + bytes(16)


def wav_head(codec: int, channels: int, rate: int, size: int = 0) -> bytes:
    format_ = struct.pack("<HHIIHH", codec, channels, rate, 0, 2 * channels, 16)
    return b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0" + format_ + b"data" + struct.pack("<I", size)


def ogg_head(packet: bytes, flags: int = 2) -> bytes:
    return b"OggS\0" + bytes([flags]) + bytes(20) + bytes([1, len(packet)]) + packet


JUNK = [
    ("unknown_format", b""),
    ("unknown_format", b"junk!"),
    ("unknown_format", b"\0\0\0\0\0"),
    ("unknown_format", b"RIFF\0\0\0\0AVI "),
    ("unknown_format", b"\0\0\0\x20ftxp"),
    ("damaged", b"RIFF\0\0\0\0WAVEfmt "),
    ("damaged", b"RIFF\0\0\0\0WAVE" + b"LIST\xff\xff\xff\xff" + bytes(500)),
    ("no_audio", wav_head(0x55, 1, 24_000)),
    ("bad_rate", wav_head(1, 1, 7_999)),
    ("too_many_channels", wav_head(1, 9, 24_000)),
    ("too_many_channels", wav_head(3, 3, 192_000)),
    ("too_long", wav_head(1, 1, 8_000) + bytes(481_000)),
    ("too_long", wav_head(1, 1, 8_000, 2**32 - 1) + bytes(481_000)),
    ("damaged", b"fLaC" + bytes(99)),
    ("damaged", flac_head(48_000, 1, 0)[:-1]),
    ("bad_rate", flac_head(0, 1, 48_000)),
    ("too_many_channels", flac_head(192_000, 8, 192_000)),
    ("too_long", flac_head(48_000, 2, 48_000 * 31)),
    ("too_long", clips.id3(300, bytes(300)) + flac_head(48_000, 2, 48_000 * 31)),
    ("damaged", b"OggS junk that is long enough for a page's head"),
    ("damaged", ogg_head(b"OpusHead\1\2", flags=0)),
    ("too_many_channels", ogg_head(b"OpusHead\1\xff" + bytes(17))),
    ("bad_rate", ogg_head(b"\1vorbis\0\0\0\0\2" + (4_000).to_bytes(4, "little") + bytes(14))),
    ("damaged", b"\xff\xfb\xff\xff" + bytes(99)),
    ("damaged", b"\xff\xfb\x90\xff" + bytes(99)),
    ("damaged", b"\xff\xeb\x90\x00" + bytes(99)),
]


@pytest.mark.parametrize(("reason", "data"), JUNK)
async def test_clip_reader_starts_no_child_for_clip_whose_head_shows_fault(
    reason: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clip_module, "_CHILD", "nowhere.py")
    assert await refusal(data) == reason


async def test_child_is_started_for_clip_whose_head_shows_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clip_module, "_CHILD", "nowhere.py")
    for kind, data in GOOD.items():
        with pytest.raises(RequestError, match="damaged"):
            await read(data)
        assert clip_head.clip_format(data, 30.0) in kind.replace("opus", "ogg").replace(
            "vorbis", "ogg"
        )


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


def tenant(name: str) -> Caller:
    return Caller(None, name, frozenset())


async def test_clip_reader_limits_running_and_waiting_clips_and_each_clients_share() -> None:
    reader = ClipReader(clips.RATE, at_once=1, waiting=3)

    async def ask(client: Caller) -> int | ErrorCode:
        with serving(client):
            try:
                return len(await reader.read(GOOD["wav"]))
            except CapacityError as error:
                return error.code

    askers = [tenant(name) for name in ("a", "a", "a", "b", "b", "c")]
    heard, limited = len(TONE), ErrorCode.RATE_LIMITED
    answers = await asyncio.gather(*map(ask, askers))
    assert answers == [heard, heard, limited, heard, heard, ErrorCode.OVERLOADED]
    assert await ask(tenant("a")) == heard


def children(script: Path) -> list[psutil.Process]:
    return [c for c in psutil.Process().children() if str(script) in c.cmdline()]


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A program that does not end, in the place of the one that reads clips."""
    program = tmp_path / "stuck.py"
    program.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(clip_module, "_CHILD", program)
    return program


async def test_clip_is_decoded_below_priority_of_engines(stuck: Path) -> None:
    reader = ClipReader(clips.RATE, wall_s=600.0)
    task = asyncio.create_task(reader.read(GOOD["wav"]))
    wanted = min(19, psutil.Process().nice() + 5)
    await until(lambda: [child.nice() for child in children(stuck)] == [wanted])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_clip_reader_kills_child_on_cancellation(stuck: Path) -> None:
    reader = ClipReader(clips.RATE, wall_s=600.0)
    task = asyncio.create_task(reader.read(GOOD["wav"]))
    await until(lambda: children(stuck))
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
    for bad in ("data:audio/wav", "åäö", "a", "a,bc", text + "!", text[:8] + "=" + text[8:]):
        with pytest.raises(RequestError) as refused:
            decode_base64(bad, 1000, "ref_audio")
        assert refused.value.code is ErrorCode.INVALID_AUDIO
    with pytest.raises(RequestError, match="too large"):
        decode_base64("A" * 2000, 1000, "ref_audio")
    with pytest.raises(RequestError, match="too large"):
        decode_base64(clips.as_base64(bytes(1001)), 1000, "ref_audio")


def test_decode_base64_accepts_what_tools_write() -> None:
    data = GOOD["mp3"][:1000]
    text = clips.as_base64(data)
    lines = [text[at : at + 76] for at in range(0, len(text), 76)]
    assert "+" in text
    assert "/" in text
    for written in (
        "\n".join(lines) + "\n",
        "\r\n".join(lines),
        f"  {text}  ",
        text.rstrip("="),
        base64.urlsafe_b64encode(data).decode(),
        base64.urlsafe_b64encode(data).decode().rstrip("="),
        f"data:audio/mpeg;base64,{text}\n",
    ):
        assert decode_base64(written, 1000, "ref_audio") == data


def test_sandbox_writes_header_line_and_samples() -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(CHILD), "24000", "10000000", "1", "30"],
        input=GOOD["flac"],
        capture_output=True,
        check=True,
    )
    head, _, body = done.stdout.partition(b"\n")
    assert json.loads(head) == {"filtered": True, "format": "flac", "samples": len(TONE)}
    assert np.abs(np.frombuffer(body, "<f4") - TONE).max() < 1e-4
    assert not done.stderr
