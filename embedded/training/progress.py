"""A training run's steps: counted, reported with the time that is left, kept, and resumed."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

_SMOOTHING = 0.97
_FLOOR = 0.03


class Progress:
    """Iterating it yields the steps that are left. State is kept in ``folder`` every ``every``
    steps: weights and the optimisers' moments, as safetensors. ``rate`` scales every slope.
    """

    def __init__(
        self, name: str, folder: Path, steps: int, every: int = 300, report: int = 50,
        rate: float = 1.0,
    ) -> None:  # fmt: skip
        self._name, self._file = name, folder / f"{name}.state.safetensors"
        self._steps, self._every, self._report, self._rate = steps, every, report, rate
        self._means: dict[str, float] = {}
        self._extra: dict[str, torch.Tensor] = {}
        self.step = 0
        if self._file.exists():
            self._extra = load_file(self._file)
            self.step = int(self._extra["step"])
        self._first, self._began = self.step, time.monotonic()

    def __iter__(self) -> Iterator[int]:
        while self.step < self._steps:
            yield self.step
            self.step += 1
            if self.step % self._report == 0:
                self._tell()

    @property
    def share(self) -> float:
        """How much is done, 0-1."""
        return self.step / self._steps

    def slope(self, warm: int) -> float:
        """The learning rate's factor: ``warm`` steps up, then a cosine down to 3 % of ``rate``."""
        cosine = 0.5 * (1 + math.cos(math.pi * self.share))
        return self._rate * min(1.0, (self.step + 1) / warm) * (cosine * (1 - _FLOOR) + _FLOOR)

    def note(self, **values: float) -> None:
        """Remember losses for the report. ArithmeticError when one is not finite."""
        for name, value in values.items():
            if not math.isfinite(value):
                raise ArithmeticError(f"{self._name}: {name} is {value} at step {self.step}")
            before = self._means.get(name, value)
            self._means[name] = _SMOOTHING * before + (1 - _SMOOTHING) * value

    @property
    def due(self) -> bool:
        """Whether this step is one to test and keep."""
        return (self.step + 1) % self._every == 0 or self.step + 1 == self._steps

    def say(self, text: str) -> None:
        """A line for people."""
        print(f"{self._name} {self.step + 1}/{self._steps}: {text}", file=sys.stderr, flush=True)

    def keep(self, module: nn.Module, *optimisers: torch.optim.Optimizer) -> None:
        """Write everything a resumed run needs, whole or not at all."""
        tensors = {f"model.{k}": v.detach().cpu().clone() for k, v in module.state_dict().items()}
        for number, optimiser in enumerate(optimisers):
            for index, state in optimiser.state_dict()["state"].items():
                for name, value in state.items():
                    if value is not None:
                        tensors[f"optimiser.{number}.{index}.{name}"] = torch.as_tensor(
                            value
                        ).clone()
        tensors["step"] = torch.tensor(self.step + 1)
        fresh = self._file.with_suffix(".partial")
        save_file({name: t.contiguous() for name, t in tensors.items()}, fresh)
        fresh.rename(self._file)

    def restore(self, module: nn.Module, *optimisers: torch.optim.Optimizer) -> None:
        """Go on where ``keep`` was last called, if it was."""
        if not self._extra:
            return
        prefix = "model."
        module.load_state_dict(
            {k[len(prefix) :]: v for k, v in self._extra.items() if k.startswith(prefix)}
        )
        for number, optimiser in enumerate(optimisers):
            layout = optimiser.state_dict()
            state: dict[int, dict[str, Any]] = {}
            for key, value in self._extra.items():
                if key.startswith(f"optimiser.{number}."):
                    _, _, index, name = key.split(".", 3)
                    state.setdefault(int(index), {})[name] = value
            optimiser.load_state_dict({"state": state, "param_groups": layout["param_groups"]})

    def _tell(self) -> None:
        seconds = (time.monotonic() - self._began) / (self.step - self._first)
        left = seconds * (self._steps - self.step) / 60
        means = ", ".join(f"{name} {value:.3f}" for name, value in self._means.items())
        self.step -= 1
        self.say(f"{means}, {seconds:.2f} s a step, {left:.0f} min left")
        self.step += 1
