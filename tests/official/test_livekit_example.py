"""The LiveKit example, with the real service."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from livekit.agents import AgentSession
from livekit.agents.utils import http_context

from tests.e2e.live import Service
from tests.official.ears import Ears
from tests.official.livekit_agent import Loudspeaker

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "livekit_agent.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("livekit_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_example_agent_speaks_greeting(speaking: Service, ears: Ears) -> None:
    module, loudspeaker = example(), Loudspeaker()
    async with http_context.open():
        voice = module.voice(f"http://127.0.0.1:{speaking.port}")
        session: AgentSession[None] = AgentSession(tts=voice, vad=None, turn_detection="manual")
        session.output.audio = loudspeaker
        await session.start(module.Receptionist())
        try:
            await session.current_speech
            assert ears.which(loudspeaker.pcm(), among=[module.GREETING]) == module.GREETING
        finally:
            await session.aclose()
            await voice.aclose()
