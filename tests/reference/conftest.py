"""Skip the tests in this folder unless ``tests/reference/run.sh`` has installed what they need."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

_INSTALLED = Path(__file__).parents[2] / ".venv-reference"


def _add_packages(names: list[str]) -> None:
    """Register nested packages without running their ``__init__``, which imports much more than
    is needed here.
    """
    name, folder = "", _INSTALLED
    for part in names:
        name, folder = f"{name}.{part}".lstrip("."), folder / part
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules.setdefault(name, module_from_spec(spec))


if (_INSTALLED / "vllm_omni").exists():
    _add_packages(["vllm_omni", "model_executor", "models", "fish_speech"])
    with warnings.catch_warnings():  # the module uses torch.jit, which is deprecated
        warnings.simplefilter("ignore", DeprecationWarning)
        import_module("vllm_omni.model_executor.models.fish_speech.dac_modules")
else:
    collect_ignore_glob = ["test_*.py"]
