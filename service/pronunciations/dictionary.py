"""Dictionaries and their forms: fields of requests, TOML, PLS, and the file of an added one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from text.pronunciation.rules import (
    MAX_ALIAS,
    MAX_PHONEMES,
    MAX_RULES,
    MAX_WRITTEN,
    Rule,
    RuleError,
    RuleSet,
)

#: Names of dictionaries.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: Ids of added dictionaries.
DICTIONARY_ID = re.compile(r"dict_[0-9a-f]{16}")
#: The most versions of a dictionary that are kept.
MAX_VERSIONS = 5
#: Far more than the largest dictionary needs.
MAX_FILE_BYTES = 16 << 20


class DictionaryError(Exception):
    """A file or document is no dictionary. The text names the line or field, and what is allowed;
    it is for operators, and for the client that sent it.
    """


class RuleFields(BaseModel):
    """A rule of pronunciation: how a word or phrase is spoken."""

    model_config = ConfigDict(extra="forbid")

    written: Annotated[str, Field(min_length=1, max_length=MAX_WRITTEN)] = Field(
        description="The word or phrase."
    )
    alias: Annotated[str, Field(min_length=1, max_length=MAX_ALIAS)] | None = Field(
        None, description="The text to speak instead."
    )
    phonemes: Annotated[str, Field(min_length=1, max_length=MAX_PHONEMES)] | None = Field(
        None, description="Or its phonemes."
    )
    alphabet: Literal["ipa", "cmu-arpabet"] = Field("ipa", description="Of the phonemes.")
    case_sensitive: StrictBool = Field(True, description="Whether capitals count.")
    word_boundaries: StrictBool = Field(True, description="Whether whole words only match.")

    @classmethod
    def of(cls, rule: Rule) -> RuleFields:
        """Return the fields of a rule."""
        return cls.model_construct(**{name: getattr(rule, name) for name in cls.model_fields})


@dataclass(frozen=True, slots=True)
class Version:
    """The rules of a dictionary at one time. ``created_at``: seconds since 1970."""

    id: str
    rules: RuleSet
    created_at: int


@dataclass(frozen=True, slots=True)
class Dictionary:
    """A dictionary. Of a file of the operator the ``id`` is its name.

    Attributes:
        id: Names it in requests, beside its ``name``.
        name: Its name, which need not be unique among the added ones.
        versions: Its latest versions, the last of them in force.
        tenant: Who can use it alone; None: everybody.
        description: What it is for.
        created_by: The id of the key that added it.
        is_added: Whether a client added it, and may change it.
    """

    id: str
    name: str
    versions: tuple[Version, ...]
    tenant: str | None = None
    description: str | None = None
    created_by: str | None = None
    created_at: int = 0
    is_added: bool = False

    @property
    def latest(self) -> Version:
        """The version in force."""
        return self.versions[-1]

    @property
    def chars(self) -> int:
        """Number of characters that the rules of all versions match."""
        return sum(version.rules.chars for version in self.versions)

    def version(self, id: str | None) -> Version | None:
        """Return a version, by default the latest; None if there is none of this id."""
        if id is None:
            return self.latest
        return next((version for version in self.versions if version.id == id), None)


class _File(BaseModel):
    """A dictionary in TOML."""

    model_config = ConfigDict(extra="forbid")

    description: Annotated[str, Field(max_length=1000)] | None = None
    rules: Annotated[list[RuleFields], Field(max_length=MAX_RULES)]


def rule_set(rules: Iterable[Mapping[str, Any]]) -> RuleSet:
    """Return a set of rules, given by their fields. Raises RuleError, whose field is the rule's
    place: "rules.2.alias".
    """
    made: list[Rule] = []
    for at, fields in enumerate(rules):
        try:
            made.append(Rule(**fields))
        except RuleError as error:
            raise RuleError(f"rules.{at}.{error.field}", error.message) from error
    return RuleSet(made)


def read_toml(data: bytes) -> tuple[RuleSet, str | None]:
    """Return the rules and the description of a dictionary in TOML. Raises DictionaryError."""
    try:
        read = _File.model_validate(tomllib.loads(data.decode("utf-8")))
        return rule_set(map(RuleFields.model_dump, read.rules)), read.description
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DictionaryError(f"not TOML: {error}") from error
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise DictionaryError(f"{place}: {fault['msg']}") from error
    except RuleError as error:
        raise DictionaryError(str(error)) from error


_MAX_DEPTH = 16
_LEXEME, _TEXTS = "lexeme", frozenset(("grapheme", "phoneme", "alias"))


class _PlsReader:
    """Reads the Pronunciation Lexicon Specification. Document types, and so entities, are refused
    before they are read.
    """

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self._alphabet = "ipa"
        self._path: list[str] = []
        self._line = 0
        self._text = ""
        self._graphemes: list[str] = []
        #: Of the lexeme: whether it is preferred, its kind, its text, and its alphabet.
        self._readings: list[tuple[bool, str, str, str]] = []
        self._attributes: dict[str, str] = {}
        self._parser = expat.ParserCreate()
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._take

    def read(self, data: bytes) -> RuleSet:
        try:
            self._parser.Parse(data, True)
            return RuleSet(self.rules)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise DictionaryError(f"line {error.lineno}: not XML: {reason}") from error
        except RuleError as error:
            raise DictionaryError(f"line {self._line}: {error}") from error

    def _refuse_doctype(self, *_: object) -> None:
        line = self._parser.CurrentLineNumber
        raise DictionaryError(f"line {line}: a document type is not allowed")

    def _start(self, qualified: str, attributes: dict[str, str]) -> None:
        name = qualified.rpartition(":")[2]
        if not self._path:
            if name != "lexicon":
                line = self._parser.CurrentLineNumber
                raise DictionaryError(f"line {line}: the root is lexicon, not {name[:40]!a}")
            self._alphabet = attributes.get("alphabet", "ipa")
        elif name == _LEXEME:
            self._line = self._parser.CurrentLineNumber
            self._graphemes, self._readings = [], []
        if len(self._path) == _MAX_DEPTH:
            line = self._parser.CurrentLineNumber
            raise DictionaryError(f"line {line}: more than {_MAX_DEPTH} elements in each other")
        self._path.append(name)
        self._attributes, self._text = attributes, ""

    def _take(self, text: str) -> None:
        if len(self._text) <= MAX_ALIAS:  # more is refused, whatever it is
            self._text += text

    def _end(self, _: str) -> None:
        name, text = self._path.pop(), " ".join(self._text.split())
        if name == "grapheme":
            self._graphemes.append(text)
        elif name in _TEXTS and self._path[-1:] == [_LEXEME]:
            is_preferred = self._attributes.get("prefer") == "true"
            alphabet = self._attributes.get("alphabet", self._alphabet)
            self._readings.append((is_preferred, name, text, alphabet))
        elif name == _LEXEME:
            self._end_lexeme()
        self._text = ""

    def _end_lexeme(self) -> None:
        if not self._graphemes or not self._readings:
            raise RuleError(_LEXEME, "a grapheme, and a phoneme or alias")
        preferred = (reading for reading in self._readings if reading[0])
        _, kind, text, alphabet = next(preferred, self._readings[0])
        for grapheme in self._graphemes:
            if len(self.rules) > MAX_RULES:
                raise RuleError("lexicon", f"{MAX_RULES} graphemes at most")
            if kind == "alias":
                self.rules.append(Rule(grapheme, alias=text))
            else:
                self.rules.append(Rule(grapheme, phonemes=text, alphabet=alphabet))


def read_pls(data: bytes) -> RuleSet:
    """Return the rules of a lexicon in PLS, the W3C's Pronunciation Lexicon Specification. Raises
    DictionaryError.
    """
    return _PlsReader().read(data)


def write_pls(rules: Iterable[Rule]) -> bytes:
    """Return rules as a lexicon in PLS, which cannot say whether capitals count."""
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon"'
        ' alphabet="ipa" xml:lang="en-US">',
    ]
    for rule in rules:
        if rule.alias is not None:
            said = f"<alias>{escape(rule.alias)}</alias>"
        else:
            phonemes, alphabet = escape(rule.phonemes or ""), quoteattr(rule.alphabet)
            said = f"<phoneme alphabet={alphabet}>{phonemes}</phoneme>"
        lines.append(f"  <lexeme><grapheme>{escape(rule.written)}</grapheme>{said}</lexeme>")
    return "\n".join([*lines, "</lexicon>", ""]).encode()


class _StoredVersion(BaseModel):
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    created_at: int
    rules: list[RuleFields]


class _Stored(BaseModel):
    """The file of an added dictionary."""

    id: Annotated[str, Field(pattern=f"^{DICTIONARY_ID.pattern}$")]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    tenant: str | None = None
    description: str | None = None
    created_by: str | None = None
    created_at: int
    versions: Annotated[list[_StoredVersion], Field(min_length=1, max_length=MAX_VERSIONS)]


def pack(dictionary: Dictionary) -> bytes:
    """Return the file of an added dictionary."""
    versions = [
        _StoredVersion(
            id=version.id,
            created_at=version.created_at,
            rules=[RuleFields.of(rule) for rule in version.rules.rules],
        )
        for version in dictionary.versions
    ]
    stored = _Stored(
        id=dictionary.id,
        name=dictionary.name,
        tenant=dictionary.tenant,
        description=dictionary.description,
        created_by=dictionary.created_by,
        created_at=dictionary.created_at,
        versions=versions,
    )
    return stored.model_dump_json(exclude_none=True).encode()


def unpack(data: bytes) -> Dictionary:
    """Read the file of an added dictionary. Raises DictionaryError."""
    try:
        stored = _Stored.model_validate_json(data)
        versions = tuple(
            Version(one.id, rule_set(map(RuleFields.model_dump, one.rules)), one.created_at)
            for one in stored.versions
        )
    except (ValidationError, RuleError) as error:
        raise DictionaryError("it is damaged") from error
    return Dictionary(
        stored.id,
        stored.name,
        versions,
        stored.tenant,
        stored.description,
        stored.created_by,
        stored.created_at,
        is_added=True,
    )
