"""The bit rate of MP3, as in Deepgram's documentation."""

from __future__ import annotations

import io

import av

from tests.service.dialects.deepgram.talk import post
from tests.service.live import gateway


async def test_mp3_bit_rate_defaults_to_48_kbit_s() -> None:
    async with gateway() as server:
        for query, bit_rate in (("", 48_000), ("encoding=mp3&bit_rate=32000", 32_000)):
            answer = await post(server, query)
            with av.open(io.BytesIO(answer.content)) as file:
                assert file.streams.audio[0].codec_context.bit_rate == bit_rate
