"""Malicious clips: each gets an answer in bounded memory, and its reader exits normally.

Each is read by the sandbox's own code under the sandbox's own limits, in a forked process whose
memory can be measured.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.voices import clip_reader as clip_module
from service.voices.clip_reader import REFUSALS, ClipReader
from streaming.errors import ErrorCode, RequestError
from tests.service.voices import clip_bombs as bombs
from tests.service.voices import clips

CHILD = Path(clip_module.__file__).with_name("clip_sandbox.py")
#: The sandbox's own limit, and the memory of the process before it reads.
MOST_BYTES = (512 << 20) + (256 << 20)

FORKED = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import av, clip_sandbox
av.logging.set_level(None)
wanted = clip_sandbox.Wanted(24000, 10 << 20, 1.0, 30.0)
clip_sandbox.load_everything()
for line in sys.stdin:
    data = open(line.strip(), "rb").read()
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        clip_sandbox.give_up_rights()
        assert clip_sandbox.filter_system_calls()
        try:
            samples, said = clip_sandbox.read_clip(data, wanted)
            said += " %d" % len(samples)
        except clip_sandbox.Refused as refusal:
            said = str(refusal)
        except MemoryError:
            said = "too_large"
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    _, status, used = os.wait4(child, 0)
    said = os.read(ours, 100).decode()
    os.close(ours)
    print(json.dumps([said, status, used.ru_maxrss << 10]), flush=True)
"""


@dataclass(frozen=True)
class Reading:
    said: str
    status: int
    most_bytes: int


Ask = Callable[[bytes], Reading]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    path = tmp_path_factory.mktemp("clips") / "clip"
    command = [sys.executable, "-c", FORKED, str(CHILD.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:

        def one(data: bytes) -> Reading:
            assert reader.stdin is not None
            assert reader.stdout is not None
            path.write_bytes(data)
            reader.stdin.write(str(path).encode() + b"\n")
            reader.stdin.flush()
            return Reading(*json.loads(reader.stdout.readline()))

        yield one
        assert reader.stdin is not None
        reader.stdin.close()


def read_all(ask: Ask, files: dict[str, bytes]) -> dict[str, str]:
    """Return the answer to each clip; fail on an abnormal exit or unbounded memory."""
    readings = {name: ask(data) for name, data in files.items()}
    assert readings
    assert {name: one.status for name, one in readings.items() if one.status} == {}
    assert {name: one for name, one in readings.items() if one.most_bytes > MOST_BYTES} == {}
    return {name: one.said for name, one in readings.items()}


def assert_refused(said: dict[str, str], *reasons: str) -> None:
    assert set(reasons) <= set(REFUSALS)
    assert {name: one for name, one in said.items() if one not in reasons} == {}


def assert_heard(said: dict[str, str], kind: str) -> None:
    """Assert that the whole tone of two seconds was read, up to a codec's padding."""
    for name, one in said.items():
        format, _, samples = one.partition(" ")
        assert format == kind, (name, one)
        assert abs(int(samples) - len(bombs.TONE)) <= 2400, (name, one)


def test_ogg_page_checksum_matches_encoder() -> None:
    pages = bombs.ogg_pages(clips.encoded("ogg_opus", bombs.TONE))
    assert len(pages) > 2
    for page in pages:
        assert bombs.resealed(page, serial=int.from_bytes(page[14:18], "little")) == page


@pytest.mark.parametrize("kind", ["ogg_opus", "ogg_vorbis"])
def test_endless_ogg_is_read_up_to_limit_or_refused(kind: str, ask: Ask) -> None:
    for name, one in read_all(ask, bombs.endless_ogg(kind)).items():
        format, _, samples = one.partition(" ")
        if format == "ogg":  # only the audio it contains is read, up to the limit
            assert 0 < int(samples) <= 30 * clips.RATE, name
        else:
            assert format in ("too_long", "damaged", "no_audio", "too_short", "bad_rate"), name


def test_mp3_with_huge_tags_is_read(ask: Ask) -> None:
    assert_heard(read_all(ask, bombs.tagged_mp3()), "mp3")


def test_false_mp3_is_refused(ask: Ask) -> None:
    assert_refused(read_all(ask, bombs.lying_mp3()), "damaged", "no_audio", "too_short", "silent")


def test_wav_with_false_chunk_sizes_is_read_or_refused(ask: Ask) -> None:
    for name, one in read_all(ask, bombs.lying_wav()).items():
        if one.startswith("wav "):
            assert_heard({name: one}, "wav")
        else:
            assert one in ("damaged", "no_audio", "too_short", "too_large"), name


def test_wav_with_unsupported_codec_is_refused(ask: Ask) -> None:
    assert_refused(read_all(ask, bombs.foreign_wav()), "no_audio", "damaged")


def test_flac_with_huge_metadata_is_read(ask: Ask) -> None:
    assert_heard(read_all(ask, bombs.big_flac()), "flac")


def test_flac_with_false_metadata_is_read_or_refused(ask: Ask) -> None:
    for name, one in read_all(ask, bombs.lying_flac()).items():
        if one.startswith("flac "):
            assert_heard({name: one}, "flac")
        else:
            assert one in ("damaged", "no_audio", "too_short"), name


def test_unsupported_containers_are_refused(ask: Ask) -> None:
    files = bombs.foreign_containers()
    files["zip"] = bombs.zipped()
    assert_refused(read_all(ask, files), "unknown_format")


def test_containers_with_false_tables_are_read_or_refused(ask: Ask) -> None:
    for name, one in read_all(ask, bombs.lying_containers()).items():
        assert one.split()[0] in {"mov", "matroska", *REFUSALS}, name


def test_playlists_open_no_other_file_or_address(ask: Ask, tmp_path: Path) -> None:
    recording = tmp_path / "recording.wav"
    recording.write_bytes(clips.wav(bombs.TONE))
    recording.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        there = f"http://127.0.0.1:{listener.getsockname()[1]}/clip.wav"
        files = bombs.playlists(there, str(recording))
        assert_refused(read_all(ask, files), "unknown_format")
        # with the first bytes of an accepted format, so that its reader gets the file
        clothes = {"mp3": b"ID3\x04\0\0\0\0\0\0", "flac": b"fLaC", "ogg": b"OggS\0\2"}
        dressed = {
            f"{kind}, {name}": head + data
            for kind, head in clothes.items()
            for name, data in files.items()
        }
        assert_refused(read_all(ask, dressed), "damaged", "no_audio", "too_short")
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_clip_reader_reads_valid_clips_beside_bombs() -> None:
    """The real reader gets bombs together with a valid clip, and another valid one afterwards."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reader = ClipReader(clips.RATE, at_once=2, waiting=16)
    files = [bombs.lying_mp3()["256 MiB that are not there"], bombs.zipped()]
    files += bombs.lying_flac().values()
    good = asyncio.create_task(reader.read(clips.wav(bombs.TONE)))

    async def refused(data: bytes) -> ErrorCode | None:
        try:
            await reader.read(data)
        except RequestError as error:
            return error.code
        return None

    answers = await asyncio.gather(*map(refused, files))
    assert answers[:2] == [ErrorCode.INVALID_AUDIO] * 2
    assert set(answers) <= {ErrorCode.INVALID_AUDIO, None}
    assert len(await good) == len(bombs.TONE)
    assert len(await reader.read(clips.encoded("flac", bombs.TONE))) == len(bombs.TONE)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 256 << 10
