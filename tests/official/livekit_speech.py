"""Audio and timed words from the streams of a LiveKit plugin, as an agent session reads them."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass, field

from livekit.agents import tts
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.agents.voice.io import TimedString


@dataclass
class Speech:
    """Audio and words of a stream; ``pcm`` is s16le, mono."""

    pcm: bytes = b""
    rate: int = 0
    words: list[TimedString] = field(default_factory=list)

    def take(self, event: tts.SynthesizedAudio) -> None:
        self.pcm += bytes(event.frame.data)
        self.rate = event.frame.sample_rate
        self.words += event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])

    @property
    def text(self) -> str:
        return "".join(self.words).strip()


async def listen(
    stream: AsyncIterable[tts.SynthesizedAudio], enough: Callable[[Speech], bool] | None = None
) -> Speech:
    """Read the stream to its end, or until ``enough`` returns true."""
    speech = Speech()
    async for event in stream:
        speech.take(event)
        if enough is not None and enough(speech):
            break
    return speech


async def say(plugin: tts.TTS, *pieces: str) -> Speech:
    """Speak a turn whose text is pushed in pieces."""
    async with plugin.stream() as stream:
        for piece in pieces:
            stream.push_text(piece)
        stream.end_input()
        return await listen(stream)
