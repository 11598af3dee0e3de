"""The entry point of group ``vllm.general_plugins``, which registers the talkers with vLLM.

vLLM calls ``register`` once in each of its processes, so it must be cheap and may run
again. The model classes are named by strings: importing one needs a CUDA context or a
finished platform choice, and this runs before either.
"""

from __future__ import annotations

import os

from talker.families import FAMILIES
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


def _register_int8() -> None:
    from vllm.model_executor.layers.quantization import (
        QUANTIZATION_METHODS,
        register_quantization_config,
    )

    if INT8_METHOD not in QUANTIZATION_METHODS:
        from talker.quantisation import Int8Config

        register_quantization_config(INT8_METHOD)(Int8Config)
