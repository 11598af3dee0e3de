"""A parent process that starts one echoing child and waits to be killed.

It prints the child's pid when the child is about to freeze, so that it will not notice that its
link has closed.
"""

from __future__ import annotations

import asyncio

from ipc.framing import Alive, Fatal, Progress
from ipc.supervisor import Program, Supervisor
from tests.ipc.echo_child import Hello, Said, Say


async def main() -> None:
    program: Program[Said] = Program(
        module="echo_child",
        args=[],
        inbound=Hello | Said | Alive | Progress | Fatal,
        ready=Hello,
        on_message=lambda said: print(said.text, flush=True),
        on_ready=lambda hello: None,
        on_down=lambda: None,
    )
    supervisor = Supervisor(program)
    await supervisor.start()
    supervisor.send(Say(str(supervisor.pid), then="freeze"))
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main())
