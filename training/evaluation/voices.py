"""The voices of a checkpoint, as a voice source for the talker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from talker.prompts import ReferenceVoice
from talker.request_builder import DEFAULT_VOICE


class CheckpointVoices:
    """The voices ``<checkpoint>/voices/*.safetensors`` by name: a
    ``talker.request_builder.VoiceSource``.

    The one marked as default is also found as ``default``.
    """

    def __init__(self, folder: Path) -> None:
        self._voices: dict[str, ReferenceVoice] = {}
        self._default: ReferenceVoice | None = None
        self._teachers: dict[str, str] = {}
        for file in sorted((folder / "voices").glob("*.safetensors")):
            with safe_open(file, "np") as content:
                facts, codes = content.metadata() or {}, content.get_tensor("codes")
            voice = ReferenceVoice(codes.T, facts.get("text"))
            self._voices[facts.get("name", file.stem)] = voice
            if "teacher" in facts:
                self._teachers[facts.get("name", file.stem)] = facts["teacher"]
            if facts.get("default") == "true":
                self._default = voice

    def names(self) -> Sequence[str]:
        """Return the names of all voices."""
        return tuple(self._voices)

    def get(self, name: str) -> ReferenceVoice | None:
        """Return the voice of that name, or None."""
        return self._default if name == DEFAULT_VOICE else self._voices.get(name)

    def teacher(self, name: str) -> str | None:
        """Return the teacher's voice that a voice was trained on, if the checkpoint names it."""
        return self._teachers.get(name)
