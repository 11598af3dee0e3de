"""Deepgram's mp3, as its documentation says that it is."""

from __future__ import annotations

import io

import av

from tests.service.dialects.deepgram.talk import post
from tests.service.live import gateway


async def test_mp3_has_48_kbit_unless_another_is_asked_for() -> None:
    async with gateway() as server:
        for query, bit_rate in (("", 48_000), ("encoding=mp3&bit_rate=32000", 32_000)):
            answer = await post(server, query)
            with av.open(io.BytesIO(answer.content)) as file:
                assert file.streams.audio[0].codec_context.bit_rate == bit_rate
