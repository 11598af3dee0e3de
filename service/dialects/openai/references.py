"""Reference clips of a request, in OpenAI's extensions by vLLM-Omni and by SGLang-Omni."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.contexts.options import Prepare
from service.runtime import Runtime
from streaming.errors import ErrorCode, RequestError
from streaming.ports import Reference
from streaming.protocol.field_errors import invalid_parameter, unsupported

#: vLLM-Omni's.
TaskType = Literal["CustomVoice", "Base"]


class ReferenceClip(BaseModel):
    """A clip to speak like, as SGLang-Omni's clients send it."""

    model_config = ConfigDict(extra="ignore")

    audio: str | None = Field(None, description="The clip in base64, or as a `data:` address.")
    audio_path: Annotated[str, Field(max_length=4096)] | None = Field(
        None, description="A file under the server's `references_dir`, if it has one."
    )
    text: Annotated[str, Field(max_length=4000)] | None = Field(
        None, description="What is said in it, word for word."
    )


def check_task_type(task_type: TaskType | None, ref_audio: str | None) -> None:
    """Raise RequestError if vLLM-Omni's ``task_type`` contradicts the rest."""
    if task_type is not None and (task_type == "Base") != (ref_audio is not None):
        raise invalid_parameter(
            "task_type", "The task_type Base goes with ref_audio, CustomVoice with a voice."
        )


def prepare_ref_audio(
    ref_audio: str | None, ref_text: str | None, voice: object, runtime: Runtime
) -> Prepare | None:
    """How to make the reference of vLLM-Omni's fields; None where there is none.

    Raises:
        RequestError: The clip cannot be used, or stands beside a ``voice``; there is a text alone.
    """
    if ref_audio is None:
        if ref_text is not None:
            raise invalid_parameter("ref_text", "ref_text goes with ref_audio.")
        return None
    if voice is not None:
        raise invalid_parameter("ref_audio", "Give a voice or ref_audio, not both.")
    return runtime.cloner.prepare(ref_audio, ref_text, "ref_audio")


def prepare_clips(clips: Sequence[ReferenceClip], runtime: Runtime) -> Prepare:
    """How to make the references, one for each speaker. Raises RequestError."""
    runtime.cloner.require_count(len(clips), "references")
    each = [_prepare_clip(clip, f"references.{at}", runtime) for at, clip in enumerate(clips)]
    return runtime.cloner.prepare_together(each)


def _prepare_clip(clip: ReferenceClip, param: str, runtime: Runtime) -> Prepare:
    if (clip.audio is None) == (clip.audio_path is None):
        raise invalid_parameter(param, f"{param} has either audio or audio_path.")
    if clip.audio is not None:
        return runtime.cloner.prepare(clip.audio, clip.text, f"{param}.audio")
    param = f"{param}.audio_path"
    runtime.cloner.require_able(param)
    folder = runtime.settings.references_dir
    if folder is None:
        raise unsupported(
            param, "This server reads no files of its own for a client; send the clip as audio."
        )
    path, text = Path(clip.audio_path or ""), (clip.text or "").strip() or None

    async def prepare() -> tuple[Reference, ...]:
        most = runtime.cloner.max_clip_bytes
        data = await asyncio.to_thread(read_under, folder, path, most, param)
        return (await runtime.cloner.one_off(data, text),)

    return prepare


def read_under(folder: Path, path: Path, max_bytes: int, param: str) -> bytes:
    """A file's bytes, if it is in ``folder`` or below, wherever links lead.

    Raises RequestError, the same for a file that is elsewhere, is none or is not there, so that
    nobody learns what this machine has.
    """
    wrong = invalid_parameter(
        param, "audio_path must be a clip under the server's folder of references."
    )
    root = folder.resolve()
    try:
        found = (root / path).resolve(strict=True)
        if not (found.is_relative_to(root) and found.is_file()):
            raise wrong
        with found.open("rb") as file:
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise wrong from error
    if len(data) > max_bytes:
        raise RequestError(
            ErrorCode.INVALID_AUDIO, f"A clip has {max_bytes} bytes at most.", param=param
        )
    return data
