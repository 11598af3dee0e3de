"""The process that reads a pickle: ``python -m codec.convert_child FAMILY SOURCE TARGET``.

It reads the folder's ``config.json`` from stdin and writes one JSON object to stdout: ``shapes``
and ``left_out``, or ``error``.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from codec.checkpoint import check_tensors, find_sources, merged
from codec.families import FAMILIES
from codec.family import CheckpointError, Conversion

_CPU_S = 1200
#: Address space beyond several times the file's own size: torch maps much and uses little.
_MEMORY_BYTES = 8 << 30
#: Files that may be open at once in addition to those already open: the pickle, twice, and the
#: target.
_MORE_FILES = 6
_CLONE_NEWNET = 0x40000000
_CLONE_NEWUSER = 0x10000000
_PR_SET_NO_NEW_PRIVS = 38
#: Keys under which a training run's pickle may have its tensors.
_WRAPPERS = ("state_dict", "model")
_PREFIX = "generator."


def main(arguments: list[str]) -> int:
    """Convert; return 0 if the target has been written."""
    family, source, target = arguments
    config = json.load(sys.stdin)
    conversion = next(f.conversion for f in FAMILIES if f.name == family)
    assert conversion is not None
    torch.set_num_threads(1)  # no thread can be started later
    confine(Path(source).stat().st_size)
    try:
        report = convert_file(conversion, Path(source), Path(target), config)
    except CheckpointError as error:
        report = {"error": str(error)}
    json.dump(report, sys.stdout)
    return 1 if "error" in report else 0


def convert_file(
    conversion: Conversion, source: Path, target: Path, config: Mapping[str, object]
) -> dict[str, object]:
    """Write the safetensors file; return the report. Raises CheckpointError."""
    stored = load_tensors(source)
    plan = conversion.plan({name: tuple(t.shape) for name, t in stored.items()}, config)
    sources = find_sources(plan.shapes, plan.names, stored.__contains__)
    tensors = {}
    for key, parts in sources.items():
        if any(not stored[name].is_floating_point() for name in parts):
            raise CheckpointError(f"{key} holds no floating-point numbers")
        tensor = merged([stored[name].float() for name in parts])
        tensors[key] = tensor.contiguous().clone()
    check_tensors(tensors, plan.shapes)
    try:
        save_file(tensors, target, {"format": "pt", **plan.metadata})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"the result cannot be written: {error}") from error
    used = {name for parts in sources.values() for name in parts}
    return {
        "shapes": {key: list(shape) for key, shape in plan.shapes.items()},
        "left_out": len(stored.keys() - used),
    }


def load_tensors(source: Path) -> dict[str, Tensor]:
    """Read only the tensors of a pickle. Raises CheckpointError."""
    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError("it holds more than tensors, which is not read") from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        raise CheckpointError(f"it is no checkpoint of torch's ({type(error).__name__})") from error
    for wrapper in _WRAPPERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict):
        raise CheckpointError("it holds no tensors by name")
    tensors = {
        name: value
        for name, value in loaded.items()
        if isinstance(name, str) and isinstance(value, Tensor)
    }
    prefixed = {name for name in tensors if name.startswith(_PREFIX)}
    if prefixed:
        tensors = {name.removeprefix(_PREFIX): tensors[name] for name in prefixed}
    if not tensors:
        raise CheckpointError("it holds no tensors by name")
    return tensors


def confine(source_bytes: int) -> None:
    """Give up everything that reading and writing two files does not need.

    A network namespace of its own has no network. If the system does not grant one, only the limit
    on open files is left to prevent sockets.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux":
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if libc.unshare(_CLONE_NEWNET) != 0:
            libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    highest = max((int(name) for name in os.listdir("/proc/self/fd")), default=64)
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: _CPU_S,
        resource.RLIMIT_NOFILE: highest + _MORE_FILES,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_FSIZE: 2 * source_bytes + (1 << 20),
        resource.RLIMIT_AS: _MEMORY_BYTES + 4 * source_bytes,
    }
    for kind, limit in limits.items():
        _, hard = resource.getrlimit(kind)
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (value, value))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
