"""Shapes of the published talkers, for computed figures: the tests' small configs, enlarged."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from benchmarks.gpu_check.arithmetic import FULL
from service.settings import EMBEDDED_MODEL
from talker.alignment import Alignment
from talker.families import find_family
from tests.talker import tiny_fish, tiny_qwen3_tts, tiny_v2

#: By their names in the guide: frames per second.
FRAME_RATES = {
    "Higgs Audio v3 4B": 25.0,
    "Higgs Audio v2 3B": 25.0,
    "Fish Speech S2 Pro": 44_100 / 2048,
    "Qwen3-TTS 1.7B": 12.5,
    "Qwen3-TTS 0.6B": 12.5,
}


def published(name: str) -> Any:
    """A stand-in for the checkpoint of that name: its family and shape, without weights."""
    config = _CONFIGS[name]()
    family = find_family(config)
    return SimpleNamespace(
        family=family,
        shape=family.read_shape(config),
        quantisation=None,
        alignment=Alignment(),
        sampler_rules={"look_back": family.defaults.ras_longest},
    )


def _higgs_v3() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((EMBEDDED_MODEL / "config.json").read_text())
    config["text_config"] |= {
        "hidden_size": FULL.hidden,
        "intermediate_size": FULL.inner,
        "num_hidden_layers": FULL.layers,
        "num_attention_heads": FULL.heads,
        "num_key_value_heads": FULL.kv_heads,
        "head_dim": FULL.head_dim,
        "vocab_size": FULL.text_rows,
        "max_position_embeddings": 32_768,
    }
    config["audio_encoder_config"]["out_dim"] = FULL.hidden
    return config


def _higgs_v2() -> dict[str, Any]:
    ids: Any = SimpleNamespace(token_to_id=lambda token: 128_000)
    config = tiny_v2.config(ids)
    config["text_config"] |= {
        "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
        "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256,
    }  # fmt: skip
    config["audio_dual_ffn_layers"] = list(range(28))
    config |= {"audio_codebook_size": 1024, "audio_num_codebooks": 8}
    config |= {"audio_stream_bos_id": 1024, "audio_stream_eos_id": 1025}
    return config


def _fish() -> dict[str, Any]:
    part = {
        "dim": 2560, "intermediate_size": 9728, "n_head": 32, "n_local_heads": 8, "head_dim": 128,
    }  # fmt: skip
    ids: Any = SimpleNamespace(
        token_to_id=lambda token: 151_678 + int(token[11:-2]) if "semantic" in token else 151_645
    )
    config = tiny_fish.config(ids)
    config["text_config"] |= {**part, "n_layer": 36, "vocab_size": 155_776, "max_seq_len": 32_768}
    config["audio_decoder_config"] |= {**part, "text_dim": 2560, "n_layer": 4, "vocab_size": 4096}
    config["semantic_end_token_id"] = 151_678 + 4095
    return config


def _qwen3_tts(width: int, inner: int) -> dict[str, Any]:
    with patch.object(tiny_qwen3_tts, "CODES", 2048):
        config = tiny_qwen3_tts.config(151_643)
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    talker = config["talker_config"]
    talker |= {
        **heads, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 28,
        "text_vocab_size": 151_936, "text_hidden_size": 2048,
        "rope_scaling": {
            "interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default",
        },
    }  # fmt: skip
    talker["code_predictor_config"] |= {
        **heads, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5,
    }  # fmt: skip
    for part in (talker, talker["code_predictor_config"]):
        part["num_code_groups"] = 16
    return config


_CONFIGS = {
    "Higgs Audio v3 4B": _higgs_v3,
    "Higgs Audio v2 3B": _higgs_v2,
    "Fish Speech S2 Pro": _fish,
    "Qwen3-TTS 1.7B": lambda: _qwen3_tts(2048, 6144),
    "Qwen3-TTS 0.6B": lambda: _qwen3_tts(1024, 3072),
}
