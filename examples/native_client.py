"""Speak text while it is written, and stop when the listener interrupts.

    python examples/native_client.py "Hello there. How are you?" --out hello.wav
    echo "Hello there." | python examples/native_client.py - --play

Needs talkwire-client (pip install ./clients/python) and a server (make run).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from talkwire_client import Client, ClientError, PlayerError, Speech, WavWriter, play


async def tokens(text: str) -> AsyncIterator[str]:
    """Stand in for an LLM: yield the text a few characters at a time."""
    for token in re.findall(r"\s*\S{1,4}", text):
        yield token
        await asyncio.sleep(0.02)


async def write(speech: Speech, path: Path) -> None:
    """Write the audio into a file while it arrives."""
    with WavWriter(path, speech.sample_rate) as wav:
        async for chunk in speech:
            wav.write(chunk.data)


async def main(options: argparse.Namespace) -> None:
    """Speak one text."""
    text = sys.stdin.read() if options.text == "-" else options.text
    async with (
        Client(options.url, api_key=options.api_key) as client,
        client.speak(tokens(text), voice=options.voice) as speech,
    ):
        listening = asyncio.create_task(
            play(speech) if options.play else write(speech, options.out)
        )
        # Ctrl-C stands in for a listener who interrupts.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, listening.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await listening
        heard = await speech.cancel()
        if heard is not None:  # None: it was spoken to its end
            print(f"unheard: {heard.text_remaining}")
        elif speech.metrics is not None:
            print(f"{speech.metrics.audio_ms / 1000:.1f} s of speech")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("text", help="what to say; - reads standard input")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key")
    parser.add_argument("--voice")
    parser.add_argument("--out", type=Path, default=Path("speech.wav"))
    parser.add_argument("--play", action="store_true", help="play instead of writing a file")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        asyncio.run(main(arguments()))
    except (ClientError, PlayerError, OSError, ValueError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
