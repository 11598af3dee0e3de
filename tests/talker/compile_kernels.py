"""Compile the step kernels, without a GPU: ``python compile_kernels.py 90``.

The interpreter runs kernels as Python and accepts code that the compiler refuses. Run without
TRITON_INTERPRET; the first argument is the compute capability times ten. Prints a line per kernel.
"""

from __future__ import annotations

import sys
import types

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# without a GPU vLLM hides Triton, and the kernels need nothing else of vLLM
hidden = types.ModuleType("vllm.triton_utils")
hidden.triton, hidden.tl = triton, tl
sys.modules |= {"vllm": types.ModuleType("vllm"), "vllm.triton_utils": hidden}

from talker import step_kernels  # noqa: E402
from talker.frames import _EPOCHS, FRAME_BASE, FRAME_SPAN  # noqa: E402

_SLOTS, _SHIFT = 1 << 21, 21
_TABLE = {"SLOTS": _SLOTS, "SHIFT": _SHIFT, "BASE": FRAME_BASE, "EPOCHS": _EPOCHS}
#: Argument types, constants and number of warps of each kernel, as in its launches.
KERNELS = {
    "_draw_kernel": (
        {
            "logits_ptr": "*bf16", "logits_stride": "i32", "slots_ptr": "*i32", "last_ptr": "*i64",
            "ends_ptr": "*i32", "ids_ptr": "*i32", "positions_ptr": "*i64", "stale_ptr": "*i1",
            "lost_ptr": "*i1", "temperature_ptr": "*fp32", "top_k_ptr": "*i32",
            "top_p_ptr": "*fp32", "seed_ptr": "*i64", "cells_ptr": "*i16", "drawn_ptr": "*i32",
            "before_ptr": "*i32",
        },
        {
            "BOOKS": 8, "BOOKS_EACH": 1, "WIDTH": 1026, "BLOCK": 2048, "TOKENS": 256,
            "SLOTS": _SLOTS, "BOC": 1024, "EOC": 1025, "END_BOOKS": 1, **step_kernels._CONSTANTS,
        },
        4,
    ),
    "_keep_kernel": (
        {
            "requests": "i32", "slots_ptr": "*i32", "lost_ptr": "*i1", "lengths_ptr": "*i32",
            "prompts_ptr": "*i32", "cells_ptr": "*i16", "counter_ptr": "*i64",
            "drawn_ptr": "*i32", "before_ptr": "*i32", "ids_ptr": "*i64", "codes_ptr": "*i32",
            "num_sampled_ptr": "*i32",
        },
        {
            "BOOKS": 8, "BOOKS_BLOCK": 8, "ROWS": 32, "WIDTH": 1026, "EOC": 1025,
            "STOP": 151_643, "LOST_ROW": 8 * 1026, "SPAN": FRAME_SPAN, **_TABLE,
        },
        1,
    ),
    "_embed_kernel": (
        {
            "ids_ptr": "*i32", "cells_ptr": "*i16", "code_ptr": "*bf16", "text_ptr": "*bf16",
            "embeds_ptr": "*bf16", "embeds_stride": "i32", "stale_ptr": "*i1", "size": "i32",
        },
        {"BOOKS": 8, "WIDTH": 1026, "BLOCK": 512, **_TABLE},
        4,
    ),
}  # fmt: skip


DRAW = KERNELS["_draw_kernel"]


def main() -> None:
    """Compile every kernel to machine code."""
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    # a stream is ended by its first codebook or, in this variant, by any
    of_any = (DRAW[0], {**DRAW[1], "END_BOOKS": 8}, DRAW[2])
    for name, (kinds, constants, warps) in [*KERNELS.items(), ("_draw_kernel", of_any)]:
        kernel = getattr(step_kernels, name)
        names = [parameter.name for parameter in kernel.params]
        signature = {one: kinds.get(one, "constexpr") for one in names}
        fixed = {(names.index(one),): value for one, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
        made = triton.compile(source, target=target, options={"num_warps": warps})
        # the noise takes logarithms near 1, where the fast instruction has no correct digit
        assert "lg2.approx" not in made.asm["ptx"], name
        print(name, len(made.asm["cubin"]))


if __name__ == "__main__":
    main()
