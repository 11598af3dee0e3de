"""Settings that can be changed while the service runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipecat.services.settings import TTSSettings
from pipecat.utils.types import NOT_GIVEN, NotGiven


def _not_given() -> NotGiven:
    return NOT_GIVEN


@dataclass
class TalkwireTTSSettings(TTSSettings):
    """Settings of :class:`~pipecat_talkwire.tts.TalkwireTTSService`.

    None selects the server's default. A change takes effect with the next text: the current context
    is ended, and the rest of its turn is spoken in another one.

    Parameters:
        temperature: Randomness of sampling, 0 to 2; 0 always takes the most likely code.
        top_p: Share of the probability to sample from, above 0 and up to 1.
        top_k: Number of candidates to sample from.
        seed: The same seed and text give the same audio.
        ras_win_len: Number of last codes in which a repeated code is drawn again, for models with
            repetition-aware sampling; 0: never.
        ras_max_repeat: How often a code must be among them to be drawn again.
        speed: Factor of the voice's own speed, at the same pitch, 0.25 to 4.
        continuity: ``context``: each utterance of a turn continues those before it; ``none``: each
            is spoken by itself. The server tells which of them it supports.
        max_lead_ms: How far generation may run ahead of playback. Audio that is ahead is lost when
            the user interrupts, so a small lead saves work.
        scene: Where and how the text is spoken, for models that take a scene; the server refuses
            it for others.
        instructions: How to speak, or the voice to speak with, in words, for models that take them;
            the server refuses them for others.
    """

    temperature: float | NotGiven | None = field(default_factory=_not_given)
    top_p: float | NotGiven | None = field(default_factory=_not_given)
    top_k: int | NotGiven | None = field(default_factory=_not_given)
    seed: int | NotGiven | None = field(default_factory=_not_given)
    ras_win_len: int | NotGiven | None = field(default_factory=_not_given)
    ras_max_repeat: int | NotGiven | None = field(default_factory=_not_given)
    speed: float | NotGiven | None = field(default_factory=_not_given)
    continuity: str | NotGiven | None = field(default_factory=_not_given)
    max_lead_ms: int | NotGiven | None = field(default_factory=_not_given)
    scene: str | NotGiven | None = field(default_factory=_not_given)
    instructions: str | NotGiven | None = field(default_factory=_not_given)

    @classmethod
    def server_defaults(cls) -> TalkwireTTSSettings:
        """Return complete settings that leave everything to the server."""
        return cls(
            model=None,
            voice=None,
            language=None,
            temperature=None,
            top_p=None,
            top_k=None,
            seed=None,
            ras_win_len=None,
            ras_max_repeat=None,
            speed=None,
            continuity=None,
            max_lead_ms=None,
            scene=None,
            instructions=None,
        )

    def as_options(self) -> dict[str, Any]:
        """Return the fields of ``context.create`` that are set, without the audio's format.

        The settings must be complete.
        """
        sampling = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "ras_win_len": self.ras_win_len,
            "ras_max_repeat": self.ras_max_repeat,
        }
        options = {
            "model": self.model,
            "voice": self.voice,
            "language": None if self.language is None else str(self.language),
            "sampling": _set(sampling) or None,
            "continuity": self.continuity,
            "max_lead_ms": self.max_lead_ms,
            "scene": self.scene,
            "instructions": self.instructions,
            **self.extra,
        }
        return _set(options)


def _set(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
