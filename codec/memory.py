"""Memory of the codec worker: glibc's arenas, and returning free pages to the kernel.

Windows of ever new shapes fragment the heap. A layer's tensors are a few MB and freed within a
millisecond, while the kernels that oneDNN keeps for each shape (``codec.warmup``) stay between
them, so that freed blocks do not fit the next allocations. Free pages can be returned to the kernel
at any time (``malloc_trim``), at the cost of some milliseconds and of page faults in the next
window. So this is done only when there are many.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

#: Many times what windows of one shape need (5 MiB for the embedded codec), so that a steady load
#: never trims. Under ever new shapes it trims after about one window in twenty-five.
GROWTH_BYTES = 192 << 20


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory instead of returning it to the kernel.

    A layer's tensors are a few MB and live for a millisecond. By default each is mapped, faulted in
    page by page and unmapped, which costs more than some of the convolutions. Does nothing on
    another libc.
    """
    trim_threshold = -1
    mmap_threshold = -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_threshold, 1 << 30)
        mallopt(trim_threshold, 1 << 30)


class HeapTrimmer:
    """Trims the heap whenever the process has grown by ``growth_bytes`` since the last time.
    ``resident_bytes`` and ``trim`` are for tests.
    """

    def __init__(
        self,
        growth_bytes: int = GROWTH_BYTES,
        resident_bytes: Callable[[], int] | None = None,
        trim: Callable[[], None] | None = None,
    ) -> None:
        self._growth_bytes = growth_bytes
        self._resident_bytes = resident_bytes or resident
        self._trim = trim or trim_heap
        self._floor = self._resident_bytes()

    def check(self) -> bool:
        """Trim if it is time; return whether it was. Otherwise it takes about 20 microseconds."""
        if self._resident_bytes() - self._floor <= self._growth_bytes:
            return False
        self._trim()
        self._floor = self._resident_bytes()
        return True


def resident() -> int:
    """Return this process's resident memory in bytes; 0 without ``/proc``."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def trim_heap() -> None:
    """Return free pages of the heap to the kernel. Does nothing on a libc other than glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
