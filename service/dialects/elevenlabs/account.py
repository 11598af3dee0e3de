"""ElevenLabs' account routes: voices, models, user, subscription and tokens."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from service.auth.caller import current_caller
from service.dialects.cloning import clone_voice, form_schema
from service.dialects.voice_lists import (
    ListedVoice,
    VoiceListBody,
    find_voice,
    list_voices,
    mentions,
)
from service.dialects.voices import delete_voice
from service.runtime import Runtime
from streaming.errors import ErrorCode
from streaming.protocol.field_errors import invalid_field

_TOKEN_KINDS = ("tts_websocket", "tts_websocket_multi")
#: A page's ``next_page_token``: where the next page begins, and the id of the voice before it.
_PAGE_TOKEN = re.compile(r"(\d{1,9}):(.*)", re.ASCII | re.DOTALL)
#: The ``voice_type`` of voices by category.
_VOICE_TYPES = {
    "premade": ("default", "non-community"),
    "cloned": ("personal", "workspace", "saved", "non-default", "non-community"),
}


class VoiceSettings(BaseModel):
    """Settings of a voice, at their defaults. Only ``speed`` has an effect."""

    stability: float = 0.5
    similarity_boost: float = 0.75
    style: float = 0.0
    use_speaker_boost: bool = True
    speed: float = 1.0


class Voice(BaseModel):
    """A voice in ElevenLabs' format."""

    voice_id: str
    name: str
    category: Literal["premade", "cloned"]
    description: str | None
    labels: dict[str, str]


class VoiceList(BaseModel):
    """All voices; the first is the default."""

    voices: list[Voice]


class VoicePage(BaseModel):
    """A page of the voices. ``next_page_token`` is for the next page."""

    voices: list[Voice]
    has_more: bool
    total_count: int
    next_page_token: str | None


class Price(BaseModel):
    """An amount of money."""

    amount: str = "0"
    currency: str = "usd"


class Subscription(BaseModel):
    """Limits of the key. Those that this server does not have are as large as possible."""

    tier: str = "talkwire"
    status: str = "active"
    character_count: int = 0
    character_limit: int = 2**31 - 1
    max_credit_limit_extension: str | int = "unlimited"
    can_extend_character_limit: bool = False
    allowed_to_extend_character_limit: bool = False
    voice_slots_used: int
    professional_voice_slots_used: int = 0
    professional_voice_slots_used_in_workspace: int = 0
    voice_limit: int
    voice_add_edit_counter: int = 0
    professional_voice_limit: int = 0
    can_extend_voice_limit: bool = False
    can_use_instant_voice_cloning: bool
    can_use_professional_voice_cloning: bool = False
    current_overage: Price = Price()
    open_invoices: list[Price] = []
    has_open_invoices: bool = False


class User(BaseModel):
    """The key and its tenant in ElevenLabs' format."""

    user_id: str
    workspace_id: str
    subscription: Subscription
    is_new_user: bool = False
    can_use_delayed_payment_methods: bool = False
    is_onboarding_completed: bool = True
    is_onboarding_checklist_completed: bool = True
    created_at: int
    seat_type: str = "workspace_member"


class AddedVoice(BaseModel):
    """A voice that was added."""

    voice_id: str
    requires_verification: bool = False


class DeletedVoice(BaseModel):
    """A voice that was deleted."""

    status: Literal["ok"] = "ok"


class Token(BaseModel):
    """A token, for the query parameter `single_use_token`."""

    token: str


