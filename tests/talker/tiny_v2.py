"""A tiny random Higgs Audio v2 checkpoint in either published format, with a Llama-like tokenizer.

Names, shapes (except for sizes) and config keys are those of
``bosonai/higgs-audio-v2-generation-3B-base`` at revision 10840182, and of transformers' conversion.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BOOKS, REAL = 8, 1024
ROWS, BOS, EOS = REAL + 2, REAL, REAL + 1
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, TEXT_ROWS = 3, 64, 128, 4, 2, 32, 320
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "t"), (".", "Ċ")]
ROPE = {
    "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3",
}  # fmt: skip
#: The same frequencies in transformers' units.
CONVERTED_ROPE = {
    "factor": 32.0, "high_freq_factor": 0.5, "low_freq_factor": 0.125, "rope_theta": 500000.0,
    "original_max_position_embeddings": 1024, "rope_type": "llama3",
}  # fmt: skip
SPECIAL = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eom_id|>", "<|eot_id|>", "<|audio_bos|>", "<|audio_eos|>", "<|audio_out_bos|>",
    "<|reserved_special_token_6|>", "<|AUDIO|>", "<|AUDIO_OUT|>", "<|scene_desc_start|>",
    "<|scene_desc_end|>", "<SE>", "</SE>", "<SE_s>", "</SE_s>", "<SE_e>", "</SE_e>",
)  # fmt: skip


def write_tokenizer(folder: Path) -> Tokenizer:
    """A byte-level BPE tokenizer with the family's added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = alphabet + [a + b for a, b in MERGES]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def config(tokenizer: Tokenizer) -> dict[str, Any]:
    """config.json in boson-ai's format."""
    ident = tokenizer.token_to_id
    return {
        "architectures": ["HiggsAudioModel"], "model_type": "higgs_audio",
        "torch_dtype": "float32", "audio_adapter_type": "dual_ffn_fast_forward",
        "audio_dual_ffn_layers": list(range(LAYERS)), "audio_num_codebooks": BOOKS,
        "audio_codebook_size": REAL, "audio_embed_avg": False, "audio_stream_bos_id": BOS,
        "audio_stream_eos_id": EOS, "audio_decoder_proj_num_layers": 0,
        "audio_ffn_hidden_size": HIDDEN, "audio_ffn_intermediate_size": INNER,
        "audio_eos_token_id": ident("<|audio_eos|>"),
        "audio_out_bos_token_id": ident("<|audio_out_bos|>"),
        "audio_in_token_idx": ident("<|AUDIO|>"), "audio_out_token_idx": ident("<|AUDIO_OUT|>"),
        "encode_audio_in_tokens": True, "encode_whisper_embed": False, "skip_audio_tower": True,
        "use_audio_out_embed_projector": False, "use_audio_out_self_attention": 0,
        "use_rq_transformer": False, "use_delay_pattern": True,
        "pad_token_id": ident("<|end_of_text|>"),
        "text_config": {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], **_llama(),
            "rope_theta": 500000.0, "rope_scaling": ROPE, "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
    }  # fmt: skip


def converted_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """config.json in transformers' format."""
    ident = tokenizer.token_to_id
    return {
        "architectures": ["HiggsAudioV2ForConditionalGeneration"], "model_type": "higgs_audio_v2",
        "dtype": "float32", **_llama(), "rope_parameters": CONVERTED_ROPE, "num_codebooks": BOOKS,
        "codebook_size": ROWS, "audio_token_id": ident("<|AUDIO_OUT|>"),
        "audio_bos_token_id": ident("<|audio_out_bos|>"),
        "audio_delay_token_id": ident("<|reserved_special_token_6|>"),
        "audio_stream_bos_id": BOS, "audio_stream_eos_id": EOS, "bos_token_id": 1,
        "eos_token_id": ident("<|eot_id|>"), "pad_token_id": ident("<|end_of_text|>"),
        "max_position_embeddings": 2048,
    }  # fmt: skip


def _llama() -> dict[str, Any]:
    return {
        "vocab_size": TEXT_ROWS, "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip


def weights(seed: int = 3, eos_gain: float = 2.3) -> dict[str, torch.Tensor]:
    """Random weights under boson-ai's names; ``eos_gain`` makes streams end now and then."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int, std: float) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * std

    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    made = {
        "embed_tokens.weight": draw(TEXT_ROWS, HIDDEN, std=1.0),
        "norm.weight": 1 + draw(HIDDEN, std=0.2),
        "audio_codebook_embeddings.weight": draw(BOOKS * ROWS, HIDDEN, std=0.35),
        "audio_decoder_proj.audio_lm_head.weight": draw(BOOKS * ROWS, HIDDEN, std=0.35),
        "audio_decoder_proj.text_lm_head.weight": draw(TEXT_ROWS, HIDDEN, std=0.35),
    }
    made["audio_decoder_proj.audio_lm_head.weight"][EOS] *= eos_gain
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        made[f"{at}self_attn.q_proj.weight"] = draw(queries, HIDDEN, std=HIDDEN**-0.5)
        made[f"{at}self_attn.k_proj.weight"] = draw(keys, HIDDEN, std=HIDDEN**-0.5)
        made[f"{at}self_attn.v_proj.weight"] = draw(keys, HIDDEN, std=HIDDEN**-0.5)
        made[f"{at}self_attn.o_proj.weight"] = draw(HIDDEN, queries, std=queries**-0.5)
        for audio in ("", "audio_"):
            made[f"{at}{audio}input_layernorm.weight"] = 1 + draw(HIDDEN, std=0.2)
            made[f"{at}{audio}post_attention_layernorm.weight"] = 1 + draw(HIDDEN, std=0.2)
            made[f"{at}{audio}mlp.gate_proj.weight"] = draw(INNER, HIDDEN, std=HIDDEN**-0.5)
            made[f"{at}{audio}mlp.up_proj.weight"] = draw(INNER, HIDDEN, std=HIDDEN**-0.5)
            made[f"{at}{audio}mlp.down_proj.weight"] = draw(HIDDEN, INNER, std=INNER**-0.5)
    return made


def converted_names(made: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights under transformers' names."""
    renamed = {}
    for name, weight in made.items():
        new = name.removeprefix("audio_decoder_proj.")
        new = new.replace("audio_codebook_embeddings", "embed_audio_tokens.embed_audio_tokens")
        renamed[new if new.endswith("lm_head.weight") else f"model.{new}"] = weight
    return renamed


def write_checkpoint(folder: Path, *, converted: bool = False) -> Path:
    """Write a checkpoint into ``folder`` and return the folder."""
    tokenizer, made = write_tokenizer(folder), weights()
    settings = converted_config(tokenizer) if converted else config(tokenizer)
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    made = converted_names(made) if converted else made
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
