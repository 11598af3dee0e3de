"""A LiveKit agent that speaks with Talkwire.

    export LIVEKIT_URL=... LIVEKIT_API_KEY=... LIVEKIT_API_SECRET=... OPENAI_API_KEY=...
    python examples/livekit_agent.py dev

Needs livekit-agents, livekit-plugins-elevenlabs and livekit-plugins-openai, a LiveKit server and a
Talkwire server (make run). LiveKit needs no plugin of ours: its ElevenLabs plugin takes an address,
and carries text as it is written and the times of words. docs/guides/agents.md has the others.
"""

from __future__ import annotations

import os

from livekit.agents import Agent, AgentSession, JobContext, WorkerOptions, cli
from livekit.plugins import elevenlabs, openai

TALKWIRE_URL = os.environ.get("TALKWIRE_HTTP_URL", "http://127.0.0.1:8000")
GREETING = "Good morning, what can I do for you today?"


def voice(url: str = TALKWIRE_URL) -> elevenlabs.TTS:
    """Make the agent's voice: ElevenLabs' plugin with another address."""
    return elevenlabs.TTS(
        base_url=f"{url}/v1",
        api_key=os.environ.get("TALKWIRE_API_KEY", "none"),  # where the server asks for keys
        voice_id="default",
        encoding="pcm_24000",  # MP3, the default, would cost a delay and a decoder
    )


class Receptionist(Agent):
    """Greets, and answers in a sentence or two."""

    def __init__(self) -> None:
        super().__init__(instructions="You answer the telephone. Speak in one or two sentences.")

    async def on_enter(self) -> None:
        """Speak first."""
        self.session.say(GREETING)


async def entrypoint(job: JobContext) -> None:
    """Join a room and talk."""
    session: AgentSession[None] = AgentSession(
        stt=openai.STT(), llm=openai.LLM(), tts=voice(), turn_detection="stt"
    )
    await job.connect()
    await session.start(Receptionist(), room=job.room)


if __name__ == "__main__":
    cli.run_app(WorkerOptions(entrypoint_fnc=entrypoint))
