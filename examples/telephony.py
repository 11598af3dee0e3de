"""Speak into a telephone call: mu-law at 8 kHz, 20 ms packets of RTP, at the pace of the call.

    python examples/telephony.py "Hello there." --to 127.0.0.1:4000

At the other end is whatever takes RTP of payload type 0: a PBX, a media server, a softphone.
Needs talkwire-client (pip install ./clients/python) and a server (make run).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import struct
import sys

from talkwire_client import Client, ClientError, Encoding, Speech

#: RTP's static payload type 0 is mu-law at 8 kHz (RFC 3551).
PCMU, SAMPLE_RATE, PACKET_MS = 0, 8000, 20
PACKET_SAMPLES = SAMPLE_RATE * PACKET_MS // 1000
SILENCE = b"\xff"
REPORT_PACKETS = 25


class RtpStream:
    """Packets of one call (RFC 3550)."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._address = address
        self._source, self._sequence = random.getrandbits(32), random.getrandbits(16)
        self._timestamp = random.getrandbits(32)
        self._marker = 1  # on the first packet of a talkspurt

    def send(self, payload: bytes) -> None:
        """Send one packet of mu-law samples."""
        header = struct.pack(
            ">BBHII", 0x80, self._marker << 7 | PCMU, self._sequence, self._timestamp, self._source
        )
        self._socket.sendto(header + payload, self._address)
        self._marker = 0
        self._sequence = (self._sequence + 1) % 2**16
        self._timestamp = (self._timestamp + PACKET_SAMPLES) % 2**32

    def pause(self, seconds: float) -> None:
        """Let time pass without packets, so that later ones are not taken for late ones."""
        self._timestamp = (self._timestamp + round(seconds * SAMPLE_RATE)) % 2**32
        self._marker = 1

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


async def speak_into(call: RtpStream, speech: Speech) -> None:
    """Send a speech at the pace of the call, and report what has been heard of it.

    The reports let the server stay a little ahead of the call, and know what was heard if the
    caller interrupts: then ``await speech.cancel()`` stops it at once.
    """
    loop = asyncio.get_running_loop()
    due: float | None = None
    sent = 0
    async for chunk in speech:  # 20 ms each, but for the last one of an utterance
        now = loop.time()
        if due is None:
            due = now
        elif now - due > PACKET_MS / 1000:
            # A chunk that came late moves the rest: the caller has heard a pause.
            call.pause(now - due)
            due = now
        await asyncio.sleep(due - now)
        call.send(chunk.data.ljust(PACKET_SAMPLES, SILENCE))
        due += PACKET_MS / 1000
        sent += chunk.samples
        if chunk.header.sequence % REPORT_PACKETS == 0:
            await speech.report_playback(sent)


async def main(options: argparse.Namespace) -> None:
    """Speak one text into one call."""
    call = RtpStream(options.to)
    try:
        async with (
            Client(options.url, api_key=options.api_key) as client,
            client.speak(
                options.text,
                voice=options.voice,
                encoding=Encoding.PCM_MULAW,
                sample_rate=SAMPLE_RATE,
                frame_ms=PACKET_MS,
                max_lead_ms=1000,
            ) as speech,
        ):
            await speak_into(call, speech)
    finally:
        call.close()


def address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``. Raises argparse.ArgumentTypeError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, with a port of 1 to 65535")
    return host, int(port)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("text")
    parser.add_argument(
        "--to", type=address, default="127.0.0.1:4000", help="where the call's RTP goes"
    )
    parser.add_argument("--url", default="ws://127.0.0.1:8000")
    parser.add_argument("--api-key")
    parser.add_argument("--voice")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        asyncio.run(main(arguments()))
    except (ClientError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
