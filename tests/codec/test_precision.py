"""How a GPU would multiply while windows are decoded and clips are encoded."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from codec.engine import CodecWorkerEngine
from codec.precision import Precision
from streaming.window import DecodeWindow
from tests.codec.conftest import CHECKPOINT
from tests.codec.qwen3_tts_checkpoint import write_codec
from tests.talker.tiny_qwen3_tts import write_checkpoint


class Flags:
    """torch's flags, and the lock's holder."""

    def __init__(self) -> None:
        self.tf32 = False
        self.precision = Precision(self._set)

    def _set(self, is_on: bool) -> None:
        assert is_on != self.tf32
        self.tf32 = is_on


def test_clip_waits_for_a_decode_and_no_decode_waits_for_a_clip() -> None:
    flags = Flags()
    is_decoding, may_end, is_encoding, may_finish = (threading.Event() for _ in range(4))
    during: list[bool] = []

    def decode() -> None:
        with flags.precision.decoding():
            is_decoding.set()
            assert may_end.wait(30)

    def encode() -> None:
        with flags.precision.encoding():
            during.append(flags.tf32)
            is_encoding.set()
            assert may_finish.wait(30)
            during.append(flags.tf32)

    threads = [threading.Thread(target=decode), threading.Thread(target=encode)]
    threads[0].start()
    assert is_decoding.wait(30)
    assert flags.tf32
    threads[1].start()
    assert not is_encoding.wait(0.05)
    may_end.set()
    assert is_encoding.wait(30)
    with flags.precision.decoding():  # at once
        assert not flags.tf32
    may_finish.set()
    for thread in threads:
        thread.join(30)
    assert during == [False, False]
    with flags.precision.decoding():
        assert flags.tf32
    assert not flags.tf32


@pytest.mark.parametrize("in_clip", [False, True])
def test_precision_recovers_from_errors(in_clip: bool) -> None:
    flags = Flags()
    block = flags.precision.encoding() if in_clip else flags.precision.decoding()
    with pytest.raises(ZeroDivisionError), block:
        raise ZeroDivisionError
    assert not flags.tf32
    with flags.precision.decoding():
        assert flags.tf32


def test_float32_sets_no_flags_and_takes_no_turns() -> None:
    precision = Precision()
    with precision.decoding(), precision.encoding(), precision.decoding():
        pass


@pytest.mark.parametrize(
    ("graphs", "precision", "decodes_in_tf32"),
    [
        ("off", "float32", False),
        ("off", "tf32", True),
        ("off", "auto", False),
        ("auto", "tf32", True),
    ],
)
async def test_only_decoding_uses_tf32(
    tmp_path: Path, graphs: str, precision: str, decodes_in_tf32: bool
) -> None:
    """``auto`` on a CPU is float32. A graph is captured with the flags of a decode. Clips, and the
    vectors of their speakers, are encoded in float32.
    """
    model, books = str(CHECKPOINT), 8
    clones = graphs == "off"
    if clones:
        folder = write_checkpoint(tmp_path, kind="base")
        write_codec(folder / "speech_tokenizer")
        model, books = str(folder), 16
    seen = tmp_path / "seen"
    engine = CodecWorkerEngine(
        model,
        device="cpu",
        graphs=graphs,
        precision=precision,
        max_batch=1,
        module="tests.codec.precision_worker",
        env={"SEEN": str(seen)},
    )
    await engine.start()
    try:
        window = DecodeWindow(np.zeros((books, 6), np.int16), 0, 6, 0)
        if clones:
            await engine.encode(np.zeros(48_000, np.float32))
        await engine.decode(window, time.monotonic() + 1)
    finally:
        await engine.stop()
    lines = seen.read_text().splitlines()
    last = dict(line.split(" ", 1) for line in lines)
    clip = {"encode": "False False", "speaker": "False False"} if clones else {}
    assert last == {"decode": f"{decodes_in_tf32} {decodes_in_tf32}"} | clip
    assert decodes_in_tf32 or "True" not in seen.read_text()
