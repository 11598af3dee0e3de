"""A tiny random Higgs Audio v3 checkpoint in the published format, with a Qwen-like tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from talker.families.higgs_v3.prompts import CONTROL_TAGS

BOOKS, CODES = 8, 1026
BOC, EOC = 1024, 1025
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 3, 64, 128, 4, 2, 32
TEXT_ROWS = 1024
#: From two layers; two of the heads share their keys.
HEADS_TO_WATCH = ((2, 3), (0, 1), (2, 2))
#: Streams end as those of the embedded voice, and there is no continuity.
GENERATION = {"alignment_heads": HEADS_TO_WATCH, "end_codebooks": 1, "continuation": False}
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "t"), ("a", "n"), ("an", "d")]
#: Added tokens of a Qwen-like vocabulary, besides the family's control tokens.
QWEN_ADDED = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|vision_pad|>",
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<think>", "</think>",
)  # fmt: skip
FAMILY_ADDED = (
    "<|tts|>", "<|audio|>", "<|audio_end|>", "<|text|>", "<|ref_audio|>", "<|ref_text|>",
)  # fmt: skip


def write_tokenizer(folder: Path, tags: frozenset[str] = CONTROL_TAGS) -> Tokenizer:
    """A byte-level BPE tokenizer; control tags are added tokens, one id each."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = alphabet + [a + b for a, b in MERGES]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, MERGES))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True, normalized=False) for t in QWEN_ADDED + FAMILY_ADDED]
    tokenizer.add_tokens(special)
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in sorted(tags)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def config(stop_id: int, **text: Any) -> dict[str, Any]:
    """config.json; keyword arguments change the text section."""
    return {
        "model_type": "higgs_multimodal_qwen3",
        "architectures": ["HiggsMultimodalQwen3ForConditionalGeneration"],
        "audio_encoder_config": {
            "num_codebooks": BOOKS, "vocab_size": CODES, "tie_word_embeddings": True,
        },
        "text_config": {
            "model_type": "qwen3", "vocab_size": TEXT_ROWS, "hidden_size": HIDDEN,
            "intermediate_size": INNER, "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
            "rms_norm_eps": 1e-6, "rope_theta": None, "max_position_embeddings": 1024,
            "tie_word_embeddings": True, "attention_bias": False, "hidden_act": "silu", **text,
        },
        "eos_token_id": stop_id,
        "torch_dtype": "float32",
    }  # fmt: skip


def weights(seed: int = 2, eoc_gain: float = 3.2) -> dict[str, torch.Tensor]:
    """Random weights; ``eoc_gain`` makes codebook 0 draw EOC often enough to end streams."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int, std: float) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * std

    def norm(size: int) -> torch.Tensor:
        return 1 + draw(size, std=0.1)

    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    made = {
        "tied.embedding.text_embedding.weight": draw(TEXT_ROWS, HIDDEN, std=1.0),
        "tied.embedding.modality_embeddings.0.embedding.weight": draw(
            BOOKS * CODES, HIDDEN, std=0.35
        ),
        "tied.embedding.modality_embeddings.0.model.fc2.weight": draw(3, 3, std=1.0),
        "body.norm.weight": norm(HIDDEN),
    }
    made["tied.embedding.modality_embeddings.0.embedding.weight"][EOC] *= eoc_gain
    for layer in range(LAYERS):
        at = f"body.layers.{layer}."
        made |= {
            f"{at}input_layernorm.weight": norm(HIDDEN),
            f"{at}post_attention_layernorm.weight": norm(HIDDEN),
            f"{at}self_attn.q_proj.weight": draw(queries, HIDDEN, std=HIDDEN**-0.5),
            f"{at}self_attn.k_proj.weight": draw(keys, HIDDEN, std=HIDDEN**-0.5),
            f"{at}self_attn.v_proj.weight": draw(keys, HIDDEN, std=HIDDEN**-0.5),
            f"{at}self_attn.o_proj.weight": draw(HIDDEN, queries, std=queries**-0.5),
            f"{at}self_attn.q_norm.weight": norm(HEAD_DIM),
            f"{at}self_attn.k_norm.weight": norm(HEAD_DIM),
            f"{at}mlp.gate_proj.weight": draw(INNER, HIDDEN, std=HIDDEN**-0.5),
            f"{at}mlp.up_proj.weight": draw(INNER, HIDDEN, std=HIDDEN**-0.5),
            f"{at}mlp.down_proj.weight": draw(HIDDEN, INNER, std=INNER**-0.5),
        }
    return made


def write_checkpoint(folder: Path, *, shards: int = 1) -> Path:
    """Write a checkpoint into ``folder`` and return the folder."""
    tokenizer = write_tokenizer(folder)
    stop = tokenizer.token_to_id("<|endoftext|>")
    assert stop is not None
    (folder / "config.json").write_text(json.dumps(config(stop)))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    made = weights()
    if shards == 1:
        save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    weight_map = {}
    names = sorted(made)
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        mine = {name: made[name] for name in names[shard::shards]}
        save_file(mine, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
