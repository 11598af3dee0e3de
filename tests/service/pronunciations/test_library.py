"""The library of dictionaries: files of the operator, tenants, changes, and what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Event

import pytest

from service import reloading
from service.pronunciations import library as module
from service.pronunciations.library import PronunciationLibrary
from streaming.errors import BackendError, ErrorCode, RequestError
from tests.waiting import until
from text.pronunciation.rules import Rule, RuleSet


def toml(**aliases: str) -> str:
    """A dictionary in TOML."""
    rules = (f"[[rules]]\nwritten = '{a}'\nalias = \"{b}\"" for a, b in aliases.items())
    return "\n".join(rules)


@asynccontextmanager
async def opened(folder: Path | None) -> AsyncIterator[PronunciationLibrary]:
    """A library that watches its folder."""
    library = PronunciationLibrary(folder)
    await library.open()
    watching = asyncio.create_task(library.watch())
    try:
        yield library
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def said(library: PronunciationLibrary, name: str, tenant: str | None = None) -> list[str | None]:
    """The aliases of a dictionary."""
    (rules,) = library.resolve([name], tenant)
    return [rule.alias for rule in rules.rules]


def stored(folder: Path) -> list[str]:
    """The files of added dictionaries."""
    return sorted(path.name for path in folder.glob("*.json"))


def names(library: PronunciationLibrary, tenant: str | None = None) -> list[str]:
    return [one.name for one in library.visible(tenant)]


async def test_files_of_all_and_of_tenants(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "names.toml").write_text(toml(a="all"))
    (tmp_path / "places.pls").write_text(
        "<lexicon><lexeme><grapheme>b</grapheme><alias>pls</alias></lexeme></lexicon>"
    )
    (tmp_path / "acme" / "names.toml").write_text(toml(a="acme's"))
    (tmp_path / "acme" / "own.toml").write_text(toml(c="own"))
    (tmp_path / "notes.txt").write_text("not one")
    async with opened(tmp_path) as library:
        assert names(library) == ["names", "places"]
        assert names(library, "acme") == ["names", "places", "own"]
        assert said(library, "names") == said(library, "names", "other") == ["all"]
        assert said(library, "names", "acme") == ["acme's"]
        assert said(library, "places", "acme") == ["pls"]
        for tenant in (None, "other"):
            with pytest.raises(RequestError) as caught:
                library.resolve(["own"], tenant)
            assert caught.value.code is ErrorCode.UNKNOWN_PRONUNCIATIONS
            assert caught.value.message == (
                'There is no dictionary of pronunciations "own"; there is names, places.'
            )


async def test_changed_files_are_taken_and_bad_ones_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reloading, "RELOAD_S", 0.01)
    (tmp_path / "names.toml").write_text(toml(a="first"))
    (tmp_path / "bad.toml").write_text("rules = [")
    async with opened(tmp_path) as library:
        assert names(library) == ["names"]
        (tmp_path / "names.toml").write_text(toml(a="second one"))
        await until(lambda: said(library, "names") == ["second one"])
        (tmp_path / "names.toml").write_text(toml(a="third") + "\nphonemes = 'x'")
        await until(lambda: "rules.0.alias" in caplog.text)
        (tmp_path / "more.toml").write_text(toml(a="more"))
        await until(lambda: "more" in names(library))
        assert said(library, "names") == ["second one"]
        (tmp_path / "names.toml").unlink()
        await until(lambda: names(library) == ["more"])
    told = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert told == [
        "a dictionary of pronunciations was not taken: bad.toml: not TOML: Invalid value (at end "
        "of document)",
        "a dictionary of pronunciations was not taken: names.toml: rules.0.alias: give either an "
        "alias or phonemes",
    ]


async def test_folder_that_cannot_be_used_is_an_error_of_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendError) as caught:
        await PronunciationLibrary(tmp_path / "file").open()
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert "pronunciations_dir" in caught.value.message
    async with opened(tmp_path / "new" / "folder") as library:
        assert names(library) == []


def rules(**aliases: str) -> RuleSet:
    return RuleSet([Rule(written, alias) for written, alias in aliases.items()])


def plus(**aliases: str):
    def add(before: Sequence[Rule]) -> RuleSet:
        return RuleSet([*before, *rules(**aliases).rules])

    return add


@pytest.mark.parametrize("is_stored", [True, False])
async def test_added_dictionary_has_versions(tmp_path: Path, *, is_stored: bool) -> None:
    async with opened(tmp_path if is_stored else None) as library:
        made = await library.add("My names", rules(a="1"), tenant="acme", created_by="key")
        assert (made.name, made.tenant, made.created_by) == ("My names", "acme", "key")
        first = made.latest.id
        for number in range(2, 8):
            made = await library.change(made.id, "acme", rules=plus(**{f"b{number}": str(number)}))
        assert len(made.versions) == 5
        assert made.version(first) is None
        assert said(library, made.id, "acme") == ["1", "2", "3", "4", "5", "6", "7"]
        assert said(library, "My names", "acme") == said(library, made.id, "acme")
        renamed = await library.change(made.id, "acme", name="New")
        assert [v.id for v in renamed.versions] == [v.id for v in made.versions]
        for key, tenant in ((made.id, None), (made.id, "other"), ("dict_x", "acme")):
            assert library.find(key, tenant) is None
            with pytest.raises(RequestError) as caught:
                await library.change(key, tenant, name="mine")
            assert caught.value.code is ErrorCode.UNKNOWN_PRONUNCIATIONS
        if is_stored:
            async with opened(tmp_path) as again:
                (found,) = again.visible("acme")
                assert (found.id, found.name) == (made.id, "New")
                assert [v.id for v in found.versions] == [v.id for v in made.versions]
        await library.remove(made.id, "acme")
        assert names(library, "acme") == []
        assert not stored(tmp_path)


async def test_servers_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading, "RELOAD_S", 0.01)
    async with opened(tmp_path) as one, opened(tmp_path) as two:
        made = await one.add("names", rules(a="1"), tenant=None, created_by=None)
        await until(lambda: two.find(made.id, None))
        await two.change(made.id, None, rules=plus(b="2"))
        changed = await one.change(made.id, None, rules=plus(c="3"))
        assert [rule.alias for rule in changed.latest.rules.rules] == ["1", "2", "3"]
        await one.remove(made.id, None)
        await until(lambda: two.find(made.id, None) is None)


async def test_what_is_added_during_a_read_of_the_folder_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "RELOAD_S", 0.01)
    is_reading, may_end, read = Event(), Event(), module.PronunciationFolder.read

    def read_slowly(folder: module.PronunciationFolder, path: Path) -> object:
        found = read(folder, path)
        is_reading.set()
        may_end.wait(60)
        return found

    async with opened(tmp_path) as library:
        monkeypatch.setattr(module.PronunciationFolder, "read", read_slowly)
        assert library._reloader is not None
        monkeypatch.setattr(library._reloader, "_read", library._folder.read)  # type: ignore[union-attr]
        library.reload_soon()
        await asyncio.to_thread(is_reading.wait, 60)
        adding = asyncio.create_task(
            library.add("names", rules(a="1"), tenant=None, created_by=None)
        )
        await asyncio.sleep(0)
        may_end.set()
        made = await adding
        assert library.find(made.id, None) is made
        is_reading.clear()
        await asyncio.to_thread(is_reading.wait, 60)
        await until(lambda: library.find(made.id, None) is not made)
        assert said(library, "names") == ["1"]


async def test_what_is_not_the_tenants_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "names.toml").write_text(toml(a="all"))
    async with opened(tmp_path) as library:
        public = await library.add("public", rules(a="1"), tenant=None, created_by=None)
        assert said(library, public.id, "acme") == ["1"]
        for key, code in (
            ("names", ErrorCode.UNSUPPORTED),
            (public.id, ErrorCode.FORBIDDEN),
        ):
            with pytest.raises(RequestError) as caught:
                await library.remove(key, "acme")
            assert caught.value.code is code


async def test_room_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHARS", 100)
    async with opened(tmp_path) as library:
        made = await library.add("a", rules(**{"a" * 20: "b"}), tenant="acme", created_by=None)
        with pytest.raises(RequestError) as caught:
            await library.add("b", rules(abcdef="b"), tenant="acme", created_by=None)
        assert caught.value.code is ErrorCode.TOO_MANY_PRONUNCIATIONS
        assert "25 characters of rules" in caught.value.message
        with pytest.raises(RequestError):
            await library.change(made.id, "acme", rules=plus(c="d"))
        await library.add("c", rules(**{"a" * 79: "b"}), tenant=None, created_by=None)
        with pytest.raises(RequestError) as caught:
            await library.add("b", rules(ab="b"), tenant="other", created_by=None)
        assert "100 characters of rules" in caught.value.message
        assert len(stored(tmp_path)) == 2


async def test_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as library:

        def fail(*_: object) -> bytes:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module, "pack", fail)
        with pytest.raises(BackendError) as caught:
            await library.add("a", rules(a="b"), tenant=None, created_by=None)
        assert caught.value.code is ErrorCode.STORAGE_FAILED
        assert names(library) == []
        assert not stored(tmp_path)


async def test_context_has_few_dictionaries_and_rules() -> None:
    library = PronunciationLibrary(None)
    with pytest.raises(RequestError, match="8 dictionaries at most, not 9"):
        library.resolve(["a"] * 9, None)
    with pytest.raises(RequestError, match="100 rules at most, not 101"):
        library.resolve([], None, [{"written": "a", "alias": "b"}] * 101)
    with pytest.raises(RequestError, match="2000 characters at most, not 2100"):
        library.resolve([], None, [{"written": "a" * 100, "alias": "b"}] * 21)
    with pytest.raises(RequestError) as caught:
        library.resolve([], None, [{"written": "a", "alias": "b"}, {"written": "a"}])
    assert caught.value.param == "pronunciation_rules.1.alias"
    (own,) = library.resolve([], None, [{"written": "a", "alias": "b"}])
    assert own.rules == (Rule("a", "b"),)
    assert library.resolve([], None) == ()
