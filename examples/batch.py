"""Speak every line of a file into a WAV file of its own, several at a time.

    python examples/batch.py lines.txt --out speech/ --at-once 4

Lines that are there already are left out, so a batch that was stopped can be started again. A line
without anything to say, such as a row of dashes, is named and left out too.
Needs talkwire-client (pip install ./clients/python) and a server (make run).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from talkwire_client import Client, ClientError, ErrorCode, ServerError, WavWriter

#: Waits between attempts, where the server does not say when to come back.
RETRY_S = 1.0


async def speak(client: Client, text: str, path: Path, voice: str | None) -> None:
    """Write one text into a file, which has its name when it is complete."""
    part = path.with_suffix(".part")
    # Nobody listens: let the audio come as fast as it is made.
    lead_ms = client.server.limits.max_lead_ms
    async with client.speak(text, voice=voice, max_lead_ms=lead_ms) as speech:
        with WavWriter(part, speech.sample_rate) as wav:
            async for chunk in speech:
                wav.write(chunk.data)
    part.replace(path)


async def worker(client: Client, queue: asyncio.Queue[tuple[str, Path]], voice: str | None) -> None:
    """Speak texts of the queue; come back later where the server is full."""
    while True:
        text, path = await queue.get()
        while True:
            try:
                await speak(client, text, path, voice)
            except ServerError as error:
                if error.code in (ErrorCode.INVALID_TEXT, ErrorCode.TEXT_TOO_LONG):
                    print(f"{path}: {error}", file=sys.stderr)
                    break
                if not error.retryable:
                    raise
                await asyncio.sleep((error.retry_after_ms or 1000 * RETRY_S) / 1000)
            else:
                print(path)
                break
        queue.task_done()


async def main(options: argparse.Namespace) -> None:
    """Speak all lines that are not there yet."""
    options.out.mkdir(parents=True, exist_ok=True)
    # not str.splitlines, which also splits at characters that a text may hold
    lines = options.lines.read_text(encoding="utf-8").split("\n")
    wanted = [(line, options.out / f"{n:05}.wav") for n, line in enumerate(lines, 1) if line]
    queue: asyncio.Queue[tuple[str, Path]] = asyncio.Queue()
    for text, path in wanted:
        if not path.exists():
            queue.put_nowait((text, path))
    async with Client(options.url, api_key=options.api_key) as client:
        at_once = min(options.at_once, client.server.limits.max_contexts)
        workers = [
            asyncio.create_task(worker(client, queue, options.voice)) for _ in range(at_once)
        ]
        finished = asyncio.create_task(queue.join())
        try:
            await asyncio.wait([finished, *workers], return_when=asyncio.FIRST_COMPLETED)
        finally:  # also after Ctrl-C, before the client is closed under the workers
            for task in (*workers, finished):
                task.cancel()
            results = await asyncio.gather(*workers, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result


def count(text: str) -> int:
    """Parse a number from 1 on. Raises ValueError."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("lines", type=Path)
    parser.add_argument("--out", type=Path, default=Path("speech"))
    parser.add_argument("--at-once", type=count, default=4)
    parser.add_argument("--url", default="ws://127.0.0.1:8000")
    parser.add_argument("--api-key")
    parser.add_argument("--voice")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        asyncio.run(main(arguments()))
    except (ClientError, OSError, UnicodeDecodeError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
