"""Conversion of a codec that is published as a pickle to safetensors, which the service reads.

    pickle -> child process: load (weights only), check, write -> checked again -> renamed

A pickle can contain code. It is loaded with ``weights_only``, which accepts only tensors and plain
containers, in a process that first gives up everything it does not need: network, children,
privileges, further files, unlimited memory and time. The parent reads the result as safetensors,
compares the names of its tensors with those expected, and only then replaces the target, in one
step.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codec.checkpoint import TensorFiles, read_config
from codec.families import FAMILIES
from codec.family import CheckpointError, CodecFamily, Conversion
from ipc.exit_status import describe_exit

#: Enough to read, check and write two gigabytes on a slow disk.
_PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True)
class Converted:
    """Result of a conversion. ``left_out``: number of the pickle's tensors that are not needed."""

    family: CodecFamily
    file: Path
    tensors: int
    left_out: int


def convert(folder: Path, out: Path | None = None, *, overwrite: bool = False) -> Converted:
    """Convert the pickle in ``folder`` to safetensors in ``out``, or beside it.

    The family is found by the pickle's file name. ``config.json`` is copied if ``out`` is another
    folder. Raises CheckpointError if the pickle is not such a codec, or cannot be converted; then
    nothing has been written.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder")
    family, conversion = _choose(folder)
    target_folder = folder if out is None else out
    target = target_folder / conversion.target
    if target.exists() and not overwrite:
        raise CheckpointError(f"{target} exists already")
    config = read_config(folder)
    try:
        target_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".convert-", dir=target_folder) as scratch:
            converted = Path(scratch) / conversion.target
            report = _run_child(family, folder / conversion.source, converted, config)
            _check(converted, conversion, report)
            shutil.copymode(folder / conversion.source, converted)  # safetensors' own is 0600
            _sync(converted)
            if not (target_folder / "config.json").exists() and config:
                # A codec in a folder of its own is recognised by its configuration.
                copied = Path(scratch) / "config.json"
                copied.write_text(json.dumps(config), encoding="utf-8")
                copied.replace(target_folder / "config.json")
            converted.replace(target)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error.strerror}") from error
    return Converted(family, target, len(report["shapes"]), report["left_out"])


def _choose(folder: Path) -> tuple[CodecFamily, Conversion]:
    for family in FAMILIES:
        if family.conversion is not None and (folder / family.conversion.source).is_file():
            return family, family.conversion
    known = ", ".join(f.conversion.source for f in FAMILIES if f.conversion is not None)
    raise CheckpointError(f"{folder} has none of the pickles that can be converted: {known}")


def _run_child(
    family: CodecFamily, source: Path, converted: Path, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Let the child write ``converted``; return its report: ``shapes`` and ``left_out``."""
    command = [sys.executable, "-m", "codec.convert_child", family.name, str(source.resolve())]
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(
            [*command, str(converted.resolve())],
            input=json.dumps(config).encode(),
            capture_output=True,
            env=environment,
            cwd=converted.parent,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(f"{source} was not converted within {_PATIENCE_S:.0f} s") from error
    report: object = None
    with contextlib.suppress(ValueError):
        report = json.loads(done.stdout)
    if not isinstance(report, dict):
        ending = describe_exit(done.returncode)
        raise CheckpointError(f"{source} cannot be converted: its reader ended: {ending}")
    if "error" in report:
        raise CheckpointError(f"{source} cannot be converted: {report['error']}")
    return report


def _check(converted: Path, conversion: Conversion, report: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless the file has the expected tensors, by its header."""
    found = TensorFiles.open(converted.parent, conversion.target)
    if found.files.keys() != report["shapes"].keys():
        raise CheckpointError("the converted file has other tensors than it should")


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
