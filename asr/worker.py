"""The recogniser's process: ``python -m asr.worker --socket FD --model FOLDER``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from asr.messages import Failed, Hear, Heard, Ready, ToWorker
from asr.whisper import ModelError, Whisper
from ipc.child import ChildLink, LinkClosed
from ipc.framing import Fatal

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until the parent ends."""
    parser = argparse.ArgumentParser(prog="asr.worker")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--model", required=True, help="a folder")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    with ChildLink[Hear](options.socket, ToWorker) as link:
        try:
            link.progress("load")
            try:
                model = Whisper(Path(options.model), options.device, options.dtype)
            except ModelError as error:
                link.send(Fatal(str(error)))
                return 1
            import torch

            torch.set_num_threads(options.threads)
            link.send(Ready())
            _serve(link, model)
        except LinkClosed:
            pass
    return 0


def _serve(link: ChildLink[Hear], model: Whisper) -> None:
    """Transcribe clips one by one, until the link closes (LinkClosed)."""
    while True:
        for clip in link.receive(wait=True):
            try:
                samples = np.frombuffer(clip.samples, "<f4").astype(np.float32)
                text = model.hear(samples, clip.sample_rate)
            except Exception as error:
                log.exception("a clip could not be heard")
                link.send(Failed(clip.id, type(error).__name__))
            else:
                link.send(Heard(clip.id, text))


if __name__ == "__main__":
    sys.exit(main())
