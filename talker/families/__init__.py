"""The registry of talker families, and how a checkpoint's family is found.

To add one: a folder with its ``Family`` and its vLLM model, and a line in ``FAMILIES``
(docs/guides/add_a_talker_family.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from talker.families.family import Family
from talker.families.fish_s2 import FishS2
from talker.families.higgs_v2 import HiggsV2, HiggsV2Converted
from talker.families.higgs_v3 import HiggsV3
from talker.families.qwen3_tts import Qwen3TTS
from talker.shape import CheckpointError

FAMILIES: tuple[Family, ...] = (HiggsV3(), HiggsV2(), HiggsV2Converted(), FishS2(), Qwen3TTS())


class UnknownFamilyError(CheckpointError):
    """A checkpoint of an unsupported family. The text names the supported ones."""


def find_family(config: Mapping[str, Any]) -> Family:
    """Return the family of a parsed config.json.

    Raises UnknownFamilyError; CheckpointError if ``architectures`` names another model than
    ``model_type``.
    """
    model_type = config.get("model_type")
    for family in FAMILIES:
        if family.model_type == model_type:
            break
    else:
        served = "; ".join(f"{f.title} ({f.model_type!r}, as {f.example})" for f in FAMILIES)
        raise UnknownFamilyError(f"model_type {model_type!r} is not served here; served: {served}")
    named = config.get("architectures") or family.architectures
    if not isinstance(named, list | tuple) or not any(n in family.architectures for n in named):
        raise CheckpointError(f"architectures are {named}, not one of {list(family.architectures)}")
    return family
