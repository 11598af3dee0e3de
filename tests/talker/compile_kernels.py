"""Compile all Triton kernels, without a GPU: ``python compile_kernels.py 90``.

The interpreter runs kernels as Python and accepts code that the compiler refuses. Run without
TRITON_INTERPRET; the first argument is the compute capability times ten. Prints a line per kernel.
"""

from __future__ import annotations

import re
import sys
import types
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# without a GPU vLLM hides Triton, and the kernels need nothing else of vLLM
hidden = types.ModuleType("vllm.triton_utils")
vars(hidden).update(triton=triton, tl=tl, HAS_TRITON=True)
sys.modules |= {"vllm": types.ModuleType("vllm"), "vllm.triton_utils": hidden}

from codec import snake_kernel  # noqa: E402
from talker import fast_ar_kernels, step_kernels  # noqa: E402
from talker.frames import _EPOCHS, FRAME_BASE, FRAME_SPAN, power_of_two  # noqa: E402

_SLOTS, _SHIFT = 1 << 21, 21
_TABLE = {"SLOTS": _SLOTS, "SHIFT": _SHIFT, "BASE": FRAME_BASE, "EPOCHS": _EPOCHS}
#: Argument types, constants and number of warps of each kernel, as in its launches.
KERNELS = {
    "_draw_kernel": (
        {
            "logits_ptr": "*bf16", "logits_stride": "i32", "slots_ptr": "*i32", "last_ptr": "*i64",
            "ends_ptr": "*i32", "ids_ptr": "*i32", "positions_ptr": "*i64", "stale_ptr": "*i1",
            "lost_ptr": "*i1", "temperature_ptr": "*fp32", "top_k_ptr": "*i32",
            "top_p_ptr": "*fp32", "seed_ptr": "*i64", "window_ptr": "*i64",
            "max_repeat_ptr": "*i64", "cells_ptr": "*i16", "links_ptr": "*i32",
            "drawn_ptr": "*i32", "before_ptr": "*i32",
        },
        {
            "BOOKS": 8, "BOOKS_EACH": 1, "WIDTH": 1026, "CODES": 1024, "BLOCK": 1024,
            "LOOK_BACK": 0, "AGES": 1, "TOKENS": 256, "BOC": 1024, "EOC": 1025, "END_BOOKS": 1,
            **_TABLE, **step_kernels._CONSTANTS,
        },
        4,
    ),
    "_keep_kernel": (
        {
            "requests": "i32", "slots_ptr": "*i32", "lost_ptr": "*i1", "lengths_ptr": "*i32",
            "prompts_ptr": "*i32", "cells_ptr": "*i16", "links_ptr": "*i32",
            "counter_ptr": "*i64", "drawn_ptr": "*i32", "before_ptr": "*i32", "ids_ptr": "*i64",
            "codes_ptr": "*i32", "num_sampled_ptr": "*i32",
        },
        {
            "BOOKS": 8, "BOOKS_BLOCK": 8, "ROWS": 32, "WIDTH": 1026, "LOOK_BACK": 0, "AGES": 1,
            "EOC": 1025, "STOP": 151_643, "LOST_ROW": 8 * 1026, "SPAN": FRAME_SPAN, **_TABLE,
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
    "_snake_kernel": (
        {
            "x_ptr": "*fp32", "out_ptr": "*fp32", "alpha_ptr": "*fp32", "ratio_ptr": "*fp32",
            "size": "i32", "length": "i32", "pad_left": "i32", "padded": "i32",
        },
        {
            "CHANNELS": 96, "SCALED": True, "LEARNED": False, "PADDED": False,
            "BLOCK": snake_kernel._BLOCK,
        },
        4,
    ),
}  # fmt: skip


def variant(name: str, **constants: object) -> tuple[str, Any]:
    """A kernel with other constants."""
    kinds, usual, warps = KERNELS[name]
    return name, (kinds, {**usual, **constants}, warps)


#: Streams that any codebook may end, repetition-aware sampling over 16 rows, or over one, and the
#: codec's activation in place and at an edge.
VARIANTS = [
    variant("_draw_kernel", END_BOOKS=8),
    variant("_draw_kernel", LOOK_BACK=16, AGES=16),
    variant("_draw_kernel", LOOK_BACK=1),
    variant("_keep_kernel", LOOK_BACK=16, AGES=16),
    variant("_keep_kernel", LOOK_BACK=1),
    variant("_snake_kernel", SCALED=False, LEARNED=True),
    variant("_snake_kernel", LEARNED=True, PADDED=True),
]


def fast_kernels(kind: str, *, norms: bool) -> list[tuple[str, Any]]:
    """The kernels of a fast AR of type ``kind``, with the heads of Fish S2 Pro or, with norms, of
    Qwen3-TTS' predictor: in the first pass of a frame and in the others.
    """
    width, inner, heads, books = (1024, 3072, 16, 16) if norms else (2560, 9728, 32, 10)
    line = {"x_ptr": kind, "x_stride": "i32", "product_ptr": kind, "product_stride": "i32",
            "weight_ptr": kind, "total_ptr": kind, "normed_ptr": kind}  # fmt: skip
    head = {"fused_ptr": kind, "q_norm_ptr": kind, "k_norm_ptr": kind, "cos_ptr": "*fp32",
            "sin_ptr": "*fp32", "cache_ptr": kind, "cache_stride": "i32", "out_ptr": kind,
            "at": "i32"}  # fmt: skip
    shape = {"HEADS": heads, "KV_HEADS": 8, "HALF": 64, "BOOKS": books, "POSITIONS": 16,
             "NORMS": norms, "EPS": 1e-6, "SCALE": 128**-0.5}  # fmt: skip
    size = {"WIDTH": width, "BLOCK": power_of_two(width), "EPS": 1e-6}
    return [
        *(("_norm_kernel", (line, {**size, "ADDS": adds}, 8)) for adds in (False, True)),
        *(("_attend_kernel", (head, {**shape, "COUNT": count}, 4)) for count in (1, 2)),
        (
            "_gate_kernel",
            ({"fused_ptr": kind, "out_ptr": kind}, {"INNER": inner, "BLOCK": 1024}, 4),
        ),
    ]


def main() -> None:
    """Compile every kernel to machine code."""
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    made: list[tuple[Any, str, Any]] = [
        (snake_kernel if name == "_snake_kernel" else step_kernels, name, one)
        for name, one in [*KERNELS.items(), *VARIANTS]
    ]
    for kind in ("*bf16", "*fp32"):
        for norms in (False, True):
            made += [(fast_ar_kernels, *one) for one in fast_kernels(kind, norms=norms)]
    for module, name, (kinds, constants, warps) in made:
        kernel = getattr(module, name)
        names = [parameter.name for parameter in kernel.params]
        signature = {one: kinds.get(one, "constexpr") for one in names}
        fixed = {(names.index(one),): value for one, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
        compiled = triton.compile(source, target=target, options={"num_warps": warps})
        # the noise takes logarithms near 1, where the fast instruction has no correct digit, and
        # Snakes take sines of large numbers
        assert not re.search(r"(lg2|sin)\.approx", compiled.asm["ptx"]), name
        print(name, len(compiled.asm["cubin"]))


if __name__ == "__main__":
    main()
