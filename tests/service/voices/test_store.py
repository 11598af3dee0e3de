"""Files of voices and the library over them: damage, limits, full disks and restarts."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save, save_file

from service.voices.store import (
    Voice,
    VoiceFileError,
    VoiceFolder,
    pack,
    unpack,
    unpack_built_in,
)
from streaming.errors import BackendError, ErrorCode, RequestError
from tests.service.voices.stored_voices import CODES, library, voice
from tests.service.voices.voice_server import files_in

VECTOR = np.random.default_rng(1).normal(size=24).astype(np.float32)


def same(one: Voice, two: Voice) -> bool:
    blank = np.zeros((1, 1), np.int16)
    plain = [dataclasses.replace(v, codes=blank, vector=None) for v in (one, two)]
    if one.vector is None or two.vector is None:
        equal = one.vector is two.vector
    else:
        equal = np.array_equal(one.vector, two.vector)
    return equal and np.array_equal(one.codes, two.codes) and repr(plain[0]) == repr(plain[1])


def test_voice_file_keeps_all_fields(tmp_path: Path) -> None:
    for one in (voice(), voice(text=None, text_source=None, language=None, description=None),
                voice(text_source="recognised"), voice(vector=VECTOR)):  # fmt: skip
        assert same(unpack(pack(one)), one)
    file = tmp_path / "v.safetensors"
    file.write_bytes(pack(voice()))
    assert np.array_equal(load_file(file)["codes"], CODES)  # readable by any library for the format


def test_voice_file_without_vector_is_as_before_there_were_vectors() -> None:
    """The checksum of a file written then: of shape and entries, then codes."""
    data = pack(voice())
    size = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + size])
    metadata = entries.pop("__metadata__")
    checksum = metadata.pop("sha256")
    digest = hashlib.sha256(json.dumps([[8, 50], metadata], sort_keys=True).encode())
    digest.update(CODES.tobytes())
    assert (list(entries), checksum) == (["codes"], digest.hexdigest())


@pytest.mark.parametrize(
    "vector", [np.zeros((1, 4), np.float32), np.zeros(4), np.array([0, np.nan], np.float32)]
)
def test_file_with_malformed_vector_is_no_voice(vector: np.ndarray) -> None:
    data = save({"codes": CODES, "vector": vector}, {"name": "anna"})
    for read in (unpack, unpack_built_in):
        with pytest.raises(VoiceFileError, match="vector"):
            read(data)


def test_built_in_voice_may_have_vector() -> None:
    found = unpack_built_in(save({"codes": CODES, "vector": VECTOR}, {"name": "anna"}))
    assert found.vector is not None
    assert np.array_equal(found.vector, VECTOR)


async def test_library_speaks_with_stored_vector(tmp_path: Path) -> None:
    one = voice(vector=VECTOR)
    async with library(tmp_path) as first:
        await first.add(one)
    async with library(tmp_path) as again:
        spoken = again.get("anna")
        assert spoken is not None
        assert spoken.vector is not None
        assert np.array_equal(spoken.vector, VECTOR)
        assert np.array_equal(spoken.frames, CODES.T)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 10**6), st.integers(0, 255), st.booleans())
def test_voice_file_detects_any_changed_byte(at: int, value: int, has_vector: bool) -> None:
    vector = VECTOR if has_vector else None
    whole = pack(dataclasses.replace(voice(vector=vector), id="voice_0123456789abcdef"))
    data = bytearray(whole)
    data[at % len(data)] = value
    if bytes(data) == whole:
        return
    try:
        found = unpack(bytes(data))
    except VoiceFileError:
        return
    # the byte is padding of the header, or another spelling of the same JSON
    assert same(found, unpack(whole))


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=300))
def test_unpack_refuses_random_bytes(data: bytes) -> None:
    for read in (unpack, unpack_built_in):
        with pytest.raises(VoiceFileError):
            read(data)


def test_unpack_refuses_truncated_and_oversized_files() -> None:
    data = pack(voice())
    for cut in (0, 7, 8, 100, len(data) - 1):
        with pytest.raises(VoiceFileError):
            unpack(data[:cut])
    with pytest.raises(VoiceFileError, match="large"):
        unpack(pack(voice(codes=np.zeros((8, 100_000), np.int16))))


async def test_library_keeps_added_voices_across_restart(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "voices"
    anna, bert = voice("anna"), voice("bert")
    async with library(folder) as one:
        await one.add(anna)
        await one.add(bert)
        assert one.names() == ["anna", "bert"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    async with library(folder) as two:
        assert [same(a, b) for a, b in zip(two.voices(), [anna, bert], strict=True)] == [True] * 2
        spoken = two.get("anna")
        assert spoken is not None
        assert np.array_equal(spoken.frames.T, CODES)
        assert two.get(anna.id) is spoken
        await two.remove(anna.id)
        assert two.get("anna") is two.get(anna.id) is None
    async with library(folder) as three:
        assert three.names() == ["bert"]


async def test_library_skips_damaged_files_and_keeps_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with library(tmp_path) as one:
        await one.add(voice("anna"))
        await one.add(voice("bert"))
        damaged = tmp_path / f"{one.find('anna').id}.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    crashed, written = (tmp_path / f"voice_000000000000000{n}.unfinished" for n in (0, 1))
    crashed.write_bytes(b"half")
    os.utime(crashed, (0, 0))
    written.write_bytes(b"half")  # another server is still writing this one
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "voice_1111111111111111.safetensors").symlink_to(damaged)
    async with library(tmp_path, refresh_s=0.01) as two:
        assert two.names() == ["bert"]
        await two._refresh()
    assert sum("cannot be used" in record.message for record in caplog.records) == 1
    assert damaged.exists()
    assert (crashed.exists(), written.exists()) == (False, True)
    assert (tmp_path / "notes.txt").exists()


async def test_library_reads_folder_whose_unfinished_files_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may be mounted only to be read."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    async with library(tmp_path) as one:
        await one.add(voice("anna"))
    crashed = tmp_path / "voice_0000000000000000.unfinished"
    crashed.write_bytes(b"half")
    os.utime(crashed, (0, 0))
    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    async with library(tmp_path) as two:
        assert two.names() == ["anna"]


async def test_library_reads_voice_once_its_file_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another server adds a voice while this one has too many open files."""

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with library(tmp_path) as one, library(tmp_path) as two:
        await one.add(voice("anna"))
        with monkeypatch.context() as patched:
            patched.setattr("pathlib.Path.open", fail)
            await two._refresh()
            await two._refresh()
        assert two.names() == []
        assert sum("cannot be used" in record.message for record in caplog.records) == 1
        await two._refresh()
        assert two.names() == ["anna"]


