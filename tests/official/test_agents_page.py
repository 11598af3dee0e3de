"""The snippets of docs/guides/agents.md, run in a Pipecat pipeline or a LiveKit session."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest
from livekit.agents.utils import http_context
from pipecat.services.openai.tts import OpenAITTSService

from tests.e2e.live import Service
from tests.official.ears import Ears
from tests.official.livekit_agent import agent, written
from tests.official.pipecat_pipeline import conversation
from tests.official.turns import TURN

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "agents.md").read_text()


def snippets(framework: str) -> list[Any]:
    """The Python snippets in a framework's section, with their headings as ids."""
    (section,) = re.findall(rf"\n## {framework}\n(.*?)(?=\n## |\Z)", PAGE, re.S)
    found = re.findall(r"\n### ([^\n]+)\n(?:(?!\n### ).)*?```python\n(.*?)```", section, re.S)
    return [pytest.param(code, id=heading.replace(" ", "-")) for heading, code in found]


def run(code: str, speaking: Service) -> Any:
    """Run a snippet with the address of the real service; return its ``tts``."""
    assert "127.0.0.1:8000" in code
    names: dict[str, Any] = {}
    exec(code.replace("127.0.0.1:8000", f"127.0.0.1:{speaking.port}"), names)
    return names["tts"]


def test_page_has_all_snippets_and_tested_versions() -> None:
    assert [param.id for param in snippets("Pipecat")] == [
        "The-native-protocol",
        "As-ElevenLabs",
        "As-Cartesia",
        "As-Deepgram",
        "As-Deepgram-Flux",
        "As-OpenAI",
    ]
    ways = {param.id for param in snippets("LiveKit")}
    vendors = ("ElevenLabs", "Cartesia", "Deepgram", "Deepgram-Flux", "OpenAI", "LiveKit-Inference")
    assert ways == {"The-native-protocol", *(f"As-{vendor}" for vendor in vendors)}
    pipecat, livekit = map(importlib.metadata.version, ("pipecat-ai", "livekit-agents"))
    assert f"(Pipecat {pipecat}, LiveKit Agents {livekit})" in PAGE


@pytest.mark.parametrize("code", snippets("Pipecat"))
async def test_pipecat_snippet_speaks_turn(code: str, speaking: Service, ears: Ears) -> None:
    tts = run(code, speaking)
    tts._stop_frame_timeout_s = 60.0  # a busy machine may take longer than Pipecat waits
    async with conversation(tts) as talk:
        await talk.say(*re.findall(r"\s*\S{1,4}", TURN))
    if isinstance(tts, OpenAITTSService):  # does not close its client
        await tts._client.close()
    assert ears.which(talk.pcm()) == TURN
    assert " ".join(talk.text().split()) == TURN
    speaking.until("nothing is left", "tts_contexts_active ", 0)


@pytest.mark.parametrize("code", snippets("LiveKit"))
async def test_livekit_snippet_speaks_turn(code: str, speaking: Service, ears: Ears) -> None:
    async with http_context.open(), agent(run(code, speaking)) as (session, loudspeaker):
        await session.say(written(TURN))
        assert ears.which(loudspeaker.pcm()) == TURN
    speaking.until("nothing is left", "tts_contexts_active ", 0)
