"""A LiveKit agent that speaks with Talkwire.

    export LIVEKIT_URL=... LIVEKIT_API_KEY=... LIVEKIT_API_SECRET=... OPENAI_API_KEY=...
    python examples/livekit_agent.py dev

Needs livekit-agents, livekit-plugins-openai and livekit-plugins-talkwire (pip install
./clients/python ./clients/livekit), a LiveKit server and a Talkwire server (make run).
docs/guides/agents.md tells how other vendors' plugins speak with Talkwire.
"""

from __future__ import annotations

import logging

from livekit.agents import Agent, AgentSession, JobContext, WorkerOptions, cli
from livekit.plugins import openai, talkwire

from talkwire_client import ContextCancelled

GREETING = "Good morning, what can I do for you today?"
log = logging.getLogger(__name__)


def voice(url: str | None = None) -> talkwire.TTS:
    """Make the agent's voice. Without an address it is TALKWIRE_URL in the environment or this
    machine; a key that the server asks for is TALKWIRE_API_KEY.
    """
    tts = talkwire.TTS(url=url, voice="default", max_lead_ms=10_000)
    tts.on("speech_cancelled", on_cancelled)
    return tts


def on_cancelled(report: ContextCancelled) -> None:
    """Log what the user heard before interrupting."""
    log.info("heard: %r, not heard: %r", report.text_spoken, report.text_remaining)


class Receptionist(Agent):
    """Greets, and answers in a sentence or two."""

    def __init__(self) -> None:
        super().__init__(instructions="You answer the telephone. Speak in one or two sentences.")

    async def on_enter(self) -> None:
        """Speak first."""
        self.session.say(GREETING)


async def entrypoint(job: JobContext) -> None:
    """Join a room and talk. The transcript follows the words as they are spoken."""
    session: AgentSession[None] = AgentSession(
        stt=openai.STT(),
        llm=openai.LLM(),
        tts=voice(),
        turn_detection="stt",
        use_tts_aligned_transcript=True,
    )
    await job.connect()
    await session.start(Receptionist(), room=job.room)


if __name__ == "__main__":
    cli.run_app(WorkerOptions(entrypoint_fnc=entrypoint))
