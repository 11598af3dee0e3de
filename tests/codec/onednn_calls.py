"""A child process: every family's decoder and encoder at many sizes, each with what oneDNN does.

Run it with ONEDNN_VERBOSE=profile_exec. After its first call, each call stands between the lines
``CALL part FRAMESxBATCH`` and ``END``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from codec.families.fish.config import FishConfig
from codec.families.fish.config import decoder_shapes as fish_decoder_shapes
from codec.families.fish.config import encoder_shapes as fish_encoder_shapes
from codec.families.fish.decoder import FishDecoder
from codec.families.fish.encoder import FishEncoder
from codec.families.higgs.checkpoint import open_higgs
from codec.families.higgs.decoder import HiggsDecoder
from codec.families.qwen3_tts.config import Qwen3TTSCodecConfig
from codec.families.qwen3_tts.config import decoder_shapes as qwen3_tts_decoder_shapes
from codec.families.qwen3_tts.config import encoder_shapes as qwen3_tts_encoder_shapes
from codec.families.qwen3_tts.decoder import Qwen3TTSDecoder
from codec.families.qwen3_tts.encoder import Qwen3TTSEncoder
from codec.family import ClipEncoder
from streaming.ports import CodecDecoder
from streaming.window import DecodeWindow
from tests.codec import fish_checkpoint, qwen3_tts_checkpoint
from tests.codec.conftest import CHECKPOINT, random_tensors

#: With layers as wide as those of the embedded codec.
FISH: FishConfig = replace(
    fish_checkpoint.TINY, dim=320, feed_forward=64, decoder_dim=384, encoder_dim=32
)
QWEN3_TTS = Qwen3TTSCodecConfig(
    replace(qwen3_tts_checkpoint.TINY.decoder, codebook_dim=160, latent_dim=320, decoder_dim=384),
    replace(qwen3_tts_checkpoint.TINY.encoder, num_filters=32),
)
#: New frames of the windows, and windows in a batch. Which layout a layer wants goes by both.
SIZES = ((1, 1), (2, 1), (3, 1), (4, 1), (7, 1), (16, 1), (2, 3))
CLIP_FRAMES = (10, 11, 12)


Call = tuple[str, int, int, Callable[[], object]]


def decodes(name: str, decoder: CodecDecoder) -> Iterator[Call]:
    left, right = decoder.spec.left_frames, min(2, decoder.spec.right_frames)
    for new, batch in SIZES:
        codes = np.zeros((decoder.spec.num_codebooks, left + new + right), np.int16)
        windows = [DecodeWindow(codes, left, new, right, left)] * batch
        yield name, new, batch, partial(decoder.decode_windows, windows)


def encodes(name: str, encoder: ClipEncoder) -> Iterator[Call]:
    for frames in CLIP_FRAMES:
        clip = np.zeros(frames * 960, np.float32)
        yield name, frames, 1, partial(encoder.encode, clip)


def calls() -> Iterator[Call]:
    higgs = open_higgs(str(CHECKPOINT))
    yield from decodes("higgs-causal-decoder", higgs.load_decoder())
    yield from decodes("higgs-decoder", HiggsDecoder(higgs.config, random_tensors(higgs.config)))
    yield from encodes("higgs-encoder", higgs.load_encoder())
    fish = fish_checkpoint.random_tensors(fish_decoder_shapes(FISH) | fish_encoder_shapes(FISH))
    yield from decodes("fish-decoder", FishDecoder(FISH, fish))
    yield from encodes("fish-encoder", FishEncoder(FISH, fish))
    shapes = qwen3_tts_decoder_shapes(QWEN3_TTS), qwen3_tts_encoder_shapes(QWEN3_TTS)
    decoder, encoder = map(qwen3_tts_checkpoint.random_tensors, shapes)
    yield from decodes("qwen3-tts-decoder", Qwen3TTSDecoder(QWEN3_TTS, decoder))
    yield from encodes("qwen3-tts-encoder", Qwen3TTSEncoder(QWEN3_TTS, encoder))


def main() -> None:
    torch.set_num_threads(1)
    for name, frames, batch, call in calls():
        call()
        print(f"CALL {name} {frames}x{batch}", flush=True)
        call()
        print("END", flush=True)


if __name__ == "__main__":
    main()
