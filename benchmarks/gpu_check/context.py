"""Stages and their context. Imports nothing large, since the runner needs it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_check import arithmetic
from benchmarks.gpu_check.arithmetic import FULL, SMALL, Model, Range
from benchmarks.gpu_check.report import Figure, figure


@dataclass
class Context:
    """The context of a stage. ``work`` is its folder for files that later stages reuse; ``log`` is
    the file of its output.
    """

    work: Path
    log: Path
    small: bool
    figures: list[Figure] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        """torch's device."""
        return "cpu" if self.small else "cuda"

    @property
    def model(self) -> Model:
        """The talker's shape."""
        return SMALL if self.small else FULL

    @property
    def bandwidth(self) -> float | None:
        """The GPU's bytes per second, if known."""
        if self.small:
            return None
        import torch

        return arithmetic.bandwidth(torch.cuda.get_device_name())

    def add(
        self, name: str, unit: str, measured: float, known: Range | None = None, **more: bool
    ) -> None:
        """Add a figure."""
        self.figures.append(figure(name, unit, measured, known, **more))

    def check(self, holds: bool, problem: str) -> None:
        """Add a problem unless ``holds``."""
        if not holds:
            self.problems.append(problem)

    def said(self, *texts: str) -> bool:
        """Whether any line of the log so far contains all of these."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.is_file() else []
        return any(all(text in line for text in texts) for line in lines)

    def checkpoint(self, name: str = "talker") -> Path:
        """Return the random talker, which is made if missing. ``conformance``: always the small
        one.
        """
        from benchmarks.gpu_check import dummy_model

        small = self.small or name == "conformance"
        return dummy_model.make(
            self.work / name,
            SMALL if small else FULL,
            "cpu" if small else self.device,
            full_codec=not small,
            ends=name == "conformance",
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage. It is skipped if it ``needs_gpu`` and there is none. ``budget_s`` is its limit."""

    name: str
    run: Callable[[Context], None]
    budget_s: float
    needs_gpu: bool = False
