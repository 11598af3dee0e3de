"""A voice as a file: safetensors with the codes of a reference clip, and who agreed to it.

Tensor ``codes``: ``[K, T]`` int16, frames with the delay undone. Metadata, all strings:
``name``, ``text`` (what is said in the clip), ``language``, ``description``, and ``default``
("true" for one voice of a checkpoint). A voice of the service's own store has besides ``id``,
``created_at`` (seconds since 1970), ``codec`` (whose codes they are), ``text_source``, ``tenant``,
``consent_by``, ``consent_statement``, ``consent_at``, and ``sha256`` over all the others.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from streaming.spec import Codes

#: A minute of codes and a long transcript stay far below.
MAX_FILE_BYTES = 1 << 20
#: What the service calls a voice that was added; no name looks like it.
VOICE_ID = re.compile(r"voice_[0-9a-f]{16}")
_CHECKSUM = "sha256"


class VoiceFileError(Exception):
    """The file is no voice, or not the one that was written. The text is for operators."""


@dataclass(frozen=True, slots=True)
class Consent:
    """Who allowed the voice to be used, in which words, and when (ISO 8601)."""

    by: str
    statement: str
    at: str


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice to speak with. One of a checkpoint has its name as its id and no consent.

    ``tenant`` alone knows of a voice that it added; None: everybody does. ``text_source`` tells
    whether a person gave the text or a recogniser heard it.
    """

    id: str
    name: str
    codes: Codes
    text: str | None = None
    language: str | None = None
    description: str | None = None
    is_default: bool = False
    created_at: int | None = None
    codec: str = ""
    text_source: Literal["given", "recognised"] | None = None
    consent: Consent | None = None
    tenant: str | None = None


def pack(voice: Voice) -> bytes:
    """The file of a voice of the store."""
    assert voice.consent is not None
    entries = {
        "id": voice.id,
        "name": voice.name,
        "text": voice.text,
        "language": voice.language,
        "description": voice.description,
        "created_at": str(voice.created_at),
        "codec": voice.codec,
        "text_source": voice.text_source,
        "tenant": voice.tenant,
        "consent_by": voice.consent.by,
        "consent_statement": voice.consent.statement,
        "consent_at": voice.consent.at,
    }
    metadata = {name: value for name, value in entries.items() if value}
    codes = np.ascontiguousarray(voice.codes, np.int16)
    metadata[_CHECKSUM] = _checksum(codes, metadata)
    data: bytes = save({"codes": codes}, metadata)
    return data


def unpack(data: bytes) -> Voice:
    """A voice of the store, its checksum verified. Raises VoiceFileError."""
    codes, metadata = _read(data)
    if metadata.pop(_CHECKSUM, "") != _checksum(codes, metadata):
        raise VoiceFileError("the checksum is wrong")
    try:
        consent = Consent(
            metadata["consent_by"], metadata["consent_statement"], metadata["consent_at"]
        )
        heard = metadata.get("text_source") == "recognised"
        return Voice(
            metadata["id"],
            metadata["name"],
            codes,
            metadata.get("text"),
            metadata.get("language"),
            metadata.get("description"),
            created_at=int(metadata["created_at"]),
            codec=metadata["codec"],
            text_source="recognised" if heard else "given" if metadata.get("text") else None,
            consent=consent,
            tenant=metadata.get("tenant"),
        )
    except (KeyError, ValueError) as error:
        raise VoiceFileError(f"an entry is missing or wrong: {error}") from error


def unpack_built_in(data: bytes) -> Voice:
    """A voice that comes with a checkpoint. Raises VoiceFileError."""
    codes, metadata = _read(data)
    name = metadata.get("name", "")
    if not name:
        raise VoiceFileError("it has no name")
    return Voice(
        name,
        name,
        codes,
        metadata.get("text") or None,
        metadata.get("language") or None,
        metadata.get("description") or None,
        is_default=metadata.get("default") == "true",
        text_source="given" if metadata.get("text") else None,
    )


def _read(data: bytes) -> tuple[Codes, dict[str, str]]:
    if len(data) > MAX_FILE_BYTES:
        raise VoiceFileError("it is too large")
    try:
        tensors = load(data)  # checks the header
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__") or {}
    except (SafetensorError, KeyError, ValueError) as error:
        raise VoiceFileError("it is not a safetensors file") from error
    codes = tensors.get("codes")
    if codes is None or codes.dtype != np.int16 or codes.ndim != 2 or not codes.size:
        raise VoiceFileError("it has no codes [K, T] of int16")
    return codes, metadata


def _checksum(codes: Codes, metadata: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps([list(codes.shape), metadata], sort_keys=True).encode())
    digest.update(np.ascontiguousarray(codes, "<i2").tobytes())
    return digest.hexdigest()
