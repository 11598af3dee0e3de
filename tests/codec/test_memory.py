"""The heap trimmer of the codec worker, which returns free pages to the kernel."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from codec.memory import HeapTrimmer, resident

MIB = 1 << 20

#: Frees blocks of half a MiB, each beside a small one that is kept, which leaves holes in the heap.
HOLES = """
import sys
import numpy as np
from codec.memory import HeapTrimmer, keep_freed_memory, resident
keep_freed_memory()
trimmer = HeapTrimmer(growth_bytes=64 << 20)
blocks, kept = [], []
for _ in range(400):
    blocks.append(np.ones(1 << 19, np.uint8))
    kept.append(np.ones(1 << 12, np.uint8))
full = resident()
blocks.clear()
freed = resident()
trimmed = trimmer.check()
print(full, freed, resident(), trimmed, trimmer.check())
"""


def test_heap_trimmer_trims_once_per_growth() -> None:
    sizes = iter([100, 110, 130, 131, 105, 120, 126, 104])
    trims: list[int] = []
    trimmer = HeapTrimmer(20, lambda: next(sizes), lambda: trims.append(1))
    # The floor is 100, and 131 after the trim at 130. No later size exceeds it by more than 20.
    assert [trimmer.check() for _ in range(2)] == [False, True]
    assert [trimmer.check() for _ in range(3)] == [False, False, False]
    assert len(trims) == 1


def test_heap_trimmer_never_trims_without_proc() -> None:
    trimmer = HeapTrimmer(20, lambda: 0, lambda: pytest.fail("trimmed"))
    assert not trimmer.check()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_heap_trimmer_returns_holes_to_kernel() -> None:
    told = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, check=True, text=True)
    full, freed, after, trimmed, again = told.stdout.split()
    assert int(freed) > int(full) - 20 * MIB, "the blocks were no holes to begin with"
    assert int(after) < int(full) - 150 * MIB
    assert (trimmed, again) == ("True", "False")


def test_resident_memory_is_known_on_linux() -> None:
    if sys.platform != "linux":
        pytest.skip("no /proc")
    assert resident() > MIB
