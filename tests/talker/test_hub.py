"""``ModelFolder``: local folders, downloads in a child process, one look-up for both engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import codec.workers
import talker.engine
from ipc.supervisor import Program, Watch
from service.build import build_runtime
from service.settings import Settings
from talker.checkpoint import open_checkpoint
from talker.engine import TalkerProcessEngine
from talker.hub import ModelFolder
from talker.shape import CheckpointError
from tests.talker import small_hub


@pytest.fixture
def hub(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[small_hub.SmallHub]:
    with small_hub.serving(tiny_checkpoint) as (hub, address):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield hub


def nothing(seconds: float) -> None:
    """Ignore progress reports."""


async def test_hub_id_is_downloaded_once_to_commit_folder(
    hub: small_hub.SmallHub,
) -> None:
    folder, told = ModelFolder(small_hub.MODEL), list[float]()
    waiting = asyncio.create_task(folder.found())
    found = await folder.find(told.append)
    assert found.name == hub.commit
    assert (found / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert told
    hub.commit, asked = "b" * 40, hub.asked
    assert await waiting == await folder.found() == found
    assert hub.asked == asked > 0


async def test_model_card_of_hub_id_is_downloaded_for_its_licence(hub: small_hub.SmallHub) -> None:
    hub.files["README.md"] = b"---\nlicense: cc-by-4.0\n---\n"
    found = await ModelFolder(small_hub.MODEL).find(nothing)
    assert open_checkpoint(str(found)).licence.name == "cc-by-4.0"


async def test_cancelled_download_ends_child_process(hub: small_hub.SmallHub) -> None:
    hub.held.set()
    folder = ModelFolder(small_hub.MODEL)
    finding = asyncio.create_task(folder.find(nothing))
    assert await asyncio.to_thread(hub.is_downloading.wait, 60)
    assert downloads()
    finding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finding
    assert not downloads()


def downloads() -> list[str]:
    """Command lines of children that download."""
    lines = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # the child has ended meanwhile
            lines.append(" ".join(child.cmdline()))
    return [line for line in lines if "talker.hub" in line]


async def test_download_error_names_offline_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError, match=r"cannot get nobody/nothing .*HF_HUB_OFFLINE"):
        await ModelFolder("nobody/nothing").find(nothing)


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        ((404, "RepoNotFound"), "there is no such model, or it is private"),
        ((401, "RepoNotFound"), "there is no such model, or it is private"),
        ((403, "GatedRepo"), "it is gated"),
        ((401, ""), "it answers with status 401: check HF_TOKEN"),
        ((403, ""), "it answers with status 403: check HF_TOKEN"),
        ((400, ""), "it answers with status 400"),
    ],
)
async def test_refusal_of_hub_is_one_line_with_reason(
    hub: small_hub.SmallHub,
    capfd: pytest.CaptureFixture[str],
    refusal: tuple[int, str],
    reason: str,
) -> None:
    hub.refusal = refusal
    with pytest.raises(CheckpointError) as error:
        await ModelFolder(small_hub.MODEL).find(nothing)
    assert str(error.value).startswith(f"cannot get org/voice from the hub: {reason}")
    assert "Traceback" not in capfd.readouterr().err


async def test_unreachable_hub_is_named(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused_tcp_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(CheckpointError, match=r"the hub: it cannot be reached"):
        await ModelFolder("org/voice").find(nothing)


async def test_download_process_death_is_reported(
    hub: small_hub.SmallHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("talker.hub.sys.executable", "/bin/false")
    with pytest.raises(CheckpointError, match=r"the download of org/voice died"):
        await ModelFolder(small_hub.MODEL).find(nothing)
    assert hub.asked == 0


async def test_local_link_is_resolved_and_missing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "first")
    told: list[float] = []
    assert await ModelFolder(str(tmp_path / "link")).find(told.append) == tmp_path / "first"
    assert not told
    with pytest.raises(CheckpointError, match="no folder"):
        await ModelFolder(str(tmp_path / "gone")).find(nothing)


async def test_talker_and_codec_read_same_resolved_folder(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process gets the resolved folder, so a configured link may point elsewhere later."""
    read: list[str] = []

    class Started:
        def __init__(self, program: Program[Any], watch: Watch) -> None:
            read.append(program.args[program.args.index("--model") + 1])

        async def start(self) -> None:
            """Return at once."""

        async def stop(self) -> None:
            """Return at once."""

    monkeypatch.setattr(talker.engine, "Supervisor", Started)
    monkeypatch.setattr(codec.workers, "Supervisor", Started)
    (tmp_path / "link").symlink_to(tiny_checkpoint)
    settings = Settings(model=str(tmp_path / "link"))
    runtime = build_runtime(settings, lambda worker, phase, seconds: None)
    decoding = asyncio.create_task(runtime.engines.codec.start())
    await asyncio.sleep(0)
    assert not decoding.done()
    engine = runtime.engines.talker
    assert isinstance(engine, TalkerProcessEngine)
    await engine.start()
    await decoding
    assert read == [str(await engine.folder.found())] * 2 == [str(tiny_checkpoint)] * 2
    await asyncio.gather(runtime.engines.talker.stop(), runtime.engines.codec.stop())
