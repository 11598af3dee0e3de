"""Options of speech, as the plugin takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from talkwire_client.speech import SpeechOptions, context_create

#: Options of the client that the plugin itself decides.
RESERVED = frozenset(
    {"bitrate", "context_id", "encoding", "frame_ms", "mode", "sample_rate", "timestamps"}
)


def checked(options: Mapping[str, Any], sample_rate: int) -> SpeechOptions:
    """Check options before a speech needs them.

    Args:
        options: Options of ``Client.speak``; None selects the server's default.
        sample_rate: Of the audio, in Hz.

    Returns:
        The options that are not None, and those that the plugin decides. Their values are checked
        by the server.

    Raises:
        TypeError: There is no option of that name, the plugin decides it, or JSON has no such
            value.
        ValueError: A text is not Unicode.
    """
    if decided := sorted(RESERVED & options.keys()):
        raise TypeError(f"the plugin decides {', '.join(decided)} itself")
    complete = SpeechOptions(encoding="pcm_s16le", sample_rate=sample_rate)
    for name, value in options.items():
        if value is not None:
            complete[name] = value  # type: ignore[literal-required]
    context_create("check", complete)
    return complete
