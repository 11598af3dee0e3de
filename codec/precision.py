"""How a GPU multiplies: windows perhaps in TF32, clips always in float32.

TF32 keeps three digits. Samples are three times as fast with it and differ little, but a clip gets
other codes: the encoder chooses the nearest of a thousand vectors, again and again. torch's flags
belong to the process and are read when an operation is launched, and clips are encoded in a thread
beside the decoding. So the flags are set for the time of a decode alone, and while there is a clip,
not at all. CUDA graphs keep the flags of their capture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Precision:
    """Sets the flags for the decoding thread and the thread of the clips.

    ``set_tf32``: sets torch's flags; None if all is done in float32, as they are by themselves.
    """

    def __init__(self, set_tf32: Callable[[bool], None] | None = None) -> None:
        self._set_tf32 = set_tf32
        #: Held while the flags are set.
        self._lock = threading.Lock()
        #: Whether a clip is being encoded, or is about to.
        self._has_clip = False

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Multiply in TF32 during the block, if wanted. While a clip is encoded, in float32."""
        if self._set_tf32 is None:
            yield
            return
        with self._lock:
            if not self._has_clip:
                self._set_tf32(True)
                try:
                    yield
                finally:
                    self._set_tf32(False)
                return
        yield

    @contextmanager
    def encoding(self) -> Iterator[None]:
        """Multiply in float32 during the block. Waits for the end of a decode in TF32."""
        self._has_clip = True
        with self._lock:
            pass
        try:
            yield
        finally:
            self._has_clip = False
