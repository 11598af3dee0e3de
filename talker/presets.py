"""What ``quantization`` in the talker's settings comes down to in vLLM. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Collection

#: The name of ``talker.quantisation`` among vLLM's methods.
INT8_METHOD = "talkwire_int8"
#: Says to every process that vLLM starts that INT8_METHOD is wanted.
INT8_MARK = "TALKWIRE_TALKER_INT8"
#: vLLM's own: weights with a scale per output channel, inputs with one per token.
_FP8_METHOD = "fp8_per_channel"
#: Ada and Hopper; before them vLLM has no kernel that takes FP8 inputs.
_FP8_CAPABILITY = 89


def quantization_method(preset: str) -> str | None:
    """What vLLM calls a preset; None for none."""
    return {"none": None, "int8": INT8_METHOD, "fp8": _FP8_METHOD}[preset]


def check_preset(preset: str, capability: int | None, methods: Collection[str]) -> None:
    """Raise ValueError where vLLM would fail later, and less clearly.

    ``capability`` is the GPU's compute capability times ten, None on a CPU; ``methods`` are
    those that vLLM knows.
    """
    if preset != "fp8":
        return
    if capability is None:
        raise ValueError("quantization 'fp8' needs a GPU; on a CPU there is 'int8'")
    if capability < _FP8_CAPABILITY:
        raise ValueError(
            f"quantization 'fp8' needs compute capability 8.9 (Ada, Hopper or later); this GPU "
            f"has {capability // 10}.{capability % 10}, for which there is 'int8'"
        )
    if _FP8_METHOD not in methods:
        raise ValueError("quantization 'fp8' needs a newer vLLM: this one has no fp8_per_channel")
