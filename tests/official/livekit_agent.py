"""A real LiveKit agent session with one TTS plugin, and a recorder of its audio."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from livekit import rtc
from livekit.agents import Agent, AgentSession, tts
from livekit.agents.voice import io


class Loudspeaker(io.AudioOutput):
    """Records the audio frames. If ``endless``, playback lasts until it is cleared."""

    def __init__(self, *, endless: bool = False) -> None:
        super().__init__(
            label="test",
            capabilities=io.AudioOutputCapabilities(pause=False),
            sample_rate=24_000,
        )
        self.frames: list[rtc.AudioFrame] = []
        self.cleared_at: int | None = None
        self.plays = asyncio.Event()
        self._endless = endless
        self._segment_s = 0.0

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if not self._segment_s:
            self.on_playback_started(created_at=0.0)
        self._segment_s += frame.duration
        self.frames.append(frame)
        self.plays.set()

    def flush(self) -> None:
        super().flush()
        if not self._endless:
            self._finish(interrupted=False)

    def clear_buffer(self) -> None:
        self.cleared_at = len(self.frames)
        self._finish(interrupted=True)

    def _finish(self, *, interrupted: bool) -> None:
        if self._segment_s:
            self.on_playback_finished(playback_position=self._segment_s, interrupted=interrupted)
        self._segment_s = 0.0

    def pcm(self) -> bytes:
        return b"".join(bytes(frame.data) for frame in self.frames)


async def written(text: str) -> AsyncIterator[str]:
    """Stream a text in tokens, like an LLM."""
    for token in re.findall(r"\s*\S{1,4}", text):
        yield token
        await asyncio.sleep(0)


@asynccontextmanager
async def agent(
    voice: tts.TTS, *, endless: bool = False, aligned: bool = False
) -> AsyncIterator[tuple[AgentSession[None], Loudspeaker]]:
    """Run an agent that has only TTS. ``aligned``: its transcript is made of the timed words."""
    loudspeaker = Loudspeaker(endless=endless)
    session: AgentSession[None] = AgentSession(
        tts=voice, vad=None, turn_detection="manual", use_tts_aligned_transcript=aligned
    )
    session.output.audio = loudspeaker
    await session.start(Agent(instructions=""))
    try:
        yield session, loudspeaker
    finally:
        await session.aclose()
        await voice.aclose()
