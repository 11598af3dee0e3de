"""What the worker does about the holes in its heap."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from codec.memory import HeapTrimmer, resident

MIB = 1 << 20

#: Blocks of half a MiB, each with a small neighbour that stays: freed, they are holes.
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
trimmed = trimmer.look()
print(full, freed, resident(), trimmed, trimmer.look())
"""


def test_it_trims_once_for_each_growth() -> None:
    sizes = iter([100, 110, 130, 131, 105, 120, 126, 104])
    trims: list[int] = []
    trimmer = HeapTrimmer(20, lambda: next(sizes), lambda: trims.append(1))
    # from 100: not at 110; at 130 that is given back to 131, from which 105 and 120 are near
    assert [trimmer.look() for _ in range(2)] == [False, True]
    assert [trimmer.look() for _ in range(3)] == [False, False, False]
    assert len(trims) == 1


def test_without_proc_it_never_trims() -> None:
    trimmer = HeapTrimmer(20, lambda: 0, lambda: pytest.fail("trimmed"))
    assert not trimmer.look()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_heap_trimmer_gives_back_holes() -> None:
    told = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, check=True, text=True)
    full, freed, after, trimmed, again = told.stdout.split()
    assert int(freed) > int(full) - 20 * MIB, "the blocks were no holes to begin with"
    assert int(after) < int(full) - 150 * MIB
    assert (trimmed, again) == ("True", "False")


def test_what_is_resident_is_known_on_linux() -> None:
    if sys.platform != "linux":
        pytest.skip("no /proc")
    assert resident() > MIB
