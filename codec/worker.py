"""The codec worker process: ``python -m codec.worker --socket FD --model MODEL``.

It loads the codec with torch, on a CPU or a GPU, and serves it (``codec.decode_loop``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch

from codec.batching import BatchLimits
from codec.decode_loop import Link, serve
from codec.families import open_codec
from codec.family import CheckpointError, DeviceError
from codec.graphs import (
    LaidOutDecoder,
    Recorder,
    choose_device,
    graphed,
    in_background,
    recorder_for,
)
from codec.layers import set_precision
from codec.memory import keep_freed_memory
from codec.messages import ToWorker
from codec.warmup import keep_kernels
from ipc.child import LinkClosed
from ipc.framing import Fatal

#: Every later call to the device fails too, so a new process is needed.
FATAL = (torch.AcceleratorError,)


def main(
    argv: Sequence[str] | None = None,
    find_recorder: Callable[[str], Recorder | None] = recorder_for,
) -> int:
    """Run until the parent ends. ``find_recorder(device)`` returns the recorder for graphs, or
    None.
    """
    options = _options(argv)
    torch.set_num_threads(options.threads)
    set_precision(options.precision)
    keep_freed_memory()
    keep_kernels()
    limits = BatchLimits(rows=options.max_batch)
    with Link(options.socket, ToWorker) as link:
        try:
            link.progress("load")
            try:
                device = choose_device(options.device)
                codec = open_codec(options.model, options.talker)
                decoder = codec.load_decoder(device)
            except (CheckpointError, DeviceError) as error:
                link.send(Fatal(str(error)))
                return 1
            recorder = find_recorder(device) if options.graphs == "auto" else None
            if recorder is not None and isinstance(decoder, LaidOutDecoder):
                link.progress("capture graphs")
                decoder = graphed(decoder, limits, recorder, options.lookahead)
            serve(
                link,
                codec,
                decoder,
                lambda: in_background(codec.load_encoder(device), device),
                limits,
                FATAL,
            )
        except LinkClosed:
            pass
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="codec.worker")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--model", required=True, help="a folder or a hub id")
    parser.add_argument("--talker", help="the talker's folder, where it has not brought the codec")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--graphs", choices=("auto", "off"), default="auto")
    parser.add_argument("--precision", choices=("float32", "tf32"), default="float32")
    parser.add_argument("--lookahead", type=int, help="of most windows, in frames")
    parser.add_argument("--max-batch", type=int, default=BatchLimits().rows)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
