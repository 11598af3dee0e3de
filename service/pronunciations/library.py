"""The dictionaries of pronunciations in memory: visibility by tenant, lookup, and changes.

The folder has a file for each dictionary: ``NAME.toml`` and ``NAME.pls`` of the operator, those of
one tenant in a folder of its name, and ``dict_….json`` of what clients added. Memory is bounded:
it grows with the characters that rules match, of which there is a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from service.pronunciations.dictionary import (
    DICTIONARY_ID,
    MAX_FILE_BYTES,
    MAX_VERSIONS,
    NAME,
    Dictionary,
    DictionaryError,
    Version,
    pack,
    read_pls,
    read_toml,
    rule_set,
    unpack,
)
from service.reloading import Reloader, State, file_state
from service.voices.store import FolderLock
from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.protocol.field_errors import describe, invalid_parameter, listed
from streaming.protocol.messages import MAX_DICTIONARIES, MAX_OWN_RULES
from text.pronunciation.rules import Rule, RuleError, RuleSet

log = logging.getLogger(__name__)
#: The most files that are looked at, and characters that the rules of all of them match.
MAX_FILES, MAX_CHARS = 2000, 1_000_000
#: A tenant's share of both.
_MAX_SHARE = 0.25
#: The most characters that a context's own rules match.
MAX_OWN_CHARS = 2000
_LOCK = ".lock"
_SUFFIXES = (".toml", ".pls")
#: Dictionaries by file.
_Files = Mapping[Path, Dictionary]


class PronunciationFolder:
    """The files of a folder. Methods block, and raise the file system's OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: What each file was when it was last read, and its dictionary; None if it has none.
        self._read: dict[Path, tuple[State | None, Dictionary | None]] = {}

    def state(self, path: Path) -> object:
        """Return what changes with the files."""
        return {file: file_state(file) for file in self._files()}

    def read(self, path: Path) -> _Files:
        """Read the files that have changed. If one cannot be used, its fault is logged, and what
        it was before is kept.
        """
        files = self._files()
        for gone in self._read.keys() - set(files):
            del self._read[gone]
        for file in files:
            state = file_state(file)
            known, before = self._read.get(file, (None, None))
            if state is None or state == known:
                continue
            self._read[file] = state, self._dictionary(file) or before
        return {file: found for file, (_, found) in self._read.items() if found is not None}

    def _files(self) -> list[Path]:
        found = [*self._files_in(self.path)]
        for folder in sorted(self.path.iterdir()):
            if folder.is_dir() and NAME.fullmatch(folder.name):
                found += self._files_in(folder)
        if len(found) > MAX_FILES:
            raise OSError(f"{self.path} has more than {MAX_FILES} files")
        return found

    @staticmethod
    def _files_in(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            is_added = path.suffix == ".json" and DICTIONARY_ID.fullmatch(path.stem)
            if (is_added or path.suffix in _SUFFIXES) and path.is_file():
                yield path

    def _dictionary(self, path: Path) -> Dictionary | None:
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                raise DictionaryError(f"more than {MAX_FILE_BYTES} bytes")
            dictionary = self._parsed(path, data)
            _compile(dictionary)
        except (DictionaryError, OSError) as error:
            shown = path.relative_to(self.path)
            log.error("a dictionary of pronunciations was not taken: %s: %s", shown, error)
            return None
        return dictionary

    def _parsed(self, path: Path, data: bytes) -> Dictionary:
        if path.suffix == ".json":
            return unpack(data)
        if not NAME.fullmatch(path.stem):
            raise DictionaryError(f"the name of the file is not of the form {NAME.pattern}")
        rules, description = read_toml(data) if path.suffix == ".toml" else (read_pls(data), None)
        version = Version(hashlib.sha256(data).hexdigest()[:16], rules, int(path.stat().st_mtime))
        tenant = None if path.parent == self.path else path.parent.name
        return Dictionary(
            path.stem,
            path.stem,
            (version,),
            tenant,
            description,
            created_at=version.created_at,
        )

    def lock(self) -> FolderLock:
        """Return a lock that keeps other servers from changing the folder."""
        return FolderLock(self.path / _LOCK)

    def added(self, id: str) -> Dictionary | None:
        """Return an added dictionary as it is in the folder now."""
        path = self._file(id)
        return self._dictionary(path) if path.exists() else None

    def write(self, dictionary: Dictionary) -> None:
        """Write an added dictionary durably and atomically."""
        target = self._file(dictionary.id)
        unfinished = target.with_suffix(".unfinished")
        with open(unfinished, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(pack(dictionary))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)

    def delete(self, id: str) -> None:
        """Delete an added dictionary, if it exists."""
        self._file(id).unlink(missing_ok=True)

    def _file(self, id: str) -> Path:
        if not DICTIONARY_ID.fullmatch(id):
            raise ValueError(f"not an id: {id!r}")
        return self.path / f"{id}.json"


class PronunciationLibrary:
    """The dictionaries. Without ``folder``, added ones are lost at the end of the service. All
    methods must be called on one event loop.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else PronunciationFolder(folder)
        #: Of the operator, by (tenant, name).
        self._named: dict[tuple[str | None, str], Dictionary] = {}
        #: Added, by id, the oldest first.
        self._added: dict[str, Dictionary] = {}
        self._lock = asyncio.Lock()
        self._reloader: Reloader[_Files] | None = None

    async def open(self) -> None:
        """Read the folder, if there is one. Raises BackendError (``storage_failed``)."""
        folder = self._folder
        if folder is None:
            return
        try:
            await asyncio.to_thread(folder.path.mkdir, 0o700, parents=True, exist_ok=True)
            state = await asyncio.to_thread(folder.state, folder.path)
            self._take(await asyncio.to_thread(folder.read, folder.path))
        except OSError as error:
            message = f"The setting pronunciations_dir names no folder that can be used ({error})."
            raise BackendError(ErrorCode.STORAGE_FAILED, message) from error
        self._reloader = Reloader(
            "the folder of pronunciations",
            folder.path,
            folder.read,
            self._take,
            state=folder.state,
            known=state,
            lock=self._lock,  # else what is added meanwhile would be missing in the result
        )

    async def watch(self) -> None:
        """Read the folder again whenever it changes. Never returns if there is one."""
        if self._reloader is not None:
            await self._reloader.watch()

    def reload_soon(self) -> None:
        """Request that the folder is read again."""
        if self._reloader is not None:
            self._reloader.reload_soon()

    def _take(self, files: _Files) -> None:
        kept = sorted(files.items(), key=lambda one: (one[1].is_added, one[1].created_at, one[0]))
        named: dict[tuple[str | None, str], Dictionary] = {}
        added: dict[str, Dictionary] = {}
        chars = 0
        for path, dictionary in kept:
            chars += dictionary.chars
            if chars > MAX_CHARS:
                log.error("there is no room for a dictionary of pronunciations: %s", path.name)
            elif dictionary.is_added:
                added[dictionary.id] = dictionary
            elif named.setdefault((dictionary.tenant, dictionary.name), dictionary) != dictionary:
                log.error("two dictionaries of pronunciations have the same name: %s", path.name)
        self._named, self._added = named, added
        log.info("dictionaries of pronunciations", extra={"named": len(named), "added": len(added)})

    # -- lookup

    def visible(self, tenant: str | None) -> list[Dictionary]:
        """Return what a tenant can use, the operator's first, then the oldest first. A tenant's own
        file hides the one for everybody of that name.
        """
        own = {name: one for (of, name), one in self._named.items() if of == tenant}
        public = {name: one for (of, name), one in self._named.items() if of is None}
        added = [one for one in self._added.values() if one.tenant in (None, tenant)]
        return [*(public | own).values(), *added]

    def find(self, key: str, tenant: str | None) -> Dictionary | None:
        """Return the dictionary of this id or name, if the tenant can use one."""
        found = self._named.get((tenant, key)) or self._named.get((None, key))
        if found is None:
            found = self._added.get(key)
            found = found if found is not None and found.tenant in (None, tenant) else None
        if found is None:
            named = (one for one in self.visible(tenant) if one.name == key)
            found = next(named, None)
        return found

    def resolve(
        self,
        names: Sequence[str],
        tenant: str | None,
        own: Sequence[Mapping[str, Any]] = (),
        param: str = "pronunciations",
    ) -> tuple[RuleSet, ...]:
        """Return the rules for a context: its own first, then those of dictionaries in order.
        Raises RequestError (``unknown_pronunciations``, ``invalid_parameter``).
        """
        if len(names) > MAX_DICTIONARIES:
            message = f"{param} has {MAX_DICTIONARIES} dictionaries at most, not {len(names)}."
            raise invalid_parameter(param, message)
        sets = [own_rules(own)] if own else []
        for name in names:
            found = self.find(name, tenant)
            if found is None:
                raise self.unknown(name, tenant, param)
            sets.append(found.latest.rules)
        return tuple(sets)

    def unknown(self, key: str, tenant: str | None, param: str) -> RequestError:
        """Return the error for a dictionary that a tenant cannot use."""
        there = dict.fromkeys(one.name for one in self.visible(tenant))
        message = f"There is no dictionary of pronunciations {describe(key)}; there is "
        message += f"{listed(there)}." if there else "none."
        return RequestError(ErrorCode.UNKNOWN_PRONUNCIATIONS, message, param=param)

    # -- changes

    async def add(
        self,
        name: str,
        rules: RuleSet,
        *,
        tenant: str | None,
        created_by: str | None,
        description: str | None = None,
    ) -> Dictionary:
        """Add a dictionary. Raises RequestError (``too_many_pronunciations``), BackendError
        (``storage_failed``).
        """
        now = int(time.time())
        dictionary = Dictionary(
            f"dict_{secrets.token_hex(8)}",
            name,
            (Version(secrets.token_hex(8), rules, now),),
            tenant,
            description,
            created_by,
            now,
            is_added=True,
        )
        await self._store(dictionary.id, lambda _: dictionary)
        return dictionary

    async def change(
        self,
        id: str,
        tenant: str | None,
        *,
        rules: Callable[[Sequence[Rule]], RuleSet] | None = None,
        name: str | None = None,
        param: str = "id",
    ) -> Dictionary:
        """Rename a dictionary, or give it a new version of its ``rules``. Raises as ``add``, and
        RequestError (``unknown_pronunciations``; ``unsupported`` for the operator's).
        """
        self._require_added(id, tenant, param)

        def edit(before: Dictionary | None) -> Dictionary:
            if before is None:
                raise self.unknown(id, tenant, param)
            after = before if name is None else replace(before, name=name)
            if rules is None:
                return after
            made = Version(secrets.token_hex(8), rules(before.latest.rules.rules), int(time.time()))
            kept = before.versions[-(MAX_VERSIONS - 1) :]
            return replace(after, versions=(*kept, made))

        return await self._store(id, edit)

    async def remove(self, id: str, tenant: str | None, param: str = "id") -> None:
        """Delete an added dictionary. Raises as ``change``."""
        self._require_added(id, tenant, param)
        async with self._lock:
            if self._folder is not None:
                with _stored("removed"):
                    await asyncio.to_thread(self._folder.delete, id)
            self._added.pop(id, None)

    def _require_added(self, id: str, tenant: str | None, param: str) -> None:
        found = self.find(id, tenant)
        if found is None or found.id != id:
            raise self.unknown(id, tenant, param)
        if not found.is_added:
            message = "A dictionary of the operator cannot be changed."
            raise RequestError(ErrorCode.UNSUPPORTED, message, param=param)
        if found.tenant != tenant:
            message = "A dictionary of everybody cannot be changed by one tenant."
            raise RequestError(ErrorCode.FORBIDDEN, message, param=param)

    async def _store(self, id: str, edit: Callable[[Dictionary | None], Dictionary]) -> Dictionary:
        """Store what ``edit`` makes of a dictionary, which other servers may have changed."""
        async with self._lock:
            if self._folder is None:
                after = edit(self._added.get(id))
                self._require_room(after)
                await asyncio.to_thread(_compile, after)
            else:
                with _stored("written"):
                    after = await asyncio.to_thread(self._write, self._folder, id, edit)
            self._added[id] = after
        return after

    def _write(
        self,
        folder: PronunciationFolder,
        id: str,
        edit: Callable[[Dictionary | None], Dictionary],
    ) -> Dictionary:
        lock = folder.lock()
        try:
            lock.acquire()
            after = edit(folder.added(id))
            self._require_room(after)
            _compile(after)
            folder.write(after)
            return after
        finally:
            lock.release()

    def _require_room(self, dictionary: Dictionary) -> None:
        others = [one for one in list(self._added.values()) if one.id != dictionary.id]
        operators = sum(one.chars for one in list(self._named.values()))
        own = [one for one in others if one.tenant == dictionary.tenant]
        share = 1.0 if dictionary.tenant is None else _MAX_SHARE
        for counted, taken, part, whose in (
            (others, operators, 1.0, "This server keeps"),
            (own, 0, share, "This tenant may keep"),
        ):
            chars = sum(one.chars for one in counted) + taken + dictionary.chars
            if chars > part * MAX_CHARS or len(counted) >= part * MAX_FILES // 2:
                most = f"{int(part * MAX_FILES // 2)} dictionaries with {int(part * MAX_CHARS)}"
                message = f"{whose} {most} characters of rules at most."
                raise RequestError(ErrorCode.TOO_MANY_PRONUNCIATIONS, message)


def _compile(dictionary: Dictionary) -> None:
    """Make the rules ready to be matched, which would hold the event loop for too long."""
    for version in dictionary.versions:
        _ = version.rules.automatons


def own_rules(rules: Sequence[Mapping[str, Any]], param: str = "pronunciation_rules") -> RuleSet:
    """Return the rules that a client sends with a context. Raises RequestError."""
    if len(rules) > MAX_OWN_RULES:
        message = f"{param} has {MAX_OWN_RULES} rules at most, not {len(rules)}."
        raise invalid_parameter(param, message)
    made = checked(rules, param)
    if made.chars > MAX_OWN_CHARS:
        message = f"{param} match {MAX_OWN_CHARS} characters at most, not {made.chars}."
        raise invalid_parameter(param, message)
    return made


def checked(
    rules: Iterable[Mapping[str, Any]],
    param: str,
    names: Mapping[str, str] = MappingProxyType({}),
) -> RuleSet:
    """Return rules of a request as a set. Raises RequestError with the place of a wrong one.
    ``names``: a vendor's names of the fields.
    """
    try:
        return rule_set(rules)
    except RuleError as error:
        place, _, field = error.field.rpartition(".")
        shown = f"{place}.{names.get(field, field)}" if place else field
        shown = shown.replace("rules", param, 1)
        raise invalid_parameter(shown, f"{shown}: {error.message}.") from error


@contextlib.contextmanager
def _stored(verb: str) -> Iterator[None]:
    """Raise the block's OSError as BackendError (``storage_failed``)."""
    try:
        yield
    except OSError as error:
        log.error("a dictionary of pronunciations could not be %s: %s", verb, error)
        message = f"The dictionary's file could not be {verb}."
        raise BackendError(ErrorCode.STORAGE_FAILED, message) from error
