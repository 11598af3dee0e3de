"""Run Autobahn's fuzzing client against the service's WebSocket stack with an echo dialect.

``make test-autobahn``; ``ARGS="9.*"`` selects cases. Exits with 1 if a case fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.conformance.echo_server import echo_server

#: All but 12 and 13, which test compression: the service accepts none.
CASES = ("1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*")
#: Cases 9.* send at most 16 MiB.
_MAX_BYTES = 32 << 20
_AGENT = "talkwire"
#: A connection may be failed before the messages that arrive with the fault are answered (3, 4,
#: 5), and at the end of a frame rather than at the first invalid byte of UTF-8 (6.4.3, 6.4.4).
_LENIENT = ("3.", "4.", "5.15", "6.4.3", "6.4.4")


async def fuzz(python2: str, suite: Path, out: Path, cases: list[str]) -> dict[str, Any]:
    """Run the cases and return Autobahn's index by case, which is empty if it did not run."""
    await asyncio.to_thread(out.mkdir, parents=True, exist_ok=True)
    index = out / "index.json"
    index.unlink(missing_ok=True)
    async with echo_server(max_message_bytes=_MAX_BYTES) as port:
        spec = {
            "outdir": str(out),
            "servers": [{"agent": _AGENT, "url": f"ws://127.0.0.1:{port}/"}],
            "cases": cases,
            "exclude-cases": [],
            "exclude-agent-cases": {},
        }
        (out / "spec.json").write_text(json.dumps(spec))
        run = (python2, suite / "bin/wstest", "-m", "fuzzingclient", "-s", out / "spec.json")
        environment = {**os.environ, "PYTHONPATH": str(suite)}
        with (out / "log").open("wb") as log:
            child = await asyncio.create_subprocess_exec(
                *run, stdout=log, stderr=log, env=environment
            )
            await child.wait()
    found: dict[str, Any] = json.loads(index.read_text())[_AGENT] if index.exists() else {}
    return found


def wrong(found: dict[str, Any]) -> list[str]:
    """The failed cases, with a reason each."""
    return [
        f"{case}: {one['behavior']}, close {one['behaviorClose']} ({one['remoteCloseCode']})"
        for case, one in found.items()
        if (
            one["behavior"] not in ("OK", "INFORMATIONAL")
            and not (one["behavior"] == "NON-STRICT" and case.startswith(_LENIENT))
        )
        or one["behaviorClose"] not in ("OK", "INFORMATIONAL")
    ]


def main() -> None:
    """Run the cases and print the failures."""
    parser = argparse.ArgumentParser(prog="tests.conformance.autobahn", description=__doc__)
    parser.add_argument("--python2", required=True)
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("cases", nargs="*", default=CASES)
    options = parser.parse_args()
    suite, out = options.suite.resolve(), options.out.resolve()
    found = asyncio.run(fuzz(options.python2, suite, out, list(options.cases)))
    counts = Counter(one["behavior"] for one in found.values())
    print(f"{len(found)} cases: " + ", ".join(f"{n} {how}" for how, n in counts.most_common()))
    for line in (faults := wrong(found)):
        print(f"  {line}")
    if not found:
        print(f"nothing was run; see {out / 'log'}", file=sys.stderr)
    sys.exit(bool(faults) or not found)


if __name__ == "__main__":
    main()
