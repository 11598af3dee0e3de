"""A fake talker that records its requests."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import Any

from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from streaming.ports import RowGenerator, SpeechRequest
from talker.families.higgs_v3.prompts import DELIVERY_TAGS


class RecordingTalker(FakeTalker):
    """Records each request at its first row."""

    def __init__(self, **options: Any) -> None:
        spec = replace(FAKE_SPEC, segment_chars=None, delivery_tags=DELIVERY_TAGS)
        super().__init__(frames_per_character=0.2, spec=spec, **options)
        self.spoken: list[tuple[str, str]] = []
        self.checked: list[str] = []

    def check(self, request: SpeechRequest) -> None:
        self.checked.append(request.text)
        super().check(request)

    async def generate(self, request: SpeechRequest) -> RowGenerator:
        async with aclosing(super().generate(request)) as pieces:
            is_first = True
            async for piece in pieces:
                if is_first:
                    self.spoken.append((request.delivery, request.text))
                is_first = False
                yield piece
