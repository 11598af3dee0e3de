"""The config class by which transformers and vLLM read the talker's config.json."""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from talker.shape import MODEL_TYPE, TalkerShape, read_shape, rope_theta


class HiggsTalkerConfig(PretrainedConfig):  # type: ignore[misc]  # untyped base
    """``config.json`` of a Higgs Audio v3 talker.

    ``shape`` is what the plugin works with; it raises CheckpointError where the file makes
    no sense. The text config is a plain Qwen3 config, with the rotary base filled in where
    the checkpoint leaves it null.
    """

    model_type = MODEL_TYPE
    is_composition = True

    def __init__(
        self,
        audio_encoder_config: dict[str, Any] | None = None,
        text_config: dict[str, Any] | PretrainedConfig | None = None,
        **rest: Any,
    ) -> None:
        # transformers also builds the class without arguments, to compare with the defaults
        self.audio_encoder_config = dict(audio_encoder_config or {})
        self.text_config: Any = (
            text_config
            if isinstance(text_config, PretrainedConfig)
            else _text_config(dict(text_config or {}))
        )
        super().__init__(**rest)

    @property
    def shape(self) -> TalkerShape:
        """Codebooks, special codes, the stop id and the backbone's sizes."""
        return read_shape(
            {
                "model_type": MODEL_TYPE,
                "audio_encoder_config": self.audio_encoder_config,
                "text_config": self.text_config.to_dict(),
                "eos_token_id": getattr(self, "eos_token_id", None),
                "audio_stream_bos_id": getattr(self, "audio_stream_bos_id", None),
                "audio_stream_eos_id": getattr(self, "audio_stream_eos_id", None),
            }
        )

    def get_text_config(self, *_: Any, **__: Any) -> PretrainedConfig:
        """The backbone's config; vLLM sizes the KV cache by it."""
        return self.text_config


def _text_config(text: dict[str, Any]) -> PretrainedConfig:
    text.pop("architectures", None)
    theta = rope_theta(text)
    text["rope_theta"] = theta
    text["rope_parameters"] = {
        **({"rope_type": "default"} | (text.get("rope_parameters") or {})),
        "rope_theta": theta,
    }
    return CONFIG_MAPPING[text.pop("model_type", "qwen3")](**text)
