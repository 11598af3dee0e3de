"""ElevenLabs' pronunciation dictionaries: their routes, and how requests name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field, ValidationError

from service.access.rules import Rule as AccessRule
from service.access.rules import declare
from service.auth.caller import current_caller
from service.errors import validation_error
from service.hosts import require_own_page
from service.pronunciations.dictionary import (
    Dictionary,
    DictionaryError,
    Version,
    read_pls,
    write_pls,
)
from service.pronunciations.library import checked
from service.runtime import Runtime
from service.transport.http_routes import read_form
from streaming.errors import ErrorCode, RequestError
from streaming.protocol.field_errors import invalid_field, unknown_choice, unknown_field
from streaming.protocol.messages import MAX_DICTIONARIES
from text.pronunciation.rules import MAX_RULES, Rule, RuleError, RuleSet

_PATH = "/v1/pronunciation-dictionaries"
_PLS = "application/pls+xml"
#: ElevenLabs' names of the fields of a rule.
_NAMES = {"written": "string_to_replace", "phonemes": "phoneme"}


class Locator(BaseModel):
    """A dictionary, and a version of it; without one, the latest."""

    pronunciation_dictionary_id: str = Field(description="Its id, or name.")
    version_id: str | None = None


Locators = Annotated[list[Locator], Field(max_length=MAX_DICTIONARIES)]


def located(locators: Sequence[Locator] | None, runtime: Runtime) -> tuple[RuleSet, ...]:
    """Return the rules of dictionaries. Raises RequestError (``unknown_pronunciations``)."""
    param = "pronunciation_dictionary_locators"
    return tuple(
        _version(one.pronunciation_dictionary_id, one.version_id, runtime, param)[1].rules
        for one in locators or ()
    )


def _version(
    key: str, version_id: str | None, runtime: Runtime, param: str
) -> tuple[Dictionary, Version]:
    tenant = current_caller().tenant
    dictionary = runtime.pronunciations.find(key, tenant)
    if dictionary is None:
        raise runtime.pronunciations.unknown(key, tenant, param)
    if (version := dictionary.version(version_id)) is None:
        kept = [one.id for one in dictionary.versions]
        code = ErrorCode.UNKNOWN_PRONUNCIATIONS
        raise unknown_choice("version_id", version_id or "", kept, code, "version")
    return dictionary, version


class RuleBody(BaseModel):
    """A rule in ElevenLabs' format."""

    type: Literal["alias", "phoneme"]
    string_to_replace: str
    alias: str | None = Field(None, description="Of an alias.")
    phoneme: str | None = Field(None, description="Of a phoneme.")
    alphabet: str = Field("ipa", description="Of a phoneme: `ipa` or `cmu-arpabet`.")
    case_sensitive: bool | None = Field(None, description="Without it, true.")
    word_boundaries: bool | None = Field(None, description="Without it, true.")

    def fields(self) -> dict[str, Any]:
        """Return our fields of the rule."""
        is_alias = self.type == "alias"
        return {
            "written": self.string_to_replace.strip(),
            "alias": self.alias if is_alias else None,
            "phonemes": None if is_alias else self.phoneme,
            "alphabet": self.alphabet,
            "case_sensitive": self.case_sensitive is not False,
            "word_boundaries": self.word_boundaries is not False,
        }

    @classmethod
    def of(cls, rule: Rule) -> RuleBody:
        """Return a rule in this format."""
        return cls(
            type="phoneme" if rule.alias is None else "alias",
            string_to_replace=rule.written,
            alias=rule.alias,
            phoneme=rule.phonemes,
            alphabet=rule.alphabet,
            case_sensitive=rule.case_sensitive,
            word_boundaries=rule.word_boundaries,
        )


Name = Annotated[str, Field(min_length=1, max_length=256)]
Description = Annotated[str, Field(max_length=1000)]


class RulesBody(BaseModel):
    """The body of `add-rules` and `set-rules`."""

    rules: Annotated[list[RuleBody], Field(max_length=MAX_RULES)]

    def rule_set(self, before: Sequence[Rule] = ()) -> RuleSet:
        """Return the rules after those ``before`` that they do not replace. Raises RequestError."""
        added = checked((rule.fields() for rule in self.rules), "rules", _NAMES).rules
        replaced = {rule.written for rule in added}
        return _joined((*(rule for rule in before if rule.written not in replaced), *added))


