"""Makes voices, and libraries for them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from service.voices.registry import VoiceLibrary
from service.voices.store import (
    Consent,
    Voice,
)
from tests.service.live import SPEC

CODES = np.random.default_rng(0).integers(0, 1024, (8, 50)).astype(np.int16)


def voice(name: str = "anna", **changes: object) -> Voice:
    made = Voice(
        VoiceLibrary.new_id(),
        name,
        CODES,
        "What is said.",
        "en",
        "A description.",
        created_at=1_800_000_000,
        codec="c1",
        text_source="given",
        consent=Consent("Anna", "Yes, I agree: “always”.", "2026-11-20T10:00:00+00:00"),
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def library(
    folder: Path | None,
    checkpoint: Path | None = None,
    codec: str = "c1",
    max_voices: int = 100,
    refresh_s: float = 3600.0,
) -> AsyncIterator[VoiceLibrary]:
    made = VoiceLibrary(folder, max_voices, refresh_s)
    await made.open(SPEC, codec, checkpoint)
    try:
        yield made
    finally:
        await made.close()
