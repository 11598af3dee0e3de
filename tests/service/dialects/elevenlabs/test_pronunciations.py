"""ElevenLabs' pronunciation dictionaries; the official client is in tests/official."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.auth.keyring import entry, write_keys
from tests.service.contexts.recording_talker import RecordingTalker
from tests.service.dialects.elevenlabs.talk import finish, multi, single
from tests.service.live import Gateway, gateway

DICTIONARIES = "/v1/pronunciation-dictionaries"
ALIAS = {"type": "alias", "string_to_replace": "k8s", "alias": "kubernetes"}
PHONEME = {
    "type": "phoneme", "string_to_replace": "Worcester", "phoneme": "W UH1 S T ER0",
    "alphabet": "cmu-arpabet",
}  # fmt: skip
FULL = {"case_sensitive": True, "word_boundaries": True}


async def ask(
    server: Gateway, method: str, path: str = "", key: str = "any", **options: Any
) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60, headers={"xi-api-key": key}) as http:
        return await http.request(method, f"{server.http}{DICTIONARIES}{path}", **options)


async def add(server: Gateway, *rules: dict[str, Any], name: str = "names") -> dict[str, Any]:
    made = await ask(server, "POST", "/add-from-rules", json={"name": name, "rules": rules})
    assert made.status_code == 200, made.text
    return dict(made.json())


def locators(*made: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {"pronunciation_dictionary_id": one["id"], "version_id": one["version_id"]} for one in made
    ]


async def test_dictionary_is_added_changed_and_read() -> None:
    async with gateway() as server:
        made = await add(server, ALIAS, PHONEME)
        assert made["name"] == "names"
        assert made["version_rules_num"] == 2
        path = f"/{made['id']}"
        got = (await ask(server, "GET", path)).json()
        assert got["latest_version_id"] == made["version_id"]
        rules = got["rules"]
        assert rules[0] == {**ALIAS, "phoneme": None, "alphabet": "ipa", **FULL}
        assert rules[1] == {**PHONEME, "alias": None, **FULL}
        other = {**ALIAS, "alias": "kates", "case_sensitive": False}
        more = {"type": "alias", "string_to_replace": "a", "alias": "b"}
        added = (
            await ask(server, "POST", path + "/add-rules", json={"rules": [other, more]})
        ).json()
        assert added["version_rules_num"] == 3
        assert added["version_id"] != made["version_id"]
        removed = await ask(server, "POST", path + "/remove-rules", json={"rule_strings": ["a"]})
        rules = (await ask(server, "GET", path)).json()["rules"]
        assert [(rule["string_to_replace"], rule["alias"]) for rule in rules] == [
            ("Worcester", None),
            ("k8s", "kates"),
        ]
        assert removed.json()["version_rules_num"] == 2
        await ask(server, "POST", path + "/set-rules", json={"rules": [more]})
        old = await ask(server, "GET", f"{path}/{made['version_id']}/download")
        assert old.headers["content-type"] == "application/pls+xml"
        assert "<grapheme>k8s</grapheme><alias>kubernetes</alias>" in old.text
        form = {"name": "again", "description": "From a file."}
        again = await ask(
            server, "POST", "/add-from-file", data=form, files={"file": ("a.pls", old.content)}
        )
        read = (await ask(server, "GET", f"/{again.json()['id']}")).json()
        assert read["description"] == "From a file."
        assert [rule["phoneme"] for rule in read["rules"]] == [None, "W UH1 S T ER0"]
        renamed = await ask(server, "PATCH", path, json={"name": "new"})
        assert renamed.json()["name"] == "new"
        await ask(server, "PATCH", path, json={"archived": True})
        assert (await ask(server, "GET", path)).status_code == 404


async def test_list_has_pages() -> None:
    async with gateway() as server:
        ids = [(await add(server, ALIAS, name=f"d{number}"))["id"] for number in range(5)]
        found: list[str] = []
        cursor: dict[str, str] = {}
        for count in (2, 2, 1):
            params = {"page_size": "2", "sort": "name", "sort_direction": "ascending", **cursor}
            page = (await ask(server, "GET", params=params)).json()
            assert len(page["pronunciation_dictionaries"]) == count
            found += [one["id"] for one in page["pronunciation_dictionaries"]]
            cursor = {"cursor": page["next_cursor"]}
        assert found == ids
        assert not page["has_more"]
        wrong = await ask(server, "GET", params={"cursor": "x"})
        assert wrong.json()["detail"]["param"] == "cursor"


async def test_speech_uses_versions_over_http_and_on_sockets() -> None:
    talker = RecordingTalker()
    async with gateway(talker) as server:
        first = await add(server, ALIAS)
        second = await add(server, {**ALIAS, "string_to_replace": "Mr. X", "alias": "X-ray"})
        path = f"/{first['id']}/set-rules"
        await ask(server, "POST", path, json={"rules": [{**ALIAS, "alias": "kates"}]})
        talker.spoken.clear()
        text, used = "Mr. X runs k8s.", locators(first, second)
        latest = [{"pronunciation_dictionary_id": first["id"]}]
        async with httpx.AsyncClient(timeout=60) as http:
            for chosen in (used, latest, [], None):
                body = {"text": text, "pronunciation_dictionary_locators": chosen}
                url = f"{server.http}/v1/text-to-speech/default/stream"
                answer = await http.post(url, json=body)
                assert answer.status_code == 200
        async with multi(server) as talk:
            await talk.send(text=" ", context_id="a", pronunciation_dictionary_locators=used)
            for char in text:
                await talk.send(text=char, context_id="a")
            await finish(talk, "a")
            while not (await talk.next()).get("isFinal"):
                pass
        async with single(server) as talk:
            await talk.send(text=" ", pronunciation_dictionary_locators=used)
            await talk.send(text=text + " ")
            await talk.send(text="")
            while not (await talk.next()).get("isFinal"):
                pass
    assert [text for _, text in talker.spoken] == [
        "X-ray runs kubernetes.", "Mr. X runs kates.", text, text,
        "X-ray runs kubernetes.", "X-ray runs kubernetes.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"name": "a"}, 422, "invalid_message", "rules"),
        ({"name": "", "rules": []}, 422, "invalid_message", "name"),
        ({"name": "a", "rules": [{"type": "x"}]}, 422, "invalid_message", "rules.0.type"),
        ({"name": "a", "rules": [{**ALIAS, "alias": None}]}, 400, "invalid_parameter",
         "rules.0.alias"),
        ({"name": "a", "rules": [ALIAS, {**PHONEME, "alphabet": "x-sampa"}]}, 400,
         "invalid_parameter", "rules.1.phoneme"),
        ({"name": "a", "rules": [ALIAS] * 1001}, 422, "invalid_message", "rules"),
    ],
)  # fmt: skip
async def test_wrong_rules_are_refused(
    body: dict[str, Any], status: int, code: str, param: str
) -> None:
    async with gateway() as server:
        refused = await ask(server, "POST", "/add-from-rules", json=body)
        detail = refused.json()["detail"]
        assert (refused.status_code, detail["code"], detail["param"]) == (status, code, param)


async def test_largest_dictionary_is_taken() -> None:
    rules = [{**ALIAS, **FULL, "string_to_replace": f"word {number}"} for number in range(1000)]
    async with gateway() as server:
        made = await add(server, *rules)
        assert made["version_rules_num"] == 1000
        more = {"rules": [{**ALIAS, "string_to_replace": "one more"}]}
        refused = await ask(server, "POST", f"/{made['id']}/add-rules", json=more)
        assert refused.status_code == 400
        assert "1000 rules at most" in refused.json()["detail"]["message"]


async def test_wrong_files_are_refused() -> None:
    bomb = b'<!DOCTYPE a [<!ENTITY b "c">]><lexicon>&b;</lexicon>'
    async with gateway() as server:
        for name, data, message in (
            ("file", bomb, "line 1: a document type is not allowed"),
            ("file", b"<html/>", "line 1: the root is lexicon"),
            ("lexicon", b"<lexicon/>", "lexicon is not a field here"),
        ):
            refused = await ask(
                server, "POST", "/add-from-file", data={"name": "a"}, files={name: ("a.pls", data)}
            )
            assert refused.status_code in (400, 422)
            assert message in refused.json()["detail"]["message"]


async def test_dictionaries_belong_to_tenants(tmp_path: Path) -> None:
    write = ("speak", "voices:write")
    keys = write_keys(
        tmp_path / "keys.json",
        entry("a", "acme", *write), entry("b", "other", *write), entry("c", "acme"),
    )  # fmt: skip
    async with gateway(api_keys_file=keys) as server:
        body = {"name": "names", "rules": [ALIAS]}
        made = (await ask(server, "POST", "/add-from-rules", "a", json=body)).json()
        assert made["created_by"] == "key_a"
        path = f"/{made['id']}"
        assert (await ask(server, "GET", path, "c")).status_code == 200
        assert (await ask(server, "GET", path, "b")).status_code == 404
        assert (await ask(server, "PATCH", path, "b", json={"name": "x"})).status_code == 404
        assert (await ask(server, "PATCH", path, "c", json={"name": "x"})).status_code == 403
        for key, count in (("a", 1), ("b", 0), ("c", 1)):
            page = (await ask(server, "GET", key=key)).json()
            assert len(page["pronunciation_dictionaries"]) == count


async def test_page_of_another_origin_cannot_change_dictionaries() -> None:
    async with gateway() as server:
        headers = {"origin": "https://elsewhere.example"}
        body = {"name": "names", "rules": [ALIAS]}
        refused = await ask(server, "POST", "/add-from-rules", json=body, headers=headers)
        assert refused.status_code == 403
