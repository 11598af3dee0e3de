"""Texts that are longer than one message."""

from __future__ import annotations

from msgspec import json

from clients.errors import ClientError
from streaming.wire import Limits

#: The longest that a character gets in JSON (``\u0000``), and room for the rest of a message.
_CHAR_BYTES, _ENVELOPE_BYTES = 6, 1024


def pieces(text: str, limits: Limits) -> list[str]:
    """``text``, in parts that each fit into a message.

    Raises ClientError if it needs several and is more than a context takes: the server would
    speak the first of them. Raises ValueError if it is not Unicode: half a surrogate pair, as
    Python makes of bytes that are not UTF-8.
    """
    most = limits.max_message_bytes - _ENVELOPE_BYTES
    chars = max(1, most // _CHAR_BYTES)
    try:
        if len(text) <= 1 or len(json.encode(text)) <= most:
            return [text]
    except UnicodeEncodeError as error:
        raise ValueError("a text holds half a surrogate pair: it was not UTF-8") from error
    if len(text) > limits.max_text_chars:
        raise ClientError(
            f"a context takes {limits.max_text_chars} characters at most, and not {len(text)}"
        )
    return [text[at : at + chars] for at in range(0, len(text), chars)]
