"""Cartesia's pronunciation dictionaries: their routes, and how requests name one."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from service.access.rules import Rule as AccessRule
from service.access.rules import declare
from service.auth.caller import current_caller
from service.dialects.cartesia.messages import page_of
from service.hosts import require_own_page
from service.pronunciations.dictionary import Dictionary
from service.pronunciations.library import checked
from service.runtime import Runtime
from text.pronunciation.rules import MAX_RULES, Rule, RuleSet

_PATH = "/pronunciation-dicts"
#: Cartesia's names of the fields of a rule.
_NAMES = {"written": "text", "phonemes": "alias"}
#: An alias in phonemes: "<<ˈ|w|ʊ|s|t|ɚ>>".
_PHONEMES = re.compile(r"<<(?P<phonemes>[^<>]{1,400})>>")


class Item(BaseModel):
    """A rule in Cartesia's format."""

    text: str = Field(description="The word or phrase.")
    alias: str = Field(description="The text to speak instead, or phonemes in IPA: `<<ˈ|w|ʊ|s>>`.")
    case_sensitive: bool | None = Field(None, description="Without it, false.")

    def fields(self) -> dict[str, Any]:
        """Return our fields of the rule."""
        found = _PHONEMES.fullmatch(self.alias.strip())
        phonemes = None if found is None else found["phonemes"].replace("|", "")
        return {
            "written": self.text.strip(),
            "alias": self.alias if phonemes is None else None,
            "phonemes": phonemes,
            "case_sensitive": bool(self.case_sensitive),
        }

    @classmethod
    def of(cls, rule: Rule) -> Item:
        """Return a rule in this format."""
        alias = f"<<{rule.phonemes}>>" if rule.alias is None else rule.alias
        return cls(text=rule.written, alias=alias, case_sensitive=rule.case_sensitive)


Name = Annotated[str, Field(min_length=1, max_length=256)]
Items = Annotated[list[Item], Field(max_length=MAX_RULES)]


class NewBody(BaseModel):
    """The body of a new dictionary."""

    name: Name
    items: Items | None = None


class ChangeBody(BaseModel):
    """The body of a change. ``items`` replace all before."""

    name: Name | None = None
    items: Items | None = None


class DictionaryAnswer(BaseModel):
    """A dictionary in Cartesia's format."""

    id: str
    name: str
    owner_id: str
    created_at: str
    pinned: bool = False
    items: list[Item]


class DictionaryPage(BaseModel):
    """A page of dictionaries. ``next_page``: see the page of voices."""

    data: list[DictionaryAnswer]
    has_more: bool
    next_page: str | None


def dictionary_of(id: str | None, runtime: Runtime) -> tuple[RuleSet, ...]:
    """Return the rules of the dictionary of a request, if it names one. Raises RequestError
    (``unknown_pronunciations``).
    """
    tenant = current_caller().tenant
    names = [id] if id else []
    return runtime.pronunciations.resolve(names, tenant, param="pronunciation_dict_id")


def add_pronunciations(router: APIRouter, runtime: Runtime, rule: AccessRule) -> None:
    """Add the routes of dictionaries. ``rule``: of those that change one."""
    library, changes = runtime.pronunciations, declare(rule)

    @router.post(_PATH)
    @router.post(_PATH + "/", include_in_schema=False)
    @changes
    async def add(body: NewBody, request: Request) -> DictionaryAnswer:
        """Add a dictionary."""
        require_own_page(request, runtime.settings.allowed_origins)
        caller = current_caller()
        rules = _rules(body.items or [])
        made = await library.add(body.name, rules, tenant=caller.tenant, created_by=caller.key_id)
        return _shaped(made)

    @router.get(_PATH)
    @router.get(_PATH + "/", include_in_schema=False)
    async def dictionaries(
        limit: Annotated[int, Query(ge=1, le=100)] = 10,
        starting_after: str | None = None,
        ending_before: str | None = None,
    ) -> DictionaryPage:
        """List the dictionaries, in pages."""
        found = library.visible(current_caller().tenant)
        ids = [one.id for one in found]
        begin, end, following = page_of(ids, limit, starting_after, ending_before)
        data = [*map(_shaped, found[begin:end])]
        return DictionaryPage(data=data, has_more=following is not None, next_page=following)

    @router.get(_PATH + "/{id}")
    async def dictionary(id: str) -> DictionaryAnswer:
        """Get a dictionary."""
        tenant = current_caller().tenant
        found = library.find(id, tenant)
        if found is None:
            raise library.unknown(id, tenant, "id")
        return _shaped(found)

    @router.patch(_PATH + "/{id}")
    @changes
    async def change(id: str, body: ChangeBody, request: Request) -> DictionaryAnswer:
        """Rename a dictionary, or replace its rules."""
        require_own_page(request, runtime.settings.allowed_origins)
        rules = None if body.items is None else _rules(body.items)
        made = await library.change(
            id,
            current_caller().tenant,
            name=body.name,
            rules=None if rules is None else lambda before: rules,
        )
        return _shaped(made)

    @router.delete(_PATH + "/{id}", status_code=204)
    @changes
    async def delete(id: str, request: Request) -> Response:
        """Delete a dictionary."""
        require_own_page(request, runtime.settings.allowed_origins)
        await library.remove(id, current_caller().tenant)
        return Response(status_code=204)


def _rules(items: list[Item]) -> RuleSet:
    return checked((item.fields() for item in items), "items", _NAMES)


def _shaped(dictionary: Dictionary) -> DictionaryAnswer:
    return DictionaryAnswer(
        id=dictionary.id,
        name=dictionary.name,
        owner_id=dictionary.created_by or "anybody",
        created_at=datetime.fromtimestamp(dictionary.created_at, UTC).isoformat(),
        items=[*map(Item.of, dictionary.latest.rules.rules)],
    )
