"""The steps of a training run: counted, reported with the time left, saved and resumed."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

_SMOOTHING = 0.97
_FLOOR = 0.02
#: Usual share of the steps in which the learning rate falls.
FALL = 0.25
#: Usual number of steps between two saved states.
EVERY = 300
#: A loss that exceeds its mean by this factor is not just a bad batch: the run has diverged.
_DIVERGED = 20.0
#: Losses below this are practically zero, and jump by more than that factor.
_LEAST = 0.05


class Progress:
    """Iterates over the remaining steps.

    The state is saved in ``folder`` every ``every`` steps: weights, the optimisers' moments, and
    the ``more`` given to :meth:`keep`, as safetensors. The learning rate rises, stays, and falls to
    2 % in the last steps. The state at the beginning of the fall is saved separately
    (``NAME.steady``), so that a run extended later resumes from there, as if it had been planned so
    from the start. If a run is shortened so that the fall should have begun already, it begins at
    once.

    Args:
        name: of the trained part; the state's file is ``NAME.state.safetensors``.
        folder: where the state is saved.
        steps: total number of steps.
        every: steps between two tests; the state is saved after each.
        report: steps between two reports of the time left.
        rate: factor of all learning rates.
        fall: share of the steps in which the rate falls. A resumed run needs the same.
    """

    def __init__(
        self, name: str, folder: Path, steps: int, every: int = EVERY, report: int = 50,
        rate: float = 1.0, fall: float = FALL,
    ) -> None:  # fmt: skip
        self._name, self._file = name, folder / f"{name}.state.safetensors"
        self._steady = folder / f"{name}.steady.safetensors"
        self._steps, self._every, self._report, self._rate = steps, every, report, rate
        self._fall = fall
        self._means: dict[str, float] = {}
        self._kept: dict[str, torch.Tensor] = {}
        self.step = 0
        if self._file.exists():
            self._kept = load_file(self._file)
            if self._longer() and self._steady.exists():
                self._kept = load_file(self._steady)
            self.step = int(self._kept["step"])
            if self._shorter():
                partial = self._steady.with_suffix(".partial")
                shutil.copyfile(self._file, partial)
                partial.rename(self._steady)
        self._told = self.step, time.monotonic()

    def _longer(self) -> bool:
        planned, step = int(self._kept["planned"]), int(self._kept["step"])
        return self._steps > planned and step > self._fall_of(planned)

    def _shorter(self) -> bool:
        """Whether the rate falls from now on, although it would not have by the earlier plan."""
        planned = int(self._kept["planned"])
        return self._fall_of(self._steps) < self.step < self._fall_of(planned)

    def _fall_of(self, steps: int) -> int:
        """The step from which the rate of a run of ``steps`` falls."""
        return round(steps * (1 - self._fall))

    def __iter__(self) -> Iterator[int]:
        self._told = self.step, time.monotonic()
        while self.step < self._steps:
            yield self.step
            self.step += 1
            if self.step % self._report == 0:
                self._tell()

    def slope(self, warm: int) -> float:
        """Return the learning rate's factor: ``warm`` steps up, constant, and finally down."""
        fall = (self._steps - self.step) / max(1, self._steps - self._fall_of(self._steps))
        return self._rate * min(1.0, (self.step + 1) / warm) * min(1.0, max(_FLOOR, fall))

    def note(self, **values: float) -> None:
        """Record losses for the report.

        Raises ArithmeticError if one is not finite, or so large that the run has diverged. The
        state saved last is from before that, and a run may resume from it at a lower rate.
        """
        for name, value in values.items():
            before = self._means.get(name, value)
            if not math.isfinite(value) or abs(value) > _DIVERGED * max(abs(before), _LEAST):
                raise ArithmeticError(
                    f"{self._name}: {name} is {value:.3g} at step {self.step}, after {before:.3g}; "
                    "go on at a lower rate"
                )
            self._means[name] = _SMOOTHING * before + (1 - _SMOOTHING) * value

    @property
    def due(self) -> bool:
        """Whether to test and save at this step."""
        done = self.step + 1
        return done % self._every == 0 or done in (self._steps, self._fall_of(self._steps))

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(f"{self._name} {self.step + 1}/{self._steps}: {text}", file=sys.stderr, flush=True)

    def keep(
        self, module: nn.Module, *optimisers: torch.optim.Optimizer,
        more: Mapping[str, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Save everything that a resumed run needs, in one atomic write."""
        tensors = {f"model.{k}": v.detach().cpu().clone() for k, v in module.state_dict().items()}
        for number, optimiser in enumerate(optimisers):
            for index, state in optimiser.state_dict()["state"].items():
                for name, value in state.items():
                    if value is not None:
                        key = f"optimiser.{number}.{index}.{name}"
                        tensors[key] = torch.as_tensor(value).clone()
        tensors |= {f"more.{name}": value.clone() for name, value in (more or {}).items()}
        tensors["step"] = torch.tensor(self.step + 1)
        tensors["planned"] = torch.tensor(self._steps)
        files = [self._file]
        if self.step + 1 == self._fall_of(self._steps):
            files.append(self._steady)
        for file in files:
            fresh = file.with_suffix(".partial")
            save_file({name: t.contiguous() for name, t in tensors.items()}, fresh)
            fresh.rename(file)

    def restore(
        self, module: nn.Module, *optimisers: torch.optim.Optimizer
    ) -> dict[str, torch.Tensor]:
        """Resume from the last ``keep``, if any. Returns the ``more`` that it was given."""
        if not self._kept:
            return {}
        module.load_state_dict(_below("model.", self._kept))
        for number, optimiser in enumerate(optimisers):
            state: dict[int, dict[str, Any]] = {}
            for key, value in _below(f"optimiser.{number}.", self._kept).items():
                index, name = key.split(".", 1)
                state.setdefault(int(index), {})[name] = value
            groups = optimiser.state_dict()["param_groups"]
            optimiser.load_state_dict({"state": state, "param_groups": groups})
        return _below("more.", self._kept)

    def _tell(self) -> None:
        # since the last report, as the first step can take long to set up
        (step, then), now = self._told, time.monotonic()
        self._told = self.step, now
        seconds = (now - then) / (self.step - step)
        left = seconds * (self._steps - self.step) / 60
        means = ", ".join(f"{name} {value:.3f}" for name, value in self._means.items())
        self.step -= 1
        self.say(f"{means}, {seconds:.2f} s a step, {left:.0f} min left")
        self.step += 1


def restore_weights(name: str, folder: Path, module: nn.Module) -> int:
    """Load a run's weights so far into ``module``. Returns its number of steps, 0 if none."""
    file = folder / f"{name}.state.safetensors"
    if not file.exists():
        return 0
    kept = load_file(file)
    module.load_state_dict(_below("model.", kept))
    return int(kept["step"])


def _below(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
