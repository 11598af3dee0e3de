"""The supported codec families, and how the codec in a folder is found."""

from __future__ import annotations

from pathlib import Path

from codec.checkpoint import read_config, resolve_folder
from codec.families import fish, higgs, qwen3_tts
from codec.families.qwen3_tts.checkpoint import load_speaker_encoder
from codec.family import CheckpointError, CodecFamily, FoundCodec, SpeakerEncoder

#: In the order in which they are tried.
FAMILIES: tuple[CodecFamily, ...] = (higgs.FAMILY, fish.FAMILY, qwen3_tts.FAMILY)
_NAMED_AT_MOST = 8


def open_codec(model: str, talker: str | None = None) -> FoundCodec:
    """Find the codec of ``model``, a folder or a hub id.

    ``talker``: the folder of the talker that it decodes, if the codec has a folder of its own. Its
    configuration gives the number of codebooks in use. Raises CheckpointError.
    """
    spoken = None if talker is None else spoken_codebooks(Path(talker))
    return find_codec(resolve_folder(model), spoken)


def open_speaker_encoder(talker: str, device: str = "cpu") -> SpeakerEncoder | None:
    """Load the speaker encoder in the checkpoint of ``talker``, a folder or a hub id; None for a
    talker that needs no vectors of speakers. Raises CheckpointError.
    """
    folder = resolve_folder(talker)
    return load_speaker_encoder(folder, read_config(folder), device)


def find_codec(folder: Path, spoken: int | None = None) -> FoundCodec:
    """Find the codec in ``folder``, of which ``spoken`` codebooks are used.

    Raises CheckpointError, which names the files found and the codecs supported.
    """
    config = read_config(folder)
    for family in FAMILIES:
        found = family.find(folder, config, spoken)
        if found is not None:
            return found
    kind = config.get("model_type")
    files = sorted(path.name for path in folder.iterdir())
    listed = ", ".join(files[:_NAMED_AT_MOST]) + (" ..." if len(files) > _NAMED_AT_MOST else "")
    raise CheckpointError(
        f"{folder} holds no codec that is known here: its config.json is of model_type {kind!r}, "
        f"its files are {listed or 'none'}. Codecs are known of "
        f"{'; '.join(family.models for family in FAMILIES)}. Where a talker's checkpoint brings "
        f"none, the setting codec_model names the codec's folder or hub id."
    )


def spoken_codebooks(talker: Path) -> int | None:
    """Return the number of codebooks in a talker's ``config.json``; None if it has none."""
    config = read_config(talker)
    nested = (config.get("audio_encoder_config"), config.get("audio_decoder_config"))
    found = [config.get("audio_num_codebooks"), config.get("num_codebooks")]
    found += [part.get("num_codebooks") for part in nested if isinstance(part, dict)]
    if isinstance(talker_part := config.get("talker_config"), dict):
        found.append(talker_part.get("num_code_groups"))
    return next((number for number in found if isinstance(number, int) and number > 0), None)
