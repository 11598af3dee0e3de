"""The codec worker, which writes into the file SEEN what it does and how a GPU would multiply then:
``decode``, ``encode`` or ``speaker``, and torch's two flags. Its graphs are replayed on the CPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from codec.families.higgs.decoder import HiggsDecoder
from codec.families.qwen3_tts.decoder import Qwen3TTSDecoder
from codec.families.qwen3_tts.encoder import Qwen3TTSEncoder
from codec.families.qwen3_tts.speaker_encoder import Qwen3TTSSpeakerEncoder
from codec.worker import main
from tests.codec.fake_graphs import FakeRecorder


def watch(kind: type, method: str, name: str) -> None:
    """Write a line at each call of a method."""
    plain = getattr(kind, method)

    def run(*args: Any) -> Any:
        flags = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        with Path(os.environ["SEEN"]).open("a") as seen:
            print(name, *flags, file=seen)
        return plain(*args)

    setattr(kind, method, run)


if __name__ == "__main__":
    watch(HiggsDecoder, "decode_laid_out", "decode")
    watch(HiggsDecoder, "decode_windows", "decode")
    watch(Qwen3TTSDecoder, "decode_windows", "decode")
    watch(Qwen3TTSEncoder, "encode", "encode")
    watch(Qwen3TTSSpeakerEncoder, "encode", "speaker")
    sys.exit(main(find_recorder=lambda device: FakeRecorder()))
