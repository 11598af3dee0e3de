"""A tiny random Fish Speech S2 Pro checkpoint with the keys and names of ``fishaudio/s2-pro``.

As in the published model, heads times head size is not the hidden size (32 x 128 against 2560).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

BOOKS, SIZE = 10, 128
MERGES = [("h", "e"), ("l", "l"), ("Ġ", "t"), (".", "Ċ"), ("Ċ", "Ċ"), (".", "ĊĊ")]
#: Qwen's pre-tokenization: punctuation takes the line breaks after it along.
WORDS = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>", "<|phoneme_start|>",
    "<|phoneme_end|>", "<|text|>", "<|voice|>", "<|interleave|>", "<|audio_start|>",
    "<|audio_end|>", "<|audio_pad|>",
)  # fmt: skip
PART = {
    "n_head": 4, "n_local_heads": 2, "head_dim": 32, "dim": 48, "intermediate_size": 96,
    "rope_base": 1_000_000.0, "norm_eps": 1e-6, "dropout": 0.0, "attention_qkv_bias": False,
    "attention_o_bias": False,
}  # fmt: skip


def write_tokenizer(folder: Path) -> Tokenizer:
    """A byte-level BPE tokenizer with the family's added tokens; semantic ones come last."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = alphabet + [a + b for a, b in MERGES]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [*SPECIAL, *(f"<|semantic:{code}|>" for code in range(SIZE))]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in added])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def config(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of config.json."""
    ident = tokenizer.token_to_id
    return {
        "model_type": "fish_qwen3_omni", "dtype": "float32",
        "eos_token_id": ident("<|im_end|>"), "pad_token_id": ident("<|pad|>"),
        "audio_pad_token_id": ident("<|audio_pad|>"),
        "semantic_start_token_id": ident("<|semantic:0|>"),
        "semantic_end_token_id": ident(f"<|semantic:{SIZE - 1}|>"),
        "text_config": {
            "model_type": "fish_qwen3", "vocab_size": 448, "n_layer": 3, "max_seq_len": 1024,
            "tie_word_embeddings": True, "attention_qk_norm": True, **PART,
        },
        "audio_decoder_config": {
            "model_type": "fish_qwen3_audio_decoder", "vocab_size": SIZE, "num_codebooks": BOOKS,
            "text_dim": 48, "n_layer": 4, "max_seq_len": BOOKS + 1, "tie_word_embeddings": False,
            "attention_qk_norm": False, **PART,
        },
    }  # fmt: skip


def weights(settings: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights under the published names."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int, std: float) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * std

    made: dict[str, torch.Tensor] = {}
    for at, key in (
        ("text_model.model.", "text_config"), ("audio_decoder.", "audio_decoder_config"),
    ):  # fmt: skip
        part = settings[key]
        dim, size, inner = part["dim"], part["head_dim"], part["intermediate_size"]
        wide, fused = part["n_head"] * size, (part["n_head"] + 2 * part["n_local_heads"]) * size
        made[f"{at}embeddings.weight"] = draw(part["vocab_size"], dim, std=1.0)
        made[f"{at}norm.weight"] = 1 + draw(dim, std=0.2)
        for layer in range(part["n_layer"]):
            of = f"{at}layers.{layer}."
            made[f"{of}attention.wqkv.weight"] = draw(fused, dim, std=dim**-0.5)
            made[f"{of}attention.wo.weight"] = draw(dim, wide, std=wide**-0.5)
            made[f"{of}feed_forward.w1.weight"] = draw(inner, dim, std=dim**-0.5)
            made[f"{of}feed_forward.w3.weight"] = draw(inner, dim, std=dim**-0.5)
            made[f"{of}feed_forward.w2.weight"] = draw(dim, inner, std=inner**-0.5)
            made[f"{of}attention_norm.weight"] = 1 + draw(dim, std=0.2)
            made[f"{of}ffn_norm.weight"] = 1 + draw(dim, std=0.2)
            if part["attention_qk_norm"]:
                made[f"{of}attention.q_norm.weight"] = 1 + draw(size, std=0.2)
                made[f"{of}attention.k_norm.weight"] = 1 + draw(size, std=0.2)
    dim = settings["text_config"]["dim"]
    made["audio_decoder.output.weight"] = draw(SIZE, dim, std=1.0)
    made["audio_decoder.codebook_embeddings.weight"] = draw(BOOKS * SIZE, dim, std=1.0)
    return made


def write_checkpoint(folder: Path) -> Path:
    """Write a checkpoint into ``folder`` and return the folder."""
    settings = config(write_tokenizer(folder))
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(weights(settings), folder / "model.safetensors", metadata={"format": "pt"})
    return folder
