"""The JavaScript client and the page's functions, tested under Node.js."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from loadtest.fakes.talker import TIMED_SPEC, FakeTalker
from talkwire_client import protocol
from tests.clients.fake_server import Peer, fake_server
from tests.service.auth.keyring import entry, write_keys
from tests.service.live import gateway

NODE = shutil.which("node")
JS = Path(__file__).parent / "js"
SENTENCES = ("A sentence to say.", "And a second one, which is longer than the first.")

pytestmark = pytest.mark.skipif(NODE is None, reason="no Node.js here")


async def node_tests(name: str, **env: str) -> None:
    """Run a file of Node.js tests. Its output is shown if it fails."""
    assert NODE is not None
    # Node.js 20 has WebSocket behind this flag; later versions accept it.
    process = await asyncio.create_subprocess_exec(
        NODE,
        "--experimental-websocket",
        "--test",
        "--test-reporter=spec",
        "--test-timeout=30000",
        str(JS / name),
        env=os.environ | env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert "pass 0" not in said.decode()


async def hole(peer: Peer) -> None:
    """Open a context whose second frame is missing."""
    create: protocol.ContextCreate = await peer.open_context()
    await peer.say(protocol.AudioStarted(create.context_id, create.audio.encoding, 24_000))
    await peer.audio(0, b"\0\0")
    await peer.audio(0, b"\0\0", skip=1)


async def test_js_client_tests_pass_against_live_servers(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        live = await stack.enter_async_context(gateway(FakeTalker(spec=TIMED_SPEC)))
        busy = await stack.enter_async_context(gateway(max_contexts=1))
        loading = await stack.enter_async_context(gateway())
        crowded = await stack.enter_async_context(gateway(max_connections=1))
        keys = write_keys(
            tmp_path / "keys.json", entry("the-key", "acme"), entry("mute", "acme", "voices:write")
        )
        locked = await stack.enter_async_context(gateway(api_keys_file=keys))
        starting = await stack.enter_async_context(gateway(api_keys_file=keys))
        holed = await stack.enter_async_context(fake_server(hole))
        loading.codec.is_ready = starting.codec.is_ready = False
        whole = np.concatenate([live.whole(sentence, 5) for sentence in SENTENCES])
        (tmp_path / "whole.f32").write_bytes(whole.astype("<f4").tobytes())
        await node_tests(
            "talkwire.test.mjs",
            LIVE=live.url,
            BUSY=busy.url,
            LOADING=loading.url,
            CROWDED=crowded.url,
            LOCKED=locked.url,
            LOCKED_LOADING=starting.url,
            HOLE=holed,
            GONE="ws://127.0.0.1:9/v1/tts/stream",
            WHOLE=str(tmp_path / "whole.f32"),
        )
        await live.until_free()


@pytest.mark.parametrize("name", ["faults", "page", "record"])
async def test_js_tests_pass_without_server(name: str) -> None:
    await node_tests(f"{name}.test.mjs")
