"""A parent process that starts one echoing child, prints its pid, and waits to be killed."""

from __future__ import annotations

import asyncio

from echo_child import Hello, Said

from ipc.framing import Alive, Fatal, Progress
from ipc.supervisor import Supervisor


async def main() -> None:
    supervisor: Supervisor[Said] = Supervisor(
        "echo_child",
        [],
        inbound=Hello | Said | Alive | Progress | Fatal,
        ready=Hello,
        on_message=lambda message: None,
        on_ready=lambda hello: print(hello.pid, flush=True),
        on_down=lambda: None,
    )
    await supervisor.start()
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main())
