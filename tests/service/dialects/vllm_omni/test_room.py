"""vLLM-Omni's socket: spoken text does not count towards the limit of waiting text."""

from __future__ import annotations

from tests.service.dialects.vllm_omni.talk import STREAM, speaking
from tests.service.live import gateway


async def test_spoken_flushes_do_not_count_towards_limit() -> None:
    text = "Nearly a full flush of characters, no more."
    async with gateway(max_text_chars=50) as server, speaking(server, **STREAM) as talk:
        for flush in range(8):
            await talk.say(text)
            await talk.sentence(flush, 0, text)
            await talk.done(flush, 1)
