"""Qwen3-TTS checkpoints: a codec in the talker's folder ``speech_tokenizer``, or in its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codec.checkpoint import TensorFiles, read_config
from codec.families.qwen3_tts.config import (
    Qwen3TTSCodecConfig,
    decoder_shapes,
    encoder_shapes,
    parse_codec_config,
)
from codec.family import CheckpointError, CodecFamily

if TYPE_CHECKING:
    from codec.families.qwen3_tts.decoder import Qwen3TTSDecoder
    from codec.families.qwen3_tts.encoder import Qwen3TTSEncoder
    from codec.families.qwen3_tts.speaker_encoder import Qwen3TTSSpeakerEncoder

FOLDER = "speech_tokenizer"
_TALKER_TYPE = "qwen3_tts"
_CODEC_TYPE = "qwen3_tts_tokenizer_12hz"
#: ``tts_model_type`` of talkers that clone.
_CLONING = "base"


@dataclass(frozen=True, slots=True)
class Qwen3TTSCheckpoint:
    """Location and architecture of a codec. Implements ``codec.family.FoundCodec``."""

    tensors: TensorFiles
    config: Qwen3TTSCodecConfig

    @property
    def family(self) -> CodecFamily:
        """The Qwen3-TTS family."""
        return FAMILY

    def can_encode(self) -> bool:
        """See FoundCodec."""
        return all(map(self.tensors.has, encoder_shapes(self.config)))

    def load_decoder(self, device: str = "cpu") -> Qwen3TTSDecoder:
        """See FoundCodec."""
        from codec.families.qwen3_tts.decoder import Qwen3TTSDecoder

        tensors = self.tensors.load(decoder_shapes(self.config))
        return Qwen3TTSDecoder(self.config, tensors, device=device)

    def load_encoder(self, device: str = "cpu") -> Qwen3TTSEncoder:
        """See FoundCodec."""
        from codec.families.qwen3_tts.encoder import Qwen3TTSEncoder

        tensors = self.tensors.load(encoder_shapes(self.config))
        return Qwen3TTSEncoder(self.config, tensors, device=device)


def find_qwen3_tts(
    folder: Path, config: Mapping[str, Any], spoken: int | None = None
) -> Qwen3TTSCheckpoint | None:
    """See ``CodecFamily.find``."""
    kind = config.get("model_type")
    if kind == _TALKER_TYPE:
        folder = folder / FOLDER
        config = read_config(folder)
        if not config:
            raise CheckpointError(
                f"{folder.parent} lacks its codec: put the model's folder {FOLDER} there, or name "
                f"a folder or hub id with the codec by the setting codec_model"
            )
        if (kind := config.get("model_type")) != _CODEC_TYPE:
            raise CheckpointError(
                f"model_type in {folder / 'config.json'} is {kind!r}; only {_CODEC_TYPE!r} is known"
            )
    if kind != _CODEC_TYPE:
        return None
    sizes = parse_codec_config(config)
    books = sizes.decoder.num_quantizers
    if spoken is not None and spoken != books:
        raise CheckpointError(f"the talker speaks {spoken} codebooks, the codec has {books}")
    return Qwen3TTSCheckpoint(TensorFiles.open(folder), sizes)


def load_speaker_encoder(
    folder: Path, config: Mapping[str, Any], device: str = "cpu"
) -> Qwen3TTSSpeakerEncoder | None:
    """Load the speaker encoder in a talker's folder with this ``config.json``; None for a model
    that does not clone. Raises CheckpointError, also for tensors that it does not have.
    """
    if config.get("model_type") != _TALKER_TYPE or config.get("tts_model_type") != _CLONING:
        return None
    from codec.families.qwen3_tts.speaker_encoder import (
        PREFIX,
        Qwen3TTSSpeakerEncoder,
        parse_speaker_config,
        speaker_shapes,
    )

    sizes = parse_speaker_config(config)
    shapes, files = speaker_shapes(sizes), TensorFiles.open(folder)
    stored = {name for name in files.files if name.startswith(f"{PREFIX}.")}
    if unknown := sorted(stored.difference(shapes)):
        raise CheckpointError(
            f"{folder} has {len(unknown)} tensors that {PREFIX}_config does not name, first "
            f"{unknown[0]}"
        )
    return Qwen3TTSSpeakerEncoder(sizes, files.load(shapes), device=device)


FAMILY = CodecFamily(
    name="qwen3_tts",
    models=f"Qwen3-TTS 12 Hz (bundled in {FOLDER}, or a folder of its own)",
    find=find_qwen3_tts,
)
