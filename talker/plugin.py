"""The entry point of group ``vllm.general_plugins``, which registers the talkers with vLLM.

vLLM calls ``register`` in each of its processes, possibly more than once, so it must be cheap. The
model classes are named by strings, since importing one needs a CUDA context or a finished platform
choice, and this runs before either.
"""

from __future__ import annotations

import importlib
import os

from talker.families import FAMILIES
from talker.families.family import Family
from talker.settings import INT8_MARK, INT8_METHOD

#: Set in the talker process: its children (engine cores, workers) die with their parent.
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

    This is for an engine in this process on a CPU, which imports the class anyway. To inspect a
    class that is named by a string, vLLM starts a process that imports all of vLLM again, and
    caches the result. That is half of the first start on a new machine, and of every start in a
    container.
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
