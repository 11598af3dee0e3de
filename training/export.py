"""Export of the checkpoint in the layout of ``bosonai/higgs-audio-v3-tts-4b``, with its voices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from text.english.sounds import SIGNS
from training.kokoro import Teacher
from training.quantise import ACTIVE, BEAM, Quantiser
from training.spectra import spectra
from training.speech import levelled, speak
from training.talker import (
    BOC,
    BOOKS,
    EOC,
    LETTERS,
    ROWS,
    SPECIALS,
    VOCABULARY,
    VOCABULARY_SIZE,
    TalkerNet,
)

CODEC = "tied.embedding.modality_embeddings.0.model."
_AUDIO = "tied.embedding.modality_embeddings.0.embedding.weight"
#: The analysis behind the codebooks, which a run that continues from the checkpoint needs.
ANALYSIS = "training/analysis.safetensors"


@dataclass(frozen=True, slots=True)
class NamedVoice:
    """A voice that ships: the teacher's voice, its clip's text, and its description."""

    name: str
    teacher: str
    text: str
    description: str


_HELLO = "hello, it's good to hear from you."
_MORNING = "good morning, how can i help you today?"
#: The first is the default voice. For their texts see ``training.clips``.
VOICES = (
    NamedVoice("heart", "af_heart", _HELLO, "Female, American; the default."),
    NamedVoice("michael", "am_michael", _HELLO, "Male, American, low."),
    NamedVoice("emma", "bf_emma", _MORNING, "Female, British."),
    NamedVoice("fenrir", "am_fenrir", _HELLO, "Male, American."),
    NamedVoice("george", "bm_george", _MORNING, "Male, British."),
)


def talker_names(net: TalkerNet) -> dict[str, str]:
    """Map the talker's tensors to their names in the real checkpoint."""
    named = {name: f"body.{name}" for name in net.state_dict()}
    return named | {"text.weight": "tied.embedding.text_embedding.weight", "audio": _AUDIO}


def weights(net: TalkerNet, codec: Any) -> dict[str, torch.Tensor]:
    """Return every tensor under its name in the real checkpoint, in bfloat16."""
    names = talker_names(net)
    found = {names[name]: tensor for name, tensor in net.state_dict().items()}
    found[_AUDIO] = found[_AUDIO].clone()
    found[_AUDIO][ACTIVE * ROWS :] = 0  # inert codebooks
    found |= {CODEC + name: tensor for name, tensor in codec.state_dict().items()}
    return {
        name: (t.to(torch.bfloat16) if t.is_floating_point() else t).contiguous().clone()
        for name, t in found.items()
    }


def config(net: TalkerNet, codec: Any) -> dict[str, Any]:
    """Return the contents of ``config.json``."""
    shape = net.shape
    rope = {"rope_type": "default", "rope_theta": shape.theta}
    text = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "intermediate_size": shape.ffn,
        "vocab_size": VOCABULARY_SIZE,
        "rope_theta": shape.theta,
        "rope_parameters": rope,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
    }
    return {
        "model_type": "higgs_multimodal_qwen3",
        "architectures": ["HiggsMultimodalQwen3ForConditionalGeneration"],
        "audio_token_id": -100,
        "audio_encoder_config": {
            "encoder_type": "discrete",
            "num_codebooks": BOOKS,
            "vocab_size": ROWS,
            "tie_word_embeddings": True,
            "out_dim": shape.hidden,
            "codec_config": codec.config.to_dict() | {"quantizer_beam": BEAM},
        },
        "text_config": text,
        "audio_stream_bos_id": BOC,
        "audio_stream_eos_id": EOC,
        "sample_rate": 24000,
        "frame_rate": 25,
        "eos_token_id": VOCABULARY["<|endoftext|>"],
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def tokenizer() -> Tokenizer:
    """Make a tokenizer with an id per letter or sign. It drops what the front end has not
    rewritten.
    """
    made = Tokenizer(models.WordLevel(vocab=dict(VOCABULARY), unk_token=" "))
    made.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(f"[^{LETTERS}{SIGNS}]+"), " "),
            normalizers.Replace(Regex(" +"), " "),
            normalizers.Strip(),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    return made


def clip_codes(
    text: str, voice: str, teacher: Teacher, table: Quantiser, gain: float
) -> torch.Tensor:
    """Return the codes ``[T, 8]`` of ``text`` spoken by one of the teacher's voices."""
    said = next(levelled([speak(text, voice, teacher)], {voice: gain}))
    return table.encode(spectra(torch.from_numpy(said.samples)), torch.from_numpy(said.pitch))


def write_voices(folder: Path, clips: Mapping[NamedVoice, torch.Tensor]) -> None:
    """Write a file for each voice: the codes ``[T, 8]`` of its clip, and its text."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (voice, codes) in enumerate(clips.items()):
        save_file(
            {"codes": codes.T.to(torch.int16).contiguous()},
            folder / f"{voice.name}.safetensors",
            metadata={
                "name": voice.name,
                "text": voice.text,
                "language": "en",
                "description": voice.description,
                "default": "true" if number == 0 else "false",
                "teacher": voice.teacher,
            },
        )


def write(
    folder: Path, net: TalkerNet, codec: Any, quantiser: Quantiser, generation: Mapping[str, Any],
    clips: Mapping[NamedVoice, torch.Tensor],
) -> None:  # fmt: skip
    """Write the whole checkpoint except its model card."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(net, codec), folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in (
        ("config.json", config(net, codec)),
        ("generation_config.json", generation),
        (
            "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": SPECIALS[0],
                "pad_token": SPECIALS[0],
                "additional_special_tokens": list(SPECIALS[1:]),
            },
        ),
    ):
        text = json.dumps(content, indent=1, default=str)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    (folder / ANALYSIS).parent.mkdir(exist_ok=True)
    save_file(quantiser.analysis(), folder / ANALYSIS)
    write_voices(folder / "voices", clips)
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o644)  # the library creates files that only their owner may read
