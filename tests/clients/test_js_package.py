"""The npm package of the JavaScript client: what it holds, and types that say what the code has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from talkwire_client import protocol

FOLDER = Path(__file__).parents[2] / "clients" / "js"
TYPES = (FOLDER / "talkwire.d.ts").read_text(encoding="utf-8")
NODE, NPM = shutil.which("node"), shutil.which("npm")
#: Prints the names of a module, and the public members of its classes.
LIST = """
const module = await import(process.argv[1]);
const isPublic = (name) => !/^_|^constructor$/.test(name);
const members = (of) => Object.getOwnPropertyNames(of.prototype).filter(isPublic);
const socket = { addEventListener() {} };
const client = new module.Client(socket);
client.session = { sample_rate: 24000 };
const context = new module.Context(client, { context_id: "c" }, {});
const fields = (of) => Object.keys(of).filter(isPublic);
console.log(JSON.stringify({
  names: Object.keys(module).sort(),
  Client: [...members(module.Client), ...fields(client)].sort(),
  Context: [...members(module.Context), ...fields(context)].sort(),
}));
"""


def declared(name: str) -> list[str]:
    """The members that the types declare of a class."""
    body = re.search(rf"class {name} .*?^\}}", TYPES, re.DOTALL | re.MULTILINE)
    assert body is not None
    found = re.findall(r"^  (?:readonly )?([a-z]\w*)\??[(:]", body[0], re.MULTILINE)
    return sorted(set(found) - {"constructor"})


@pytest.mark.skipif(NODE is None, reason="no Node.js here")
def test_types_declare_what_the_module_has() -> None:
    assert NODE is not None
    command = [NODE, "--input-type=module", "-e", LIST, (FOLDER / "talkwire.js").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    has = json.loads(done.stdout)
    exported = r"^export (?:const|class|function) (\w+)"
    assert sorted(re.findall(exported, TYPES, re.MULTILINE)) == has["names"]
    for name in ("Client", "Context"):
        assert declared(name) == has[name]


@pytest.mark.skipif(NPM is None, reason="no npm here")
def test_package_holds_the_module_its_types_and_license(tmp_path: Path) -> None:
    assert NPM is not None
    command = [NPM, "pack", "--json", "--offline", "--pack-destination", str(tmp_path), str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (package,) = json.loads(done.stdout)
    assert sorted(file["path"] for file in package["files"]) == [
        "LICENSE",
        "README.md",
        "package.json",
        "talkwire.d.ts",
        "talkwire.js",
    ]
    assert (tmp_path / package["filename"]).stat().st_size < 40_000


def test_package_has_the_license_and_version_of_the_python_client() -> None:
    package = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))
    python = (FOLDER.parent / "python" / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{package["version"]}"' in python
    assert (FOLDER / "LICENSE").read_text() == (FOLDER.parent / "python" / "LICENSE").read_text()


def test_types_have_the_fields_of_the_protocol() -> None:
    for struct, name in (
        (protocol.ContextCancelled, "Cancelled"),
        (protocol.ContextWarning, "Warning"),
        (protocol.AudioOptions, "AudioOptions"),
        (protocol.Word, "Word"),
    ):
        body = re.search(rf"interface {name} \{{.*?^\}}", TYPES, re.DOTALL | re.MULTILINE)
        assert body is not None
        fields = set(re.findall(r"^  (\w+)\??:", body[0], re.MULTILINE))
        assert fields == set(struct.__struct_fields__)
