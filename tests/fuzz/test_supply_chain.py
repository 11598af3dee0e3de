"""Supply chain: the sources load no foreign code, and every installed package has a hash."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "asr", "clients", "codec", "ipc", "loadtest", "service", "streaming", "talker",
    "text", "training", "benchmarks", "deploy", "requirements",
)  # fmt: skip
#: Modules that can run code from the data they read.
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
#: Functions that can do so, or that run a shell or foreign code.
CALLS = {
    "eval", "exec", "compile", "__import__", "torch.load", "torch.hub.load", "yaml.load",
    "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen", "tempfile.mktemp",
    "joblib.load", "pandas.read_pickle", "xml.etree.ElementTree.parse",
}  # fmt: skip
ARGUMENTS = {"trust_remote_code", "shell", "allow_pickle", "weights_only"}


def sources() -> list[Path]:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    assert len(files) > 150
    return files


def named(node: ast.expr) -> str:
    """The dotted name of a call's function; "?" replaces a part that is not a name."""
    if isinstance(node, ast.Attribute):
        return f"{named(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def doors(code: str) -> Iterator[str]:
    """Imports, calls and arguments in a source that could run foreign code."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            if named(node.func) in CALLS:
                yield named(node.func)
            for keyword in node.keywords:
                is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                wanted = keyword.arg == "weights_only"
                if keyword.arg in ARGUMENTS and is_false is wanted:
                    yield f"{keyword.arg}="


#: Only the converter reads pickles: weights only, in a sandboxed process.
CONVERTER = {"codec/convert_child.py": ["pickle", "torch.load"]}


def test_sources_load_no_foreign_code() -> None:
    found = {str(file.relative_to(ROOT)): list(doors(file.read_text())) for file in sources()}
    assert {file: what for file, what in found.items() if what} == CONVERTER


def test_converter_loads_weights_only() -> None:
    tree = ast.parse((ROOT / "codec" / "convert_child.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not any(named(call.func).startswith("pickle.") for call in calls)
    (load,) = [call for call in calls if named(call.func) == "torch.load"]
    (flag,) = [word.value for word in load.keywords if word.arg == "weights_only"]
    assert isinstance(flag, ast.Constant)
    assert flag.value is True


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from pickle import loads", "import torch\ntorch.load('x')",
        "f(trust_remote_code=True)", "f(trust_remote_code=x)", "subprocess.run('a', shell=True)",
        "eval('1')", "np.load(f, allow_pickle=True)", "torch_load(f, weights_only=False)",
    ],
)  # fmt: skip
def test_doors_finds_shells_pickles_and_remote_code(code: str) -> None:
    assert list(doors(code))
    assert not list(doors("subprocess.run(['a'], shell=False)\nnp.load(f, allow_pickle=False)"))


@pytest.mark.parametrize(
    "file", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda file: file.name
)
def test_requirements_are_pinned_and_hashed(file: Path) -> None:
    text = re.sub(r"\\\n\s*", " ", file.read_text())
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    assert lines
    for line in lines:
        assert re.match(r"[A-Za-z0-9._-]+==[^\s]+", line), line
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", line), line


def test_install_scripts_require_hashes() -> None:
    """Checks all pip commands that install a requirements file."""
    scripts = [
        *ROOT.glob("requirements/*.sh"), *ROOT.glob("deploy/**/*.sh"), *ROOT.glob("tests/**/*.sh"),
    ]  # fmt: skip
    seen = 0
    for script in scripts:
        text = script.read_text().replace("\\\n", " ")
        for line in re.findall(r".*pip.* install .*-r .*", text):
            seen += 1
            assert "--require-hashes" in line, (script, line)
    assert seen >= 4
