"""Clips made to hurt: each ends by itself, in bounded memory, with its answer.

Each is read by the sandbox's own code with the sandbox's own limits, in a process that is forked
for it, so that what it cost can be told.
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
#: The sandbox's own bound, and what the process has before it reads.
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
    """What was said of each; all of them ended by themselves and in bounded memory."""
    readings = {name: ask(data) for name, data in files.items()}
    assert readings
    assert {name: one.status for name, one in readings.items() if one.status} == {}
    assert {name: one for name, one in readings.items() if one.most_bytes > MOST_BYTES} == {}
    return {name: one.said for name, one in readings.items()}


def assert_refused(said: dict[str, str], *reasons: str) -> None:
    assert set(reasons) <= set(REFUSALS)
    assert {name: one for name, one in said.items() if one not in reasons} == {}


def assert_heard(said: dict[str, str], kind: str) -> None:
    """The tone of two seconds, all of it but for a codec's edges."""
    for name, one in said.items():
        format, _, samples = one.partition(" ")
        assert format == kind, (name, one)
        assert abs(int(samples) - len(bombs.TONE)) <= 2400, (name, one)


def test_the_sums_of_our_pages_are_right() -> None:
    pages = bombs.ogg_pages(clips.encoded("ogg_opus", bombs.TONE))
    assert len(pages) > 2
    for page in pages:
        assert bombs.resealed(page, serial=int.from_bytes(page[14:18], "little")) == page


@pytest.mark.parametrize("kind", ["ogg_opus", "ogg_vorbis"])
def test_an_ogg_that_never_ends(kind: str, ask: Ask) -> None:
    for name, one in read_all(ask, bombs.endless_ogg(kind)).items():
        format, _, samples = one.partition(" ")
        if format == "ogg":  # what there is of it was heard, and no more than may be
            assert 0 < int(samples) <= 30 * clips.RATE, name
        else:
            assert format in ("too_long", "damaged", "no_audio", "too_short", "bad_rate"), name


def test_an_mp3_under_a_mountain_of_tags(ask: Ask) -> None:
    assert_heard(read_all(ask, bombs.tagged_mp3()), "mp3")


def test_clip_reader_refuses_a_false_mp3(ask: Ask) -> None:
    assert_refused(read_all(ask, bombs.lying_mp3()), "damaged", "no_audio", "too_short", "silent")


def test_a_wav_whose_chunks_are_4_gib(ask: Ask) -> None:
    for name, one in read_all(ask, bombs.lying_wav()).items():
        if one.startswith("wav "):
            assert_heard({name: one}, "wav")
        else:
            assert one in ("damaged", "no_audio", "too_short", "too_large"), name


def test_a_wav_with_another_codec(ask: Ask) -> None:
    assert_refused(read_all(ask, bombs.foreign_wav()), "no_audio", "damaged")


def test_a_flac_with_a_heap_of_metadata(ask: Ask) -> None:
    assert_heard(read_all(ask, bombs.big_flac()), "flac")


def test_a_flac_whose_metadata_lies(ask: Ask) -> None:
    for name, one in read_all(ask, bombs.lying_flac()).items():
        if one.startswith("flac "):
            assert_heard({name: one}, "flac")
        else:
            assert one in ("damaged", "no_audio", "too_short"), name


def test_containers_that_are_not_on_the_list(ask: Ask) -> None:
    files = bombs.foreign_containers()
    # ADTS begins with the same eleven bits as MP3, and nothing that MP3's reader can use follows.
    assert_refused(read_all(ask, {"adts": files.pop("adts")}), "damaged", "no_audio", "too_short")
    files["zip"] = bombs.zipped()
    assert_refused(read_all(ask, files), "unknown_format")


def test_files_that_name_other_files_open_none(ask: Ask, tmp_path: Path) -> None:
    recording = tmp_path / "recording.wav"
    recording.write_bytes(clips.wav(bombs.TONE))
    recording.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        there = f"http://127.0.0.1:{listener.getsockname()[1]}/clip.wav"
        files = bombs.playlists(there, str(recording))
        assert_refused(read_all(ask, files), "unknown_format")
        # forced upon a reader that it has, each in that reader's clothes
        clothes = {"mp3": b"ID3\x04\0\0\0\0\0\0", "flac": b"fLaC", "ogg": b"OggS\0\2"}
        dressed = {
            f"{kind}, {name}": head + data
            for kind, head in clothes.items()
            for name, data in files.items()
        }
        assert_refused(read_all(ask, dressed), "damaged", "no_audio", "too_short")
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_others_are_heard_beside_them() -> None:
    """Through the real reader: bombs at once with a good clip, and another one after them."""
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
