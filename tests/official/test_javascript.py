"""The vendors' JavaScript SDKs with voice, model and text of their READMEs."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.live import Service

FOLDER = Path(__file__).parent / "js"
#: Lower bound of the size of a second of speech in the format of each README.
LEAST_BYTES = {"openai": 4_000, "elevenlabs": 8_000, "cartesia": 88_200, "deepgram": 24_000}
PACKAGES = {
    "openai": "openai", "elevenlabs": "@elevenlabs/elevenlabs-js",
    "cartesia": "@cartesia/cartesia-js", "deepgram": "@deepgram/sdk",
}  # fmt: skip


@pytest.mark.skipif(
    shutil.which("node") is None or not (FOLDER / "node_modules").exists(),
    reason="needs Node.js and tests/official/js/node_modules (tests/official/run.sh)",
)
@pytest.mark.parametrize("vendor", LEAST_BYTES)
async def test_javascript_sdk_speaks_with_only_address_changed(
    speaking: Service, vendor: str, told: Callable[[str, str], None]
) -> None:
    told(f"{PACKAGES[vendor]} (JavaScript)", "speech over HTTP, as in its README")
    node = await asyncio.create_subprocess_exec(
        "node",
        "speak.mjs",
        vendor,
        f"http://127.0.0.1:{speaking.port}",
        cwd=FOLDER,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        said, errors = await node.communicate()
    assert node.returncode == 0, errors.decode()
    assert json.loads(said)["bytes"] > LEAST_BYTES[vendor]
