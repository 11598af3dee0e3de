"""Encoding of the clips that voices are cloned from, in the codec worker.

Decoding has deadlines and clips have none, so they are encoded one at a time in a thread of the
lowest priority, which leaves the processor to streams that need it. The encoder is loaded with the
first clip, since most services never see one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable

import msgspec

from codec.family import ClipError, Encoder
from codec.messages import (
    Encode,
    Encoding,
    Failed,
    FailureReason,
    encoded_message,
    samples_of,
)
from codec.precision import Precision
from ipc.child import LinkClosed
from streaming.spec import Codes, SpeakerVector

log = logging.getLogger(__name__)
_LOWEST_PRIORITY = 19


class ClipThread:
    """Encodes clips in a thread of its own and answers through ``send``.

    The gateway limits how many are in progress. ``speakers``: for talkers that need vectors of
    speakers. ``precision``: of the process. ``add`` and ``cancel`` must be called by one thread.
    """

    def __init__(
        self,
        send: Callable[[msgspec.Struct], None],
        load: Callable[[], Encoder[Codes]],
        speakers: Encoder[SpeakerVector] | None = None,
        precision: Precision | None = None,
    ) -> None:
        self._send = send
        self._precision = precision or Precision()
        self._load = load
        self._speakers = speakers
        self._encoder: Encoder[Codes] | None = None
        self._waiting: queue.SimpleQueue[Encode] = queue.SimpleQueue()
        #: Clips that are neither encoded nor cancelled.
        self._wanted: set[int] = set()
        self._thread: threading.Thread | None = None

    def add(self, clip: Encode) -> None:
        """Queue a clip for encoding."""
        self._wanted.add(clip.id)
        self._waiting.put(clip)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="clips", daemon=True)
            self._thread.start()

    def cancel(self, id: int) -> None:
        """Skip a waiting clip. One that is being encoded is answered all the same."""
        self._wanted.discard(id)

    def _run(self) -> None:
        if sys.platform == "linux":  # where each thread has its own priority
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        with contextlib.suppress(LinkClosed):
            while True:
                clip = self._waiting.get()
                if clip.id in self._wanted:
                    self._encode(clip)
                    self._wanted.discard(clip.id)

    def _encode(self, clip: Encode) -> None:
        self._send(Encoding(clip.id))
        try:
            samples = samples_of(clip)
            with self._precision.encoding():
                if self._encoder is None:
                    self._encoder = self._load()
                codes = self._encoder.encode(samples)
                vector = None if self._speakers is None else self._speakers.encode(samples)
        except Exception as error:
            reason: FailureReason = "bad_clip" if isinstance(error, ClipError) else "encode_failed"
            if reason == "encode_failed":
                log.exception("a clip could not be encoded")
            self._send(Failed(clip.id, reason, f"{type(error).__name__}: {error}"))
            return
        self._send(encoded_message(clip.id, codes, vector))
