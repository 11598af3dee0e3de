"""The native protocol's frames: which of them say that audio came late, and what a cancel takes
back with them.
"""

from __future__ import annotations

import asyncio

from streaming import wire
from streaming.events import SendAudio
from streaming.spec import Encoding
from streaming.wire_format import AudioFlags, AudioHeader
from streaming.words import WordTiming
from tests.service.audio_signal import voice
from tests.service.test_audio_native import Rig


async def test_the_first_frame_alone_says_that_audio_came_late() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE, None, 20))
        rig.audio(960, first=True)
        rig.context.on_audio(SendAudio(voice(960), 960, False, False, False, True))
        await rig.take()  # audio.started
        flags = [AudioHeader.unpack(await rig.take()).flags for _ in range(4)]
        none = AudioFlags.NONE
        assert flags == [AudioFlags.FIRST, none, AudioFlags.DISCONTINUITY, none]


async def test_a_cancel_takes_words_back_with_their_audio() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, wire.AudioOptions(Encoding.PCM_S16LE))
        rig.audio(960, first=True)
        await rig.take()  # audio.started
        rig.context.words([WordTiming("One", 0, 3, 0.0, 40.0)])
        assert not rig.outbox.is_empty
        rig.context.revoke()
        assert rig.outbox.is_empty
