"""What a run shows while it goes on: a bar on a terminal, a line per run elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from loadtest.records import Plan
from loadtest.run import Progress as Listener


class Display:
    """Use it as a context manager; ``begin`` starts the next run's bar."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[turns]} turns"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def begin(self, label: str, plan: Plan) -> Listener:
        """A run of this plan begins; call what is returned with its progress."""
        whole = plan.duration_s
        if not self._console.is_terminal:
            self._console.print(f"{label}: {whole:.0f} s, then up to {plan.grace_s:.0f} s more")
        task = self._bars.add_task(label, total=whole, turns=0)

        def update(elapsed_s: float, turns: int) -> None:
            self._bars.update(task, completed=min(elapsed_s, whole), turns=turns)

        return update
