"""What Wyoming's ``info`` says of this server: one program for speech, with all voices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service import __version__
from service.contexts.options import served_languages
from service.dialects.voice_lists import ListedVoice, VoiceListBody, list_voices
from service.runtime import Runtime
from text.languages import NAMED_LANGUAGES, language_code

_ATTRIBUTION = {"name": "Talkwire", "url": ""}
#: Domains of Wyoming that this server does not have.
_ABSENT = ("asr", "handle", "intent", "wake", "mic", "snd")
#: Voices, and the languages of those without one of their own.
_Listed = tuple[Sequence[ListedVoice], Sequence[str]]


def info_body(runtime: Runtime) -> VoiceListBody[_Listed]:
    """Return the data of ``info``, made again when voices change."""

    def take() -> _Listed:
        # clients offer only what has a language, also if the model follows the text
        return list_voices(runtime.voices), served_languages(runtime) or NAMED_LANGUAGES

    return VoiceListBody(runtime.voices, take, lambda listed: _info(runtime, listed))


def _info(runtime: Runtime, listed: _Listed) -> dict[str, Any]:
    voices, languages = listed
    program = {
        **_artifact("talkwire", f"Talkwire, model {runtime.settings.model_name}"),
        "voices": [
            {
                # Home Assistant shows the description, which several voices may share
                **_artifact(voice.name, ": ".join(filter(None, (voice.name, voice.description)))),
                "languages": [language_code(voice.language)] if voice.language else [*languages],
                "speakers": None,
            }
            for voice in voices
        ],
        "supports_synthesize_streaming": True,
    }
    return {"tts": [program], **{domain: [] for domain in _ABSENT}}


def _artifact(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": description,
        "attribution": _ATTRIBUTION,
        "installed": True,
        "version": __version__,
    }
