"""Validation of sampling parameters, with the checkpoint's defaults for those not given."""

from __future__ import annotations

import math
from dataclasses import dataclass

from streaming.errors import RequestError
from streaming.ports import Sampling
from streaming.protocol.field_errors import invalid_parameter, unsupported
from talker.checkpoint import MIN_TEMPERATURE
from talker.families.family import SamplingDefaults

MAX_TEMPERATURE = 2.0
#: Seeds are non-negative int64: vLLM reads -1 as "no seed".
MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Sampling parameters with all defaults filled in. A ``seed`` of None asks for a random one.

    ``top_k`` is always set, since top-p alone would sort every codebook.
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    ras_win_len: int = 0
    ras_max_repeat: int = 1


def resolve_sampling(
    requested: Sampling, defaults: SamplingDefaults, codebook_size: int
) -> ResolvedSampling:
    """Check a request's sampling parameters and fill in the defaults.

    Raises RequestError, naming the parameter: INVALID_PARAMETER, or UNSUPPORTED for
    repetition-aware sampling with a model that does not support it.
    """
    temperature = _number("temperature", requested.temperature, defaults.temperature)
    if temperature != 0 and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise _invalid("temperature", f"0, or from {MIN_TEMPERATURE} to {MAX_TEMPERATURE}")
    top_p = _number("top_p", requested.top_p, defaults.top_p)
    if not 0 < top_p <= 1:
        raise _invalid("top_p", "above 0 and at most 1")
    top_k = _whole("top_k", requested.top_k, min(defaults.top_k, codebook_size))
    if not 1 <= top_k <= codebook_size:
        raise _invalid("top_k", f"from 1 to {codebook_size}")
    seed = None if requested.seed is None else _whole("seed", requested.seed, 0)
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise _invalid("seed", "from 0 to 2^63 - 1")
    window, repeats = _repetition(requested, defaults)
    return ResolvedSampling(temperature, top_p, top_k, seed, window, repeats)


def _repetition(requested: Sampling, defaults: SamplingDefaults) -> tuple[int, int]:
    """Return the window, and the maximum count of a code in it; (0, 1) for none."""
    longest = defaults.ras_longest
    given = {"ras_win_len": requested.ras_win_len, "ras_max_repeat": requested.ras_max_repeat}
    if not longest:
        for name, value in given.items():
            if value is not None:
                raise unsupported(
                    f"sampling.{name}",
                    f"This model has no repetition-aware sampling, so no {name}.",
                )
    window = _whole("ras_win_len", requested.ras_win_len, defaults.ras_win_len)
    if not 0 <= window <= longest:
        raise _invalid("ras_win_len", f"0, which is none, or up to {longest}")
    # a count larger than the window would silently have no effect
    repeats = _whole(
        "ras_max_repeat", requested.ras_max_repeat, min(defaults.ras_max_repeat, window)
    )
    if requested.ras_max_repeat is not None and not 1 <= repeats <= window:
        raise _invalid("ras_max_repeat", f"from 1 to ras_win_len, which is {window}")
    return window, max(1, repeats)


def _number(name: str, requested: float | None, default: float) -> float:
    value = default if requested is None else requested
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _invalid(name, "a finite number")
    return float(value)


def _whole(name: str, requested: int | None, default: int) -> int:
    value = default if requested is None else requested
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid(name, "a whole number")
    return value


def _invalid(name: str, rule: str) -> RequestError:
    return invalid_parameter(f"sampling.{name}", f"{name} must be {rule}.")
