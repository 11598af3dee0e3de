"""Errors about one field of a request: its name as the client wrote it, its value, what is allowed.

The message is the only part of an error that most SDKs print, so it must make sense alone. Values
are described, not repeated, unless they are numbers or short names. Text from libraries about them
is never passed on.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from streaming.errors import ErrorCode, RequestError

#: Maximum number of characters of a client's own text that a message repeats.
_EXCERPT = 48
#: Names that are safe to repeat anywhere: in JSON, in a header, on a terminal. No sentences.
_HARMLESS = re.compile(rf"[\w.,:+/@-]{{1,{_EXCERPT}}}", re.ASCII)
_NAME = re.compile(r"[\w.\[\] -]{1,64}", re.ASCII)
_MAX_NAME = 128
_LISTED = 24


class FieldError(RequestError):
    """An error whose ``param`` is a field as the client named it, which dialects do not translate.
    ``kind``: the kind of the value, for the logs, which never hold the value.
    """

    def __init__(
        self, code: ErrorCode, message: str, *, param: str, kind: str | None = None
    ) -> None:
        super().__init__(code, message, param=param[:_MAX_NAME])
        self.kind = kind


def kind_of(value: object) -> str:
    """The JSON type of a value, in a word or two."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "a list"
        case _:
            return "an object"


def describe(value: object) -> str:
    """Describe a value in a message: numbers and short names as they are, others by their kind."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float) and len(shown := repr(value)) <= _EXCERPT:
        return shown
    if isinstance(value, str):
        if _HARMLESS.fullmatch(value):
            return f'"{value}"'
        return f"a string of {len(value)} characters" if value else "an empty string"
    return kind_of(value)


def listed(names: Iterable[object]) -> str:
    """List names in a message, at most two dozen of them."""
    every = [str(name) for name in names]
    text = ", ".join(every[:_LISTED])
    return text if len(every) <= _LISTED else f"{text} and {len(every) - _LISTED} more"


def shown_name(name: str) -> str:
    """Return a field's name for a message; "a field" for a name that is not safe to repeat."""
    return name if _NAME.fullmatch(name) else "a field"


def invalid_field(
    name: str, value: object, allowed: str, code: ErrorCode = ErrorCode.INVALID_MESSAGE
) -> FieldError:
    """Return an error for a value that is not ``allowed`` ("a whole number", "at most 4")."""
    message = f"{shown_name(name)} must be {allowed}, not {describe(value)}."
    return FieldError(code, message, param=name, kind=kind_of(value))


def unsupported(param: str, message: str) -> RequestError:
    """Return an error for an unsupported field or value. ``param`` is the core's field name."""
    return RequestError(ErrorCode.UNSUPPORTED, message, param=param)


def invalid_parameter(param: str, message: str) -> RequestError:
    """Return an error for a value that is out of range or contradicts another. ``param`` is the
    core's field name.
    """
    return RequestError(ErrorCode.INVALID_PARAMETER, message, param=param)


def missing_field(name: str) -> FieldError:
    """Return an error for a missing required field."""
    return FieldError(
        ErrorCode.INVALID_MESSAGE, f"{shown_name(name)} is missing.", param=name, kind="missing"
    )


def unknown_field(
    name: str,
    known: Sequence[str] = (),
    what: str = "field",
    code: ErrorCode = ErrorCode.INVALID_MESSAGE,
) -> FieldError:
    """Return an error for an unknown field, or for another unknown name whose kind is ``what``."""
    message = f"{shown_name(name)} is not a {what} here"
    if near := difflib.get_close_matches(name[:_MAX_NAME].rpartition(".")[2], known, 1):
        message += f"; did you mean {near[0]}? The"
    elif known:
        message += "; the"
    message += f" {what}s are {listed(known)}." if known else "."
    return FieldError(code, message, param=name, kind="unknown")


def unknown_choice(
    name: str, value: str, there: Iterable[object], code: ErrorCode, what: str = ""
) -> FieldError:
    """Return an error for a value, such as a voice, that is not one of those that are ``there``."""
    called = what or name
    message = (
        f"{shown_name(name)}: there is no {called} {describe(value)}; there is {listed(there)}."
    )
    return FieldError(code, message, param=name, kind=kind_of(value))


#: msgspec's messages: the expected types and constraint, and the path if there is one.
_EXPECTED = re.compile(r"Expected `([^`]*)`(?: (of length )?(<=|>=|<|>) (\S+))?")
_PATH = re.compile(r" - at `\$\.?([^`]*)`")
#: A field or an index in such a path: "references[0].text".
_STEP = re.compile(r"[^.\[\]]+")
_TYPES = {
    "str": "a string",
    "bytes": "bytes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_LIMITS = {"<=": "at most", ">=": "at least", "<": "below", ">": "above"}


def msgspec_error(
    error: msgspec.ValidationError, text: str | bytes, kind: type[msgspec.Struct]
) -> RequestError:
    """Return the error of a message that should have been a ``kind``. ``text``: the message in
    JSON, from which the error shows the value; empty for other formats, whose value is not shown.
    """
    complaint = str(error)
    found = _PATH.search(complaint)
    path = found[1] if found else ""
    name = next(iter(complaint.split("`")[1::2]), "")
    if complaint.startswith("Object missing required field"):
        return missing_field(f"{path}.{name}" if path else name)
    if complaint.startswith("Object contains unknown field"):
        known = [] if path else [field.encode_name for field in msgspec.structs.fields(kind)]
        return unknown_field(f"{path}.{name}" if path else name, known)
    if not path:
        return RequestError(ErrorCode.INVALID_MESSAGE, "A message must be an object.")
    parts = [int(part) if part.isdigit() else part for part in _STEP.findall(path)]
    allowed = _allowed(complaint, kind, parts)
    if not text:
        message = f"{shown_name(path)} must be {allowed}."
        return FieldError(ErrorCode.INVALID_MESSAGE, message, param=path)
    return invalid_field(path, _value_at(text, parts), allowed)


def _allowed(complaint: str, kind: type[msgspec.Struct], path: Sequence[str | int]) -> str:
    if choices := _choices(kind, path):
        return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
    expected = _EXPECTED.match(complaint)
    if expected is None:
        return "a number in range" if "out of range" in complaint else "of another kind"
    types = [_TYPES.get(one.strip(), one.strip()) for one in expected[1].split("|")]
    types = [one for one in types if one != "null"] or types
    if expected[3] is None:
        return " or ".join(types)
    limit = f"{_LIMITS[expected[3]]} {expected[4]}"
    if not expected[2]:
        return limit
    return f"{limit} {'items' if 'a list' in types else 'characters'} long"


def _choices(kind: type[msgspec.Struct], path: Sequence[str | int]) -> list[str]:
    """Return the values of a field that has a closed list of them."""
    node: Any = msgspec.inspect.type_info(kind)
    for part in path:
        fields = [field for one in _members(node) for field in getattr(one, "fields", ())]
        found = next((field for field in fields if field.encode_name == part), None)
        if found is None:
            return []
        node = found.type
    choices: list[object] = []
    for one in _members(node):
        if isinstance(one, msgspec.inspect.LiteralType):
            choices += one.values
        elif isinstance(one, msgspec.inspect.EnumType):
            choices += [member.value for member in one.cls]
    return [str(choice) for choice in choices]


def _members(node: Any) -> Sequence[Any]:
    return node.types if isinstance(node, msgspec.inspect.UnionType) else (node,)


def _value_at(text: str | bytes, path: Sequence[str | int]) -> object:
    try:
        value: Any = json.loads(text)
        for part in path:
            value = value[part]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    return value