def elevenlabs_models(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return ``GET /v1/models`` in ElevenLabs' format, with the served model's names."""
    return [
        {
            "model_id": name,
            "name": name,
            "can_do_text_to_speech": True,
            "can_do_voice_conversion": False,
            "can_be_finetuned": False,
            "can_use_style": False,
            "can_use_speaker_boost": False,
            "serves_pro_voices": False,
            "token_cost_factor": 1.0,
            "languages": [{"language_id": "en", "name": "English"}],
        }
        for name in names
    ]


def add_account(router: APIRouter, runtime: Runtime) -> None:
    """Add the routes of the account."""
    started = int(time.time())

    def shape(every: list[ListedVoice]) -> VoiceList:
        return VoiceList(voices=[_shaped(voice) for voice in every])

    body = VoiceListBody(runtime.voices, lambda: list_voices(runtime.voices), shape)

    @router.get("/v1/voices", response_model=VoiceList)
    async def voices() -> Response:
        """List the available voices."""
        return await body.response()

    @router.get("/v2/voices")
    async def voices_page(
        page_size: Annotated[int, Query(ge=1, le=100)] = 10,
        next_page_token: str | None = None,
        search: str = "",
        voice_ids: Annotated[list[str] | None, Query()] = None,
        category: str = "",
        voice_type: str = "",
        sort: Literal["", "name", "created_at_unix"] = "",
        sort_direction: Literal["asc", "desc"] = "asc",
    ) -> VoicePage:
        """List the available voices, in pages, the default first unless they are sorted."""
        wanted = frozenset(voice_ids or ())
        found = [
            voice
            for voice in list_voices(runtime.voices)
            if mentions(search, _searched(voice))
            and (not wanted or voice.id in wanted)
            and category in ("", _category(voice))
            and voice_type in ("", *_VOICE_TYPES[_category(voice)])
        ]
        if sort:
            by_name = sort == "name"
            found.sort(
                key=lambda voice: voice.name.lower() if by_name else voice.created_at or 0,
                reverse=sort_direction == "desc",
            )
        begin = _page_begin(next_page_token, found) if next_page_token else 0
        end = begin + page_size
        has_more = len(found) > end
        return VoicePage(
            voices=[_shaped(voice) for voice in found[begin:end]],
            has_more=has_more,
            total_count=len(found),
            next_page_token=f"{end}:{found[end - 1].id}" if has_more else None,
        )

    @router.get("/v1/voices/settings/default")
    async def default_settings() -> VoiceSettings:
        """Get the settings of any voice."""
        return VoiceSettings()

    @router.get("/v1/voices/{voice_id}/settings")
    async def voice_settings(voice_id: str) -> VoiceSettings:
        """Get the settings of a voice."""
        find_voice(voice_id, runtime.voices)
        return VoiceSettings()

    @router.get("/v1/voices/{voice_id}")
    async def voice(voice_id: str) -> Voice:
        """Get a voice."""
        return _shaped(find_voice(voice_id, runtime.voices))

    @router.get("/v1/user")
    async def user() -> User:
        """Get the caller's key and tenant."""
        caller = current_caller()
        return User(
            user_id=caller.key_id or "anybody",
            workspace_id=caller.tenant or "talkwire",
            subscription=await user_subscription(),
            created_at=started,
        )

    @router.get("/v1/user/subscription")
    async def user_subscription() -> Subscription:
        """Get the caller's limits."""
        caller = current_caller()
        most = runtime.accounts.limits(caller).max_voices
        return Subscription(
            voice_slots_used=sum(
                voice.consent is not None and voice.tenant == caller.tenant
                for voice in runtime.voices.library.voices(caller.tenant)
            ),
            voice_limit=runtime.settings.max_voices if most is None else most,
            can_use_instant_voice_cloning=runtime.voices.cloner.is_able,
        )

    @router.post("/v1/single-use-token/{token_type}")
    async def token(token_type: str) -> Token:
        """Create a token for a browser to use instead of the key on sockets, for 15 minutes."""
        if token_type not in _TOKEN_KINDS:
            allowed = " or ".join(_TOKEN_KINDS)
            raise invalid_field("token_type", token_type, allowed, ErrorCode.UNSUPPORTED)
        return Token(token=runtime.authority.issue_token(current_caller(), 15 * 60))


def add_cloning(router: APIRouter, runtime: Runtime) -> None:
    """Add the routes that add and delete voices."""

    @router.post("/v1/voices/add", openapi_extra=form_schema("files"))
    async def add(request: Request) -> AddedVoice:
        """Make and store a voice from a clip, with the consent of whose it is in `labels`."""
        voice = await clone_voice(
            request,
            runtime,
            "files",
            how=(
                "consent_by and consent_statement in labels, such as "
                'labels={"consent_by": "Anna", "consent_statement": "I agree to this use."}'
            ),
            refused={"remove_background_noise": "This server does not clean clips."},
        )
        return AddedVoice(voice_id=voice.id)

    @router.delete("/v1/voices/{voice_id}")
    async def delete(voice_id: str, request: Request) -> DeletedVoice:
        """Delete an added voice permanently, with its file, codes and name."""
        await delete_voice(request, runtime, voice_id)
        return DeletedVoice()


def _page_begin(token: str, voices: Sequence[ListedVoice]) -> int:
    """Return where the page of ``token`` begins. If the voice before it has been deleted, those
    after it have moved up by one. Raises RequestError (``invalid_parameter``).
    """
    match = _PAGE_TOKEN.fullmatch(token)
    if match is None:
        allowed = "the next_page_token of another page"
        raise invalid_field("next_page_token", token, allowed, ErrorCode.INVALID_PARAMETER)
    ids = [voice.id for voice in voices]
    return ids.index(match[2]) + 1 if match[2] in ids else max(0, int(match[1]) - 1)


def _searched(voice: ListedVoice) -> Iterator[str | None]:
    shaped = _shaped(voice)
    yield from (shaped.name, shaped.description, shaped.category, *shaped.labels.values())


def _category(voice: ListedVoice) -> Literal["premade", "cloned"]:
    return "premade" if voice.created_at is None else "cloned"


def _shaped(voice: ListedVoice) -> Voice:
    return Voice(
        voice_id=voice.id,
        name=voice.name,
        category=_category(voice),
        description=voice.description,
        labels={"language": voice.language} if voice.language else {},
    )