class RemovedBody(BaseModel):
    """The body of `remove-rules`."""

    rule_strings: list[str]


class NewBody(RulesBody):
    """The body of `add-from-rules`."""

    name: Name
    description: Description | None = None
    workspace_access: str | None = Field(None, description="Without effect: all of a tenant's.")


class ChangeBody(BaseModel):
    """The body of a change. To archive a dictionary is to delete it."""

    name: Name | None = None
    archived: bool | None = None


class _Form(BaseModel):
    name: Name
    description: Description | None = None
    workspace_access: str | None = None


class AddedAnswer(BaseModel):
    """A dictionary that was added."""

    id: str
    name: str
    created_by: str
    creation_time_unix: int
    version_id: str
    version_rules_num: int
    description: str | None
    permission_on_resource: str = "admin"


class RulesAnswer(BaseModel):
    """The version that a change of rules has made."""

    id: str
    version_id: str
    version_rules_num: int


class Metadata(BaseModel):
    """A dictionary without its rules."""

    id: str
    latest_version_id: str
    latest_version_rules_num: int
    name: str
    permission_on_resource: str | None
    created_by: str
    creation_time_unix: int
    archived_time_unix: int | None = None
    description: str | None


class WithRules(Metadata):
    """A dictionary with the rules of its latest version."""

    rules: list[RuleBody]


class DictionaryPage(BaseModel):
    """A page of dictionaries. ``next_cursor`` is for the next page."""

    pronunciation_dictionaries: list[Metadata]
    next_cursor: str | None
    has_more: bool


def add_pronunciations(router: APIRouter, runtime: Runtime, rule: AccessRule) -> None:
    """Add the routes of dictionaries. ``rule``: of those that change one."""
    library, changes = runtime.pronunciations, declare(rule)

    async def add(
        request: Request, name: str, description: str | None, rules: RuleSet
    ) -> AddedAnswer:
        require_own_page(request, runtime.settings.allowed_origins)
        caller = current_caller()
        made = await library.add(
            name,
            rules,
            tenant=caller.tenant,
            created_by=caller.key_id,
            description=description,
        )
        return AddedAnswer(
            id=made.id,
            name=made.name,
            created_by=_owner(made),
            creation_time_unix=made.created_at,
            version_id=made.latest.id,
            version_rules_num=len(made.latest.rules.rules),
            description=made.description,
        )

    @router.post(f"{_PATH}/add-from-rules")
    @changes
    async def add_from_rules(body: NewBody, request: Request) -> AddedAnswer:
        """Add a dictionary of rules."""
        return await add(request, body.name, body.description, body.rule_set())

    @router.post(f"{_PATH}/add-from-file", openapi_extra=_form_schema())
    @changes
    async def add_from_file(request: Request) -> AddedAnswer:
        """Add a dictionary from a lexicon in PLS."""
        fields, lexicon = await _read_new(request)
        return await add(request, fields.name, fields.description, _from_pls(lexicon))

    @router.get(_PATH)
    async def dictionaries(
        page_size: Annotated[int, Query(ge=1, le=100)] = 30,
        cursor: str | None = None,
        sort: Literal["creation_time_unix", "name"] = "creation_time_unix",
        sort_direction: str = "descending",
        include_archived: bool = False,
    ) -> DictionaryPage:
        """List the dictionaries, in pages."""
        found = library.visible(current_caller().tenant)
        found.sort(
            key=lambda one: (one.name.lower() if sort == "name" else one.created_at, one.id),
            reverse=sort_direction.lower().startswith("desc"),
        )
        ids = [one.id for one in found]
        if cursor is not None and cursor not in ids:
            allowed = "the next_cursor of another page"
            raise invalid_field("cursor", cursor, allowed, ErrorCode.INVALID_PARAMETER)
        begin = 0 if cursor is None else ids.index(cursor) + 1
        page = found[begin : begin + page_size]
        has_more = len(found) > begin + page_size
        return DictionaryPage(
            pronunciation_dictionaries=[Metadata(**_metadata(one)) for one in page],
            next_cursor=page[-1].id if has_more else None,
            has_more=has_more,
        )

    @router.get(_PATH + "/{id}")
    async def dictionary(id: str) -> WithRules:
        """Get a dictionary with its rules."""
        found, version = _version(id, None, runtime, "id")
        return WithRules(**_metadata(found), rules=[*map(RuleBody.of, version.rules.rules)])

    @router.patch(_PATH + "/{id}")
    @changes
    async def change(id: str, body: ChangeBody, request: Request) -> Metadata:
        """Rename a dictionary, or delete it (`archived`)."""
        require_own_page(request, runtime.settings.allowed_origins)
        tenant = current_caller().tenant
        changed = await library.change(id, tenant, name=body.name)
        if body.archived:
            await library.remove(id, tenant)
        return Metadata(**_metadata(changed))

    async def changed(request: Request, id: str, **changes: Any) -> RulesAnswer:
        require_own_page(request, runtime.settings.allowed_origins)
        made = await library.change(id, current_caller().tenant, **changes)
        return RulesAnswer(
            id=made.id, version_id=made.latest.id, version_rules_num=len(made.latest.rules.rules)
        )

    @router.post(_PATH + "/{id}/add-rules")
    @changes
    async def add_rules(id: str, body: RulesBody, request: Request) -> RulesAnswer:
        """Make a version with more rules; those for the same string are replaced."""
        return await changed(request, id, rules=body.rule_set)

    @router.post(_PATH + "/{id}/set-rules")
    @changes
    async def set_rules(id: str, body: RulesBody, request: Request) -> RulesAnswer:
        """Make a version with these rules alone."""
        return await changed(request, id, rules=lambda before: body.rule_set())

    @router.post(_PATH + "/{id}/remove-rules")
    @changes
    async def remove_rules(id: str, body: RemovedBody, request: Request) -> RulesAnswer:
        """Make a version without the rules for some strings."""
        removed = frozenset(body.rule_strings)

        def without(before: Sequence[Rule]) -> RuleSet:
            return RuleSet(rule for rule in before if rule.written not in removed)

        return await changed(request, id, rules=without)

    @router.get(_PATH + "/{id}/{version_id}/download", response_class=Response)
    async def download(id: str, version_id: str) -> Response:
        """Get a version as a lexicon in PLS."""
        found, version = _version(id, version_id, runtime, "id")
        headers = {"content-disposition": f'attachment; filename="{found.id}.pls"'}
        return Response(write_pls(version.rules.rules), media_type=_PLS, headers=headers)


