"""The entry point of group ``vllm.general_plugins``, which registers the talkers with vLLM.

vLLM calls ``register`` once in each of its processes, so it must be cheap and may run
again. The model classes are named by strings: importing one needs a CUDA context or a
finished platform choice, and this runs before either.
"""

from __future__ import annotations

import importlib
import os

from talker.families import FAMILIES
from talker.families.family import Family
from talker.settings import INT8_MARK, INT8_METHOD

#: Set in the talker process: what it starts (engine cores, workers) dies with its parent.
CHILD_MARK = "TALKWIRE_TALKER_PROCESS"


def register() -> None:
    """Make the families' config and model classes known to transformers and vLLM."""
    if os.environ.get(CHILD_MARK):
        from ipc.child import die_with_parent

        die_with_parent()
    from transformers import AutoConfig
    from vllm import ModelRegistry

    from talker.config import CONFIG_CLASSES

    known = ModelRegistry.get_supported_archs()
    for family in FAMILIES:
        AutoConfig.register(family.model_type, CONFIG_CLASSES[family.model_type], exist_ok=True)
        if family.architecture not in known:
            ModelRegistry.register_model(family.architecture, family.model_class)
    if os.environ.get(INT8_MARK):
        _register_int8()


def register_class(family: Family) -> None:
    """Register a family's model class itself, before ``register`` names it by a string.

    For an engine inside this process on a CPU, which imports the class anyway. To look at a class
    that is named, vLLM starts a process that imports all of vLLM once more, and keeps the result
    in its cache: that is half of the first start on a new machine, and of each in a container.
    """
    from vllm import ModelRegistry

    module, _, name = family.model_class.partition(":")
    ModelRegistry.register_model(
        family.architecture, getattr(importlib.import_module(module), name)
    )


def _register_int8() -> None:
    from vllm.model_executor.layers.quantization import (
        QUANTIZATION_METHODS,
        register_quantization_config,
    )

    if INT8_METHOD not in QUANTIZATION_METHODS:
        from talker.quantisation import Int8Config

        register_quantization_config(INT8_METHOD)(Int8Config)