async def test_library_skips_file_under_id_of_other_voice(tmp_path: Path) -> None:
    (tmp_path / "voice_0000000000000000.safetensors").write_bytes(pack(voice()))
    async with library(tmp_path) as one:
        assert one.names() == []


async def test_library_skips_voices_of_other_codec(tmp_path: Path) -> None:
    async with library(tmp_path, codec="c2") as one:
        await one.add(voice("anna", codec="c2"))
    async with library(tmp_path) as two:
        assert two.names() == []
        await two.add(voice("anna"))
        assert len(files_in(tmp_path)) == 2
        await two._refresh()
        assert two.names() == ["anna"]


@pytest.mark.parametrize("call", ["fsync", "rename", "open"])
async def test_library_add_on_full_disk_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    async with library(tmp_path) as one:
        target = "pathlib.Path.rename" if call == "rename" else f"service.voices.store.os.{call}"
        with monkeypatch.context() as patched:
            patched.setattr(target, full)
            with pytest.raises(BackendError) as failed:
                await one.add(voice())
        assert failed.value.code is ErrorCode.STORAGE_FAILED
        assert failed.value.retryable
        assert (one.names(), files_in(tmp_path)) == ([], [])
        await one.add(voice())
        with monkeypatch.context() as patched:
            patched.setattr("pathlib.Path.unlink", full)
            with pytest.raises(BackendError):
                await one.remove("anna")
        assert one.names() == ["anna"]


def test_voice_is_synced_before_and_after_its_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure, a voice that was added is there, and whole."""
    synced: list[tuple[str, list[str]]] = []

    def note(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        synced.append((name, sorted(path.name for path in tmp_path.iterdir())))

    monkeypatch.setattr("os.fsync", note)
    folder, anna = VoiceFolder(tmp_path), voice("anna")
    folder.write(anna)
    unfinished, file = f"{anna.id}.unfinished", f"{anna.id}.safetensors"
    assert synced == [(unfinished, [unfinished]), (tmp_path.name, [file])]
    folder.delete(anna)
    assert synced[2:] == [(tmp_path.name, [])]


def test_voice_folder_write_over_file_size_limit_leaves_no_file(tmp_path: Path) -> None:
    """The kernel itself refuses the write: files are limited to 100 bytes."""
    (tmp_path / "voice.bin").write_bytes(pack(voice()))
    script = """
