"""Options, errors, timing and tables that measuring programs share, and facts of the machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def environment(packages: Sequence[str] = ("torch", "numpy")) -> dict[str, str]:
    """Describe the processor, its cores, and the packages' versions."""
    facts = {"cpu": _cpu_name(), "cores": str(os.cpu_count()), "python": platform.python_version()}
    for package in packages:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "absent"
    return facts


def median_seconds(
    work: Callable[[], object],
    times: int,
    repeats: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[], None] = lambda: None,
) -> float:
    """Return the seconds per call: the median of ``repeats`` timings of ``times`` calls each.
    ``wait`` is for a device that works asynchronously.
    """
    taken = []
    for _ in range(times):
        wait()
        began = clock()
        for _ in range(repeats):
            work()
        wait()
        taken.append((clock() - began) / repeats)
    return statistics.median(taken)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print the result of ``environment`` in a line, and an empty line."""
    print("; ".join(f"{name} {value}" for name, value in facts.items()) + "\n")


def bounded(
    kind: type[int] | type[float], minimum: float, maximum: float = math.inf
) -> Callable[[str], float]:
    """Return a parser of an option's number, which refuses values outside of these bounds."""

    def read(text: str) -> float:
        bounds = f"from {minimum:g}" + (f" to {maximum:g}" if maximum < math.inf else " on")
        with contextlib.suppress(ValueError):
            if minimum <= (value := kind(text)) <= maximum and value < math.inf:
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {bounds}")

    return read


@contextlib.contextmanager
def failing(program: str, *kinds: type[Exception]) -> Iterator[None]:
    """Decorate a program's ``main``, or run it in the block. Errors of user or machine (``kinds``
    and OSError) print a line and exit with status 1, and Ctrl-C with 130.
    """
    known: tuple[type[Exception], ...] = (OSError, *kinds)
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the tables has gone; say nothing, as others do
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it is flushed once more
        sys.exit(1)
    except known as error:
        sys.exit(f"{program}: {error}")
    except KeyboardInterrupt:
        print(f"{program}: stopped", file=sys.stderr)
        sys.exit(130)


def output_file(text: str) -> Path:
    """Parse an option that names a file of results. Raises argparse.ArgumentTypeError."""
    try:
        check_writable(Path(text))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text}: {error.strerror}") from error
    return Path(text)


def check_writable(file: Path) -> None:
    """Refuse a file of results that cannot be written, before anything is measured. Its folder is
    made; an existing file is not changed. Raises OSError.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    is_new = not file.exists()
    if is_new or file.is_file() or file.is_dir():  # the reader of a pipe would see its end
        file.open("ab").close()
    if is_new:
        file.resolve().unlink()  # not a link to a file that does not exist yet


def write_json(file: Path | None, content: object) -> None:
    """Write the results to a file, if one is given."""
    if file is not None:
        file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format rows as a Markdown table; floats with three significant digits."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
