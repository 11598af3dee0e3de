"""Sampling parameters: a request's own over the checkpoint's, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from streaming.errors import ErrorCode, RequestError
from streaming.ports import Sampling
from talker.checkpoint import MIN_TEMPERATURE
from talker.families.family import SamplingDefaults

MAX_TEMPERATURE = 2.0
#: Seeds are non-negative int64: vLLM reads -1 as "no seed".
MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Nothing left to default but the seed: None asks for a random one.

    ``top_k`` is always there, since top-p alone costs a sort of every codebook.
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int | None


def resolve_sampling(
    asked: Sampling, defaults: SamplingDefaults, codebook_size: int
) -> ResolvedSampling:
    """Raises RequestError INVALID_PARAMETER, naming the parameter."""
    temperature = _number("temperature", asked.temperature, defaults.temperature)
    if temperature != 0 and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise _invalid("temperature", f"0, or from {MIN_TEMPERATURE} to {MAX_TEMPERATURE}")
    top_p = _number("top_p", asked.top_p, defaults.top_p)
    if not 0 < top_p <= 1:
        raise _invalid("top_p", "above 0 and at most 1")
    top_k = _whole("top_k", asked.top_k, min(defaults.top_k, codebook_size))
    if not 1 <= top_k <= codebook_size:
        raise _invalid("top_k", f"from 1 to {codebook_size}")
    seed = None if asked.seed is None else _whole("seed", asked.seed, 0)
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise _invalid("seed", "from 0 to 2^63 - 1")
    return ResolvedSampling(temperature, top_p, top_k, seed)


def _number(name: str, asked: float | None, default: float) -> float:
    value = default if asked is None else asked
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _invalid(name, "a finite number")
    return float(value)


def _whole(name: str, asked: int | None, default: int) -> int:
    value = default if asked is None else asked
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid(name, "a whole number")
    return value


def _invalid(name: str, rule: str) -> RequestError:
    return RequestError(
        ErrorCode.INVALID_PARAMETER, f"{name} must be {rule}.", param=f"sampling.{name}"
    )
