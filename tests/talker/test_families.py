"""Talker families: their registry, and light imports in the gateway."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from talker.families import FAMILIES, UnknownFamilyError, find_family
from talker.families.family import Family
from talker.shape import CheckpointError
from tests.talker import tiny


def test_find_family_by_model_type() -> None:
    for family in FAMILIES:
        assert find_family({"model_type": family.model_type}) is family


@pytest.mark.parametrize("config", [{}, {"model_type": None}, {"model_type": "llama"}])
def test_find_family_error_names_supported_families(config: dict[str, object]) -> None:
    with pytest.raises(UnknownFamilyError) as error:
        find_family(config)
    for family in FAMILIES:
        assert family.title in str(error.value)
        assert family.model_type in str(error.value)
    assert repr(config.get("model_type")) in str(error.value)


def test_find_family_refuses_another_architecture() -> None:
    config = {**tiny.config(7), "architectures": ["Qwen3ForCausalLM"]}
    with pytest.raises(CheckpointError, match="Qwen3ForCausalLM"):
        find_family(config)


def test_families_have_unique_model_types() -> None:
    assert len({family.model_type for family in FAMILIES}) == len(FAMILIES)
    assert all(family.title and family.example and family.licence.name for family in FAMILIES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_family_model_class_is_importable(family: Family) -> None:
    from talker.model import TalkerModel

    module, _, name = family.model_class.partition(":")
    model = getattr(import_module(module), name)
    assert issubclass(model, TalkerModel)
    assert family.architecture.endswith(name)


def test_family_names_appear_only_in_own_modules_and_registry() -> None:
    """A new family then touches only its own modules, the registry, tests and docs."""
    root = Path(__file__).parents[2]
    own = {"talker/families/__init__.py", "codec/families/__init__.py"}
    names = {family.model_class.split(":")[0].split(".")[2] for family in FAMILIES}
    assert names == {"higgs_v3", "higgs_v2", "fish_s2", "qwen3_tts"}
    word = re.compile("|".join([*names, *(f.model_type for f in FAMILIES)]))
    naming = set()
    for package in ("talker", "codec", "service", "streaming", "ipc", "asr"):
        for file in (root / package).rglob("*.py"):
            path = file.relative_to(root).as_posix()
            if path.split("/")[1] != "families" or path.count("/") == 2:
                naming |= {path} if word.search(file.read_text(encoding="utf-8")) else set()
    assert naming <= own


def test_families_import_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, talker.families, talker.request_builder; "
        "sys.exit(bool({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
