"""The filter of system calls: what a taken-over decoder of clips can still do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from service.voices import clip_reader as clip_module
from service.voices import clip_sandbox
from service.voices.clip_reader import ClipReader
from tests.service.voices import clips
from tests.waiting import until

CHILD = Path(clip_module.__file__).with_name("clip_sandbox.py")

#: Makes each attempt in a process of its own, on one of the same user that does nothing and may be
#: traced, so that nothing but the filter is in the way. Prints each one's error number; 0 if it
#: succeeded.
ATTEMPTS = """
import ctypes, json, os, resource, signal, socket, sys, threading
sys.path.insert(0, sys.argv[1])
import clip_sandbox
libc = ctypes.CDLL(None, use_errno=True)

def call(name, *arguments):
    function = getattr(libc, name)
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    if function(*given) < 0:
        raise OSError(ctypes.get_errno(), name)

byte = ctypes.create_string_buffer(1)
place = (ctypes.c_size_t * 2)(ctypes.addressof(byte), 1)
ATTEMPTS = {
    "signal": lambda: os.kill(target, 0),
    "signal itself": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGCONT),
    "hold": lambda: os.pidfd_open(target),
    "trace": lambda: call("ptrace", 0x4206, target, 0, 0),
    "read memory": lambda: call("process_vm_readv", target, place, 1, place, 1, 0),
    "open memory": lambda: os.open(f"/proc/{target}/mem", os.O_RDONLY),
    "limit": lambda: resource.prlimit(target, resource.RLIMIT_CORE, (0, 0)),
    "move": lambda: os.sched_setaffinity(target, os.sched_getaffinity(target)),
    "slow": lambda: os.setpriority(os.PRIO_PROCESS, target, 19),
    "socket": lambda: socket.socket(),
    "pair of sockets": lambda: socket.socketpair(),
    "pipe": lambda: os.pipe(),
    "process": lambda: os.fork() or os._exit(0),
    "program": lambda: os.posix_spawn("/bin/sh", ["sh", "-c", ":"], {}),
    "replace itself": lambda: os.execv("/bin/sh", ["sh", "-c", f"echo 0 >&{theirs}"]),
    "read a file": lambda: os.open("/etc/passwd", os.O_RDONLY),
    "write a file": lambda: os.open(os.devnull, os.O_WRONLY),
    "look at a file": lambda: os.stat("/etc/passwd"),
    "file in memory": lambda: os.memfd_create("x"),
    "user": lambda: os.setuid(os.getuid()),
    "filter": lambda: call("prctl", 38, 1, 0, 0, 0),
}

def attempt(name):
    try:
        ATTEMPTS[name]()
        number = 0
    except OSError as error:
        number = error.errno
    os.write(theirs, str(number).encode())
    os._exit(0)

ours, theirs = os.pipe()
target = os.fork()
if not target:
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)
    libc.prctl(0x59616D61, ctypes.c_long(-1), 0, 0, 0)
    os.write(theirs, b"ready")
    signal.pause()
os.read(ours, 5)
outcomes = {}
for name in ATTEMPTS:
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    attempting = os.fork()
    if not attempting:
        go = threading.Event()
        older = threading.Thread(target=lambda: (go.wait(), attempt(name)))
        if sys.argv[2] == "by an older thread":
            older.start()
        if sys.argv[2] != "unfiltered":
            libc.prctl(38, 1, 0, 0, 0)
            assert clip_sandbox.filter_system_calls()
        if sys.argv[2] == "by an older thread":
            go.set()
            older.join()
        attempt(name)
    os.close(theirs)
    outcomes[name] = os.read(ours, 10).decode().strip()
    os.close(ours)
    os.waitpid(attempting, 0)
os.kill(target, signal.SIGKILL)
print(json.dumps(outcomes))
"""


def outcomes(mode: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPTS, str(CHILD.parent), mode],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_without_filter_same_process_can_do_all_that_is_attempted() -> None:
    assert {name: number for name, number in outcomes("unfiltered").items() if number != "0"} == {}


@pytest.mark.parametrize("mode", ["by the filtering thread", "by an older thread"])
def test_filter_refuses_ways_out_to_all_threads(mode: str) -> None:
    refused = outcomes(mode)
    assert len(refused) > 20
    assert {name: number for name, number in refused.items() if number != "1"} == {}  # EPERM


async def test_real_child_is_filtered_in_all_threads_before_it_reads(tmp_path: Path) -> None:
    arguments = ("24000", "10000000", "1", "30")
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-B", str(CHILD), *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )

    def filters() -> set[str]:
        threads = Path(f"/proc/{child.pid}/task").iterdir()
        lines = [line for one in threads for line in (one / "status").read_text().splitlines()]
        return {line for line in lines if line.startswith("Seccomp:")}

    await until(lambda: filters() == {"Seccomp:\t2"})
    answer, _ = await child.communicate(clips.wav(clips.tone()))
    assert json.loads(answer.partition(b"\n")[0])["filtered"] is True
    assert child.returncode == 0


@pytest.mark.parametrize("column", [0, 1])
def test_no_number_of_a_system_call_is_listed_twice(column: int) -> None:
    numbers = [one[column] for one in clip_sandbox._CALLS.values()]
    assert len(set(numbers)) == len(numbers)


async def test_clips_are_read_unfiltered_and_one_warning_logged_where_kernel_has_no_filter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "clip_sandbox.py"
    program.write_text(CHILD.read_text().replace('"x86_64": (', '"other": (').replace(
        '"aarch64": (', '"another": ('))  # fmt: skip
    (tmp_path / "clip_head.py").write_text(CHILD.with_name("clip_head.py").read_text())
    monkeypatch.setattr(clip_module, "_CHILD", program)
    reader = ClipReader(clips.RATE)
    for _ in range(2):
        assert len(await reader.read(clips.wav(clips.tone())))
    assert [record.message for record in caplog.records if "unfiltered" in record.message] == [
        "clips are decoded unfiltered: the kernel filters no system calls"
    ]
