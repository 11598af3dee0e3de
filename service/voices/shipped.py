"""The voices that ship with the project, for models that have none of their own.

They are clips with texts (``voices/``), because codes are specific to a codec. The loaded codec
encodes them at the start of the service.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from service.voices.clip_reader import ClipReader
from service.voices.store import Voice
from streaming.errors import TalkwireError
from streaming.ports import CodecEngine, EncodedClip, Reference

log = logging.getLogger(__name__)
#: How often a clip is read and encoded if that fails because the machine is busy.
_TRIES = 3
#: Folder of the clips.
SHIPPED = Path(__file__).resolve().parents[2] / "voices"


class ShippedVoicesError(Exception):
    """The clips cannot be read or encoded. The text is for operators."""


class ShippedClip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One clip and its text. ``file`` is in the folder of the list."""

    name: str
    file: str
    text: str
    language: str
    description: str


def read_list(folder: Path = SHIPPED) -> list[ShippedClip]:
    """Read ``voices.json``; the first clip is the default voice. Raises ShippedVoicesError."""
    path = folder / "voices.json"
    try:
        clips = msgspec.json.decode(_bytes(path), type=list[ShippedClip])
    except msgspec.MsgspecError as error:
        raise ShippedVoicesError(f"{path} is no list of clips: {error}") from error
    names = [clip.name for clip in clips]
    if not clips or len(set(names)) < len(names):
        raise ShippedVoicesError(f"{path} must name clips, each by a name of its own")
    if outside := [clip.file for clip in clips if Path(clip.file).name != clip.file]:
        raise ShippedVoicesError(f"{path} names files of other folders: {', '.join(outside)}")
    return clips


async def encode_shipped(
    codec: CodecEngine,
    reader: ClipReader,
    folder: Path = SHIPPED,
    check: Callable[[Reference], None] = lambda reference: None,
) -> list[Voice]:
    """Encode every clip with the loaded codec; none if it has no encoder.

    A clip that the codec refuses, or for which ``check`` raises TalkwireError because the model
    cannot use it, is logged and omitted. If the machine is too busy, a clip is tried again.

    Returns:
        Voices like a checkpoint's own, in the list's order; the first is the default one.

    Raises:
        ShippedVoicesError: The list or a clip cannot be read, or the codec failed repeatedly: the
            voices that are there would be fewer, and the default may be another.
    """
    clips = read_list(folder)
    if not codec.can_encode:
        log.warning("the shipped voices are not to be had: the codec has no encoder")
        return []
    voices: list[Voice] = []
    for clip in clips:
        try:
            encoded = await _encoded(codec, reader, folder / clip.file)
            check(Reference(encoded.codes, clip.text, encoded.vector))
        except TalkwireError as error:
            log.error("a shipped voice cannot be used: %s: %s", clip.name, error)
            continue
        told = (clip.text, clip.language, clip.description)
        voices.append(
            Voice(
                clip.name,
                clip.name,
                encoded.codes,
                *told,
                codec=codec.fingerprint,
                text_source="given",
                vector=encoded.vector,
            )
        )
    return voices


async def _encoded(codec: CodecEngine, reader: ClipReader, path: Path) -> EncodedClip:
    data = _bytes(path)
    for _ in range(_TRIES):
        try:
            return await codec.encode(await reader.read(data))
        except TalkwireError as error:
            if not error.retryable:
                raise
            log.warning("%s was not encoded: %s", path.name, error)
            failure = error
    message = f"{path.name} could not be encoded in {_TRIES} tries: {failure}"
    raise ShippedVoicesError(message) from failure


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ShippedVoicesError(f"{path} cannot be read: {error.strerror}") from error
