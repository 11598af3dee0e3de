"""The gateway alone: the service's own app with a fake talker and a fake codec.

It serves to measure the gateway's cost, without speech. The fakes run in the gateway's process, so
their cost is included. The codec therefore returns the same noise to all.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from loadtest.fakes.codec import FakeCodecEngine, NoiseDecoder
from loadtest.fakes.talker import FakeTalker
from loadtest.process_stats import allow_open_files
from loadtest.program import bounded
from service.app import create_app
from service.build import assemble
from service.engines.contracts import Engines
from service.gateway import settle
from service.listening import configure_listener
from service.settings import Settings
from service.transport.server_config import server_config
from streaming.spec import CodecSpec

_SPEC = CodecSpec(24_000, 960, (1024,) * 8, 0, 0)


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line: the speed of the fakes, and the gateway's capacity."""
    parser = argparse.ArgumentParser(prog="loadtest.fake_server", description=__doc__)
    parser.add_argument("--capacity", type=bounded(int, 1), default=16)
    parser.add_argument("--connections", type=bounded(int, 1), default=4096)
    parser.add_argument(
        "--row-s", type=bounded(float, 0), default=0.008, help="seconds per row (RTF 0.2)"
    )
    parser.add_argument(
        "--stream-s",
        type=bounded(float, 0),
        default=0.0,
        help="what each other stream adds to that; admission is measured then",
    )
    parser.add_argument("--first-row-s", type=bounded(float, 0), default=0.02)
    parser.add_argument("--decode-s", type=bounded(float, 0), default=0.004)
    parser.add_argument("--tls-certificate", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--port", type=bounded(int, 0, 65535), default=0)
    return parser.parse_args(argv)


async def serve(chosen: argparse.Namespace) -> None:
    """Serve until a signal."""
    settings = Settings(
        admission="measured" if chosen.stream_s else "fixed",
        max_contexts=chosen.capacity,
        max_connections=chosen.connections,
        tls_certificate=chosen.tls_certificate,
        tls_key=chosen.tls_key,
    )
    talker = FakeTalker(
        row_s=chosen.row_s,
        stream_s=chosen.stream_s,
        first_row_s=chosen.first_row_s,
        capacity=chosen.capacity,
    )
    codec = FakeCodecEngine(_SPEC, chosen.decode_s, decoder=NoiseDecoder(_SPEC))
    runtime = assemble(settings, Engines(talker, codec))
    talker.source = runtime.voices.library
    failures: list[Exception] = []

    def on_fatal(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    server = uvicorn.Server(server_config(create_app(runtime, on_fatal), settings, grace_s=2))
    with socket.create_server(("127.0.0.1", chosen.port), backlog=1024) as listener:
        configure_listener(listener, settings.slow_consumer_s)
        settle()
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
        await server.serve(sockets=[listener])
    if failures:
        raise failures[0]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the process."""
    chosen = options(argv)
    allow_open_files()
    with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
        runner.run(serve(chosen))


if __name__ == "__main__":
    main()
