"""Clients to be killed: a process that forks one for each line ``URL TEXT_JSON`` on its stdin.

It answers each line with the client's pid. The clients speak the native protocol with the
threading client of websockets and read everything, until they are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys

from websockets.sync.client import connect


def client(url: str, text: str) -> None:
    """Speak one context after another until killed or disconnected."""
    with contextlib.suppress(Exception), connect(url, compression=None) as wire:
        for number in range(1_000_000):
            context = {"context_id": str(number)}
            for message in (
                {"type": "context.create", **context},
                {"type": "text.append", "text": text, **context},
                {"type": "context.end", **context},
            ):
                wire.send(json.dumps(message))
            while True:
                answer = wire.recv()
                if isinstance(answer, str) and json.loads(answer)["type"] == "context.done":
                    break


def main() -> None:
    """Fork until stdin ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    for line in sys.stdin:
        url, text = line.split(" ", 1)
        pid = os.fork()
        if not pid:
            client(url, json.loads(text))
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
