"""vLLM-Omni's socket: what was spoken takes no room from what follows."""

from __future__ import annotations

from tests.service.dialects.vllm_omni.talk import STREAM, speaking
from tests.service.live import gateway


async def test_flushes_that_are_waited_for_may_be_as_many_as_one_likes() -> None:
    text = "Nearly a full flush of characters, no more."
    async with gateway(max_text_chars=50) as server, speaking(server, **STREAM) as talk:
        for flush in range(8):
            await talk.say(text)
            await talk.sentence(flush, 0, text)
            await talk.done(flush, 1)
