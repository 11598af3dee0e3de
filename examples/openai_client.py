"""Stream speech with OpenAI's own client: only the address is another.

    python examples/openai_client.py "Hello there." --out hello.wav

Needs openai (pip install openai) and a server (make run).
"""

from __future__ import annotations

import argparse
import sys
import wave
from pathlib import Path

from httpx2 import HTTPError  # comes with openai
from openai import OpenAI, OpenAIError

#: Raw PCM of OpenAI's API is mono, 16 bits, at this rate.
SAMPLE_RATE = 24_000


def main(options: argparse.Namespace) -> None:
    """Write the speech into a file while it arrives."""
    client = OpenAI(base_url=options.url, api_key=options.api_key)
    with (
        client.audio.speech.with_streaming_response.create(
            model="tts-1",  # OpenAI's names of models and voices are aliases here
            voice=options.voice,
            input=options.text,
            response_format="pcm",
        ) as response,
        wave.open(str(options.out), "wb") as file,
    ):
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        for data in response.iter_bytes():
            file.writeframes(data)
    print(f"wrote {options.out}")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("text")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none", help="where the server asks for keys")
    parser.add_argument("--voice", default="alloy")
    parser.add_argument("--out", type=Path, default=Path("speech.wav"))
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main(arguments())
    # openai's own errors end where the audio begins: a connection that breaks is its HTTP library's
    except (OpenAIError, HTTPError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