def _joined(rules: Iterable[Rule]) -> RuleSet:
    """Return rules as a set. Raises RequestError if they are too many."""
    try:
        return RuleSet(rules)
    except RuleError as error:
        raise RequestError(ErrorCode.INVALID_PARAMETER, f"{error}.", param=error.field) from error


def _owner(dictionary: Dictionary) -> str:
    return dictionary.created_by or "anybody"


def _metadata(dictionary: Dictionary) -> dict[str, Any]:
    latest = dictionary.latest
    return {
        "id": dictionary.id,
        "latest_version_id": latest.id,
        "latest_version_rules_num": len(latest.rules.rules),
        "name": dictionary.name,
        "permission_on_resource": "admin" if dictionary.is_added else "viewer",
        "created_by": _owner(dictionary),
        "creation_time_unix": dictionary.created_at,
        "description": dictionary.description,
    }


async def _read_new(request: Request) -> tuple[_Form, bytes]:
    """Return the fields and the file of a form. Raises RequestError."""
    fields: dict[str, Any] = {}
    lexicon = b""
    for name, value in await read_form(request):
        if isinstance(value, str):
            fields[name] = value
        elif name == "file":
            lexicon = value
        else:
            raise unknown_field(name, ["file", *_Form.model_fields])
    try:
        return _Form.model_validate(fields), lexicon
    except ValidationError as error:
        raise validation_error(error.errors(), rooted=False) from error


def _from_pls(lexicon: bytes) -> RuleSet:
    if not lexicon:  # ElevenLabs makes a dictionary without rules, too
        return RuleSet(())
    try:
        return read_pls(lexicon)
    except DictionaryError as error:
        message = f"file must be a lexicon in PLS: {error}."
        raise RequestError(ErrorCode.INVALID_PARAMETER, message, param="file") from error


def _form_schema() -> dict[str, Any]:
    """Return OpenAPI's description of the form."""
    schema = _Form.model_json_schema()
    schema["properties"]["file"] = {"type": "string", "format": "binary"}
    content = {"multipart/form-data": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}
