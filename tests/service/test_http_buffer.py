"""What waits for the writer of an HTTP response."""

from __future__ import annotations

import numpy as np

from service.http_buffer import SpeechBuffer
from streaming.events import SendAudio
from streaming.words import WordTiming
from tests.service.live import gateway


async def test_words_go_before_their_audio() -> None:
    async with gateway() as server:
        buffer = SpeechBuffer(server.runtime, "openai")
        for first in (True, False):
            offset = 0 if first else 960
            audio = SendAudio(np.zeros(960, np.float32), offset, first, False, False, False)
            words = (WordTiming("One", 0, 3, 0.0, 40.0),)
            buffer.on_audio(audio)
            buffer.words(words)
            assert await buffer.get() == words
            assert await buffer.get() is audio
