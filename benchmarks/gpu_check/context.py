"""What a stage is, and what it works with. Imports nothing heavy: the runner needs it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_check import arithmetic
from benchmarks.gpu_check.arithmetic import FULL, SMALL, Model, Range
from benchmarks.gpu_check.report import Figure, figure


@dataclass
class Context:
    """What a stage works with. ``work`` is its folder for what later stages use again; ``log`` the
    file that its output goes to.
    """

    work: Path
    log: Path
    small: bool
    figures: list[Figure] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        """Where torch computes."""
        return "cpu" if self.small else "cuda"

    @property
    def model(self) -> Model:
        """The talker's shape."""
        return SMALL if self.small else FULL

    @property
    def bandwidth(self) -> float | None:
        """The GPU's, where it is known."""
        if self.small:
            return None
        import torch

        return arithmetic.bandwidth(torch.cuda.get_device_name())

    def add(
        self, name: str, unit: str, measured: float, known: Range | None = None, **more: bool
    ) -> None:
        """Note a figure."""
        self.figures.append(figure(name, unit, measured, known, **more))

    def check(self, holds: bool, problem: str) -> None:
        """Note what is broken, unless it holds."""
        if not holds:
            self.problems.append(problem)

    def said(self, *texts: str) -> bool:
        """Whether any line of the log so far has all of these."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.is_file() else []
        return any(all(text in line for text in texts) for line in lines)

    def checkpoint(self, name: str = "talker") -> Path:
        """The random talker, made if it is not there. ``conformance``: always the small one."""
        from benchmarks.gpu_check import dummy_model

        small = self.small or name == "conformance"
        return dummy_model.make(
            self.work / name,
            SMALL if small else FULL,
            "cpu" if small else self.device,
            full_codec=not small,
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: ``needs_gpu`` ones are skipped without. ``budget_s`` ends it."""

    name: str
    run: Callable[[Context], None]
    budget_s: float
    needs_gpu: bool = False