import resource, signal, sys
from pathlib import Path
from service.voices.store import unpack
from service.voices.store import VoiceFolder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
voice = unpack(Path(sys.argv[1], "voice.bin").read_bytes())
folder = VoiceFolder(Path(sys.argv[1], "store"))
folder.open()
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    folder.write(voice)
except OSError as error:
    print(error.errno, list(Path(sys.argv[1], "store").iterdir()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "27 []\n"


async def test_library_refuses_to_open_unusable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendError, match="voices_dir"):
        async with library(tmp_path / "file"):
            pass


def test_voice_folder_accepts_only_ids_as_file_names(tmp_path: Path) -> None:
    folder = VoiceFolder(tmp_path)
    for bad in ("../x", "voice_", "voice_0123456789ABCDEF", "voice_0123456789abcdef/"):
        with pytest.raises(ValueError):
            folder.delete(voice(id=bad))


async def test_library_enforces_max_voices_and_unique_names(tmp_path: Path) -> None:
    async with library(None, max_voices=2) as one:
        anna = voice("anna")
        await one.add(anna)
        for name in ("anna", "default", "smart_voice", anna.id, "voice_0123456789abcdef"):
            with pytest.raises(RequestError) as refused:
                await one.add(voice(name))
            assert refused.value.code is ErrorCode.VOICE_EXISTS
        await one.add(voice("bert"))
        with pytest.raises(RequestError) as refused:
            await one.add(voice("carl"))
        assert refused.value.code is ErrorCode.TOO_MANY_VOICES
    async with library(tmp_path, max_voices=2) as two:
        await two.add(voice("anna"))
        await two.add(voice("bert"))
    async with library(tmp_path, max_voices=1) as three:
        assert len(three.names()) == 1


async def test_library_finds_own_voice_with_name_of_shipped_one(tmp_path: Path) -> None:
    """A later version ships a voice with a name that a tenant has used."""
    own = voice("man", tenant="acme")
    async with library(tmp_path) as one:
        await one.add(own)
        one.add_built_in([Voice("man", "man", CODES)])
        assert one.resolve("man", "acme") == one.find("man", "acme").id == own.id
        assert one.resolve("man", None) == one.find("man").id == "man"
        await one.remove("man", "acme")
        assert one.find("man", "acme").id == "man"


def built_in(folder: Path, file: str, codes: np.ndarray, **metadata: str) -> None:
    (folder / "voices").mkdir(exist_ok=True)
    save_file({"codes": codes}, folder / "voices" / f"{file}.safetensors", metadata)


async def test_library_reads_built_in_voices_of_checkpoint(tmp_path: Path) -> None:
    built_in(tmp_path, "a", CODES, name="wren", text="Said.", language="en", description="High.")
    built_in(tmp_path, "b", CODES[:, :20], name="owl", text="Hoo.", default="true")
    built_in(tmp_path, "c", CODES)
    built_in(tmp_path, "d", CODES[:4].copy(), name="few")
    built_in(tmp_path, "e", CODES + np.int16(5), name="high")
    (tmp_path / "voices" / "f.safetensors").write_text("none")
    async with library(None, tmp_path) as one:
        assert one.names() == ["wren", "owl"]
        default, owl, wren = one.get("default"), one.get("owl"), one.get("wren")
        assert default is owl is not None
        assert owl.transcript == "Hoo."
        assert wren is not None
        assert wren.frames.shape == (50, 8)
        found = one.find("wren")
        assert (found.id, found.language, found.description, found.consent) == (
            "wren", "en", "High.", None,
        )  # fmt: skip
        with pytest.raises(RequestError) as refused:
            await one.remove("wren")
        assert refused.value.code is ErrorCode.UNSUPPORTED
        with pytest.raises(RequestError):
            await one.add(voice("owl"))
    async with library(None, tmp_path / "nowhere") as two:
        assert (two.names(), two.get("default")) == ([], None)
