"""The codec worker process: ``python -m codec.worker --socket FD --model MODEL``.

It loads the codec with torch, on a CPU or a GPU, and serves it (``codec.decode_loop``).
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Sequence

import torch

from codec.batching import BatchLimits
from codec.decode_loop import Link, serve
from codec.families import open_codec, open_speaker_encoder
from codec.family import CheckpointError, DeviceError, SpeakerEncoder
from codec.graphs import (
    LaidOutDecoder,
    Recorder,
    choose_device,
    graphed,
    in_background,
    recorder_for,
)
from codec.layers import set_tf32
from codec.memory import keep_freed_memory
from codec.messages import ToWorker
from codec.precision import Precision
from codec.snake import use_kernel
from codec.stream_decoder import StreamDecoder
from codec.stream_graphs import stream_graphed
from codec.warmup import keep_kernels
from ipc.child import LinkClosed
from ipc.framing import Fatal
from streaming.gpu_limits import CPU_CODEC, CodecLimits, codec_limits
from streaming.ports import CodecDecoder

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
    set_tf32(False)
    keep_freed_memory()
    keep_kernels()
    with Link(options.socket, ToWorker) as link:
        try:
            link.progress("load")
            try:
                device = choose_device(options.device)
                codec = open_codec(options.model, options.talker)
                if options.graphs == "auto":
                    use_kernel(device)
                decoder = codec.load_decoder(device)
                speakers = open_speaker_encoder(options.talker or options.model, device)
            except (CheckpointError, DeviceError) as error:
                link.send(Fatal(str(error)))
                return 1
            on_gpu = torch.device(device).type == "cuda"
            uses_tf32 = options.precision == "tf32" or (options.precision == "auto" and on_gpu)
            settings: dict[str, str | int] = {
                "device": device,
                "precision": "tf32" if uses_tf32 else "float32",
            }
            chosen = _limits(options, device, decoder)
            if isinstance(decoder, StreamDecoder):
                decoder.cache.max_bytes = settings["state_bytes"] = chosen.cache_bytes
            limits = BatchLimits(rows=chosen.max_batch)
            precision = Precision(set_tf32 if uses_tf32 else None)
            recorder = find_recorder(device) if options.graphs == "auto" else None
            if recorder is not None and isinstance(decoder, LaidOutDecoder | StreamDecoder):
                link.progress("capture graphs")
                with precision.decoding():
                    decoder = (
                        stream_graphed(decoder, limits, recorder)
                        if isinstance(decoder, StreamDecoder)
                        else graphed(decoder, limits, recorder, options.lookahead)
                    )
            # With several threads, or a GPU, this thread's time is not the decoder's.
            alone = options.threads == 1 and not on_gpu
            serve(
                link,
                codec,
                decoder,
                lambda: in_background(codec.load_encoder(device), device),
                limits,
                FATAL,
                time.thread_time if alone else None,
                None if speakers is None else in_background(speakers, device),
                voices_fingerprint(decoder, speakers),
                precision,
                settings,
            )
        except LinkClosed:
            pass
    return 0


def _limits(options: argparse.Namespace, device: str, decoder: CodecDecoder) -> CodecLimits:
    """Return the operator's limits; those that are not set follow from the device's memory."""
    found = CPU_CODEC
    if torch.device(device).type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        found = codec_limits(
            total, free, decoder.state_bytes if isinstance(decoder, StreamDecoder) else 0
        )
    batch, states = options.max_batch, options.state_bytes
    return CodecLimits(
        found.max_batch if batch is None else batch,
        found.cache_bytes if states is None else states,
    )


def voices_fingerprint(decoder: CodecDecoder, speakers: SpeakerEncoder | None) -> str:
    """Return an identifier of what codes and vectors of voices mean."""
    if speakers is None:
        return decoder.fingerprint
    both = f"{decoder.fingerprint} {speakers.fingerprint}"
    return hashlib.sha256(both.encode()).hexdigest()[:32]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="codec.worker")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--model", required=True, help="a folder or a hub id")
    parser.add_argument("--talker", help="the talker's folder, where it has not brought the codec")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--graphs", choices=("auto", "off"), default="auto")
    parser.add_argument("--precision", choices=("auto", "float32", "tf32"), default="auto")
    parser.add_argument("--lookahead", type=int, help="of most windows, in frames")
    parser.add_argument("--max-batch", type=int)
    parser.add_argument("--state-bytes", type=int, help="for the states of streams")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
