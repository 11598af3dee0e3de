"""vLLM's way in: the entry point of group ``vllm.general_plugins``.

vLLM calls ``register`` once in each of its processes, so it must be cheap and may run
again. The model class is named by a string: importing it needs a CUDA context or a
finished platform choice, and this runs before either.
"""

from __future__ import annotations

import os

from talker.presets import INT8_MARK, INT8_METHOD
from talker.shape import ARCHITECTURE, MODEL_TYPE

#: Set in the talker process: what it starts (engine cores, workers) dies with its parent.
CHILD_MARK = "TALKWIRE_TALKER_PROCESS"


def register() -> None:
    """Make the talker's config and model classes known to transformers and vLLM."""
    if os.environ.get(CHILD_MARK):
        from ipc.child import die_with_parent

        die_with_parent()
    from transformers import AutoConfig
    from vllm import ModelRegistry

    from talker.config import HiggsTalkerConfig

    AutoConfig.register(MODEL_TYPE, HiggsTalkerConfig, exist_ok=True)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"talker.model:{ARCHITECTURE}")
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
