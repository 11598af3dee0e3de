"""A child process for the supervisor's tests: echoes messages, and fails on request."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time

import msgspec

from ipc.child import ChildLink, LinkClosed
from ipc.framing import Fatal, Stop


class Say(msgspec.Struct, tag="say", frozen=True):
    """Echo ``text``, then do ``then``: "go on", "die", "leave" (end with status 0), "freeze" or
    "linger" (close the link, and stay).

    Or do one of these instead: "print" the text, "litter" (make a temporary file and echo its path)
    or "beget" (start a process and echo its id).
    """

    text: str
    then: str = "go on"


class Hello(msgspec.Struct, tag="hello", frozen=True):
    pid: int


class Said(msgspec.Struct, tag="said", frozen=True):
    text: str


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int)
    parser.add_argument("--start", default="well")
    options = parser.parse_args()
    if options.start == "crash":
        raise SystemExit(3)
    with ChildLink[Say | Stop](options.socket, Say | Stop) as link:
        link.progress("think")
        if options.start == "fatal":
            link.send(Fatal("there is nothing to echo with"))
            return
        if options.start == "hang":
            time.sleep(3600)
        if options.start == "slow":
            time.sleep(1.5)
        if options.start == "until stopped":
            try:
                link.receive(wait=True)
            except LinkClosed:
                link.send(Hello(os.getpid()))
            return
        link.send(Hello(os.getpid()))
        try:
            while True:
                for message in link.receive(wait=True):
                    assert isinstance(message, Say)
                    if message.then == "beget":
                        stubborn = "trap '' TERM INT HUP; sleep 3600 & wait; wait"
                        begot = subprocess.Popen(["sh", "-c", stubborn])
                        link.send(Said(str(begot.pid)))
                        continue
                    if message.then == "litter":
                        _, litter = tempfile.mkstemp()
                        link.send(Said(litter))
                        continue
                    if message.then == "print":
                        print(message.text, flush=True)
                        continue
                    link.send(Said(message.text))
                    if message.then == "die":
                        os._exit(1)
                    if message.then == "leave":
                        return
                    if message.then == "linger":
                        socket.socket(fileno=os.dup(options.socket)).shutdown(socket.SHUT_RDWR)
                    if message.then in ("freeze", "linger"):
                        time.sleep(3600)
        except LinkClosed:
            print("goodbye", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
