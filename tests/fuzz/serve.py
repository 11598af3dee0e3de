"""A gateway with fake engines for an external fuzzer: ``python -m tests.fuzz.serve``.

Prints its address and serves until it is terminated.
"""

from __future__ import annotations

import asyncio
import contextlib

from loadtest.fakes.talker import TIMED_SPEC, FakeTalker
from tests.service.live import gateway


async def _main() -> None:
    talker = FakeTalker(frames_per_character=0.02, spec=TIMED_SPEC)
    async with gateway(talker, max_voices=20) as server:
        print(server.http, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main())
