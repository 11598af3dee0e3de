"""Sampling parameters: defaults, bounds, and errors that name the parameter."""

from __future__ import annotations

import math
from typing import Any

import pytest

from streaming.errors import ErrorCode, RequestError
from streaming.ports import Sampling
from talker.checkpoint import MIN_TEMPERATURE
from talker.families.family import SamplingDefaults
from talker.sampling import MAX_SEED, ResolvedSampling, resolve_sampling

DEFAULTS = SamplingDefaults(0.7, 0.9, 40, 100)


def resolve(**asked: Any) -> ResolvedSampling:
    return resolve_sampling(Sampling(**asked), DEFAULTS, 1024)


def test_sampling_defaults_come_from_checkpoint() -> None:
    assert resolve() == ResolvedSampling(0.7, 0.9, 40, None)
    assert resolve(top_p=0.5) == ResolvedSampling(0.7, 0.5, 40, None)
    assert resolve(seed=0, temperature=0) == ResolvedSampling(0.0, 0.9, 40, 0)


def test_top_k_default_is_capped_at_codebook_size() -> None:
    assert resolve_sampling(Sampling(), SamplingDefaults(top_k=5000), 1024).top_k == 1024


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", 1e-9),
        ("temperature", math.nan), ("temperature", math.inf), ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0), ("top_p", 1.01), ("top_p", math.nan), ("top_p", -math.inf), ("top_p", True),
        ("top_k", 0), ("top_k", -1), ("top_k", 1025), ("top_k", 1.5), ("top_k", math.nan),
        ("seed", -1), ("seed", MAX_SEED + 1), ("seed", 1.0), ("seed", False), ("seed", math.nan),
    ],
)  # fmt: skip
def test_sampling_invalid_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as error:
        resolve(**{name: value})
    assert error.value.code is ErrorCode.INVALID_PARAMETER
    assert error.value.param == f"sampling.{name}"
    assert name in error.value.message


WATCHED = SamplingDefaults(ras_win_len=7, ras_max_repeat=2, ras_longest=16)


@pytest.mark.parametrize(
    ("asked", "window", "repeats"),
    [
        ({}, 7, 2),
        ({"ras_win_len": 0}, 0, 1),
        ({"ras_win_len": 16, "ras_max_repeat": 16}, 16, 16),
        ({"ras_max_repeat": 7}, 7, 7),
        ({"ras_max_repeat": 1}, 7, 1),
        ({"ras_win_len": 1}, 1, 1),
    ],
)
def test_ras_request_overrides_checkpoint_defaults(
    asked: dict[str, Any], window: int, repeats: int
) -> None:
    resolved = resolve_sampling(Sampling(**asked), WATCHED, 1024)
    assert (resolved.ras_win_len, resolved.ras_max_repeat) == (window, repeats)


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"ras_win_len": 17}, "up to 16"),
        ({"ras_win_len": -1}, "up to 16"),
        ({"ras_win_len": 2.0}, "whole"),
        ({"ras_max_repeat": 0}, "from 1 to"),
        ({"ras_max_repeat": 8}, "which is 7"),
        ({"ras_max_repeat": 1, "ras_win_len": 0}, "which is 0"),
    ],
)
def test_ras_invalid_value_is_refused_by_name(asked: dict[str, Any], allowed: str) -> None:
    with pytest.raises(RequestError, match=allowed) as error:
        resolve_sampling(Sampling(**asked), WATCHED, 1024)
    assert error.value.code is ErrorCode.INVALID_PARAMETER
    assert error.value.param == f"sampling.{next(iter(asked))}"


@pytest.mark.parametrize("name", ["ras_win_len", "ras_max_repeat"])
def test_ras_is_refused_by_model_without_ras(name: str) -> None:
    with pytest.raises(RequestError, match=name) as error:
        resolve(**{name: 1})
    assert (error.value.code, error.value.param) == (ErrorCode.UNSUPPORTED, f"sampling.{name}")


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": MIN_TEMPERATURE}, {"temperature": 2}, {"top_p": 1}, {"top_k": 1},
        {"top_k": 1024}, {"seed": MAX_SEED},
    ],
)  # fmt: skip
def test_sampling_accepts_its_bounds(asked: dict[str, Any]) -> None:
    ((name, value),) = asked.items()
    assert getattr(resolve(**asked), name) == value
