"""The voices of a checkpoint, as the talker takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from streaming.delay import apply_delay
from streaming.spec import CodecSpec
from talker.intake import DEFAULT_VOICE
from talker.prompts import ReferenceVoice


class CheckpointVoices:
    """``<checkpoint>/voices/*.safetensors`` by name; implements ``talker.intake.VoiceSource``.

    The one marked as default also answers to ``default``.
    """

    def __init__(self, folder: Path, codec: CodecSpec) -> None:
        self._voices: dict[str, ReferenceVoice] = {}
        self._default: ReferenceVoice | None = None
        for file in sorted((folder / "voices").glob("*.safetensors")):
            with safe_open(file, "np") as content:
                facts, codes = content.metadata() or {}, content.get_tensor("codes")
            size = codec.codebook_size
            voice = ReferenceVoice(apply_delay(codes.T, size, size + 1), facts.get("text"))
            self._voices[facts.get("name", file.stem)] = voice
            if facts.get("default") == "true":
                self._default = voice

    def names(self) -> Sequence[str]:
        """All of them."""
        return tuple(self._voices)

    def get(self, name: str) -> ReferenceVoice | None:
        """One of them, or None."""
        return self._default if name == DEFAULT_VOICE else self._voices.get(name)
