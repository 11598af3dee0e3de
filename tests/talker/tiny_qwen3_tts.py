"""A tiny random Qwen3-TTS checkpoint in the published format: CustomVoice, VoiceDesign or Base.

Only sizes are small. The codec vocabulary keeps its form: the codes, then 1,024 special ids, each
as far from the codes' end as in the published one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers

from codec.families.qwen3_tts.speaker_encoder import (
    SpeakerSizes,
    parse_speaker_config,
    speaker_shapes,
)
from talker.families.qwen3_tts import Qwen3TTS
from tests.codec.qwen3_tts_checkpoint import random_tensors
from tests.codec.speaker_clips import SIZES

CODES, BOOKS = 64, 16
SPEAKERS = {"Vivian": 3065, "ryan": 3061, "eric": 2875, "dylan": 2878}
LANGUAGES = {"english": 2050, "chinese": 2055, "sichuan_dialect": 2062, "beijing_dialect": 2074}
DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
#: Added tokens by their distance from the first.
ADDED = {
    "<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<tts_pad>": 28, "<tts_text_bos>": 29,
    "<tts_text_eod>": 30, "<tts_text_bos_single>": 31, "<|audio_pad|>": 32,
}  # fmt: skip
WORDS = ("assistant", "the", "Ġthe", "hello", "Ġhello", "Ġworld")
GENERATION = {
    "do_sample": True, "repetition_penalty": 1.05, "temperature": 0.9, "top_p": 1.0, "top_k": 50,
    "subtalker_dosample": True, "subtalker_temperature": 0.9, "subtalker_top_p": 1.0,
    "subtalker_top_k": 50, "max_new_tokens": 8192,
}  # fmt: skip


def speaker_sizes(width: int) -> SpeakerSizes:
    """The sizes of Base's speaker encoder. The makers' mel takes 128 bands."""
    return replace(SIZES, enc_dim=width, mel_dim=128)


def special(published: int) -> int:
    """A special id of the published codec vocabulary in this one."""
    return published - 2048 + CODES


def write_tokenizer(folder: Path) -> int:
    """Write the three files of the tokenizer; returns the first added token's id."""
    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = list[str]()
    for word in WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
    first = len(vocab)
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    names = {offset: name for name, offset in ADDED.items()}
    added = {
        str(first + at): {"content": names.get(at, f"<|other_{at}|>"), "special": True}
        for at in range(33)
    }
    settings = {"added_tokens_decoder": added, "tokenizer_class": "Qwen2Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return first


def config(
    first_added: int, width: int = 64, kind: str = "custom_voice", size: str = "1b7"
) -> dict[str, Any]:
    """The content of config.json. With a ``width`` of 48 the predictor has no projection."""
    speakers = SPEAKERS if kind == "custom_voice" else {}
    part = {"rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "attention_bias": False,
            "num_code_groups": BOOKS, "num_attention_heads": 4,
            "num_key_value_heads": 2}  # fmt: skip
    names = {"pad": 2148, "bos": 2149, "eos_token": 2150, "think": 2154, "nothink": 2155,
             "think_bos": 2156, "think_eos": 2157}  # fmt: skip
    ids = {"im_start": "<|im_start|>", "im_end": "<|im_end|>", "tts_pad": "<tts_pad>",
           "tts_bos": "<tts_text_bos>", "tts_eos": "<tts_text_eod>"}  # fmt: skip
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"], "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz", "tts_model_type": kind,
        "tts_model_size": size, "dtype": "float32",
        **({"speaker_encoder_config": asdict(speaker_sizes(width))} if kind == "base" else {}),
        **{f"{name}_token_id": first_added + ADDED[token] for name, token in ids.items()},
        "talker_config": {
            **part, "hidden_size": width, "intermediate_size": 96, "num_hidden_layers": 3,
            "head_dim": 32, "vocab_size": CODES + 1024, "text_vocab_size": first_added + 40,
            "text_hidden_size": 56, "max_position_embeddings": 32768,
            "rope_scaling": {"interleaved": True, "mrope_section": [6, 5, 5],
                             "rope_type": "default"},
            **{f"codec_{name}_id": special(i) for name, i in names.items()},
            "codec_language_id": {name: special(i) for name, i in LANGUAGES.items()},
            "spk_id": {name: special(i) for name, i in speakers.items()},
            "spk_is_dialect": {name: DIALECTS.get(name, False) for name in speakers},
            "code_predictor_config": {
                **part, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
                "head_dim": 16, "vocab_size": CODES, "max_position_embeddings": 65536,
            },
        },
    }  # fmt: skip


def weights(settings: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights of sizes that keep codes varied."""
    dice = torch.Generator().manual_seed(seed)
    family = Qwen3TTS()
    made = {}
    for name, shape in family.expected_weights(family.read_shape(settings)).items():
        drawn = torch.randn(shape, generator=dice)
        if "norm" in name:
            made[name] = 1 + 0.2 * drawn
        elif name.endswith("bias"):
            made[name] = 0.1 * drawn
        elif "embedding" in name or "head" in name:
            made[name] = drawn
        else:
            made[name] = drawn * shape[-1] ** -0.5
    if settings["tts_model_type"] == "base":
        made |= random_tensors(speaker_shapes(parse_speaker_config(settings)), seed)
    return made


def write_checkpoint(
    folder: Path, *, width: int = 64, kind: str = "custom_voice", size: str = "1b7"
) -> Path:
    """Write a checkpoint into ``folder`` and return the folder."""
    settings = config(write_tokenizer(folder), width, kind, size)
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    save_file(weights(settings), folder / "model.safetensors", metadata={"format": "pt"})
    return folder
