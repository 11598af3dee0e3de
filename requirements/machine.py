"""Says, in one line, what this machine lacks to run the service:

    python requirements/machine.py cpu|cuda|cuda-next

install.sh runs it before it installs anything, with whatever interpreter there is: only the
standard library, and nothing that Python 3.6 cannot read. Exits 1 after a line about the machine
or the interpreter, and 3 if only libnuma is missing, which install.sh may find itself.
"""

import ctypes
import platform
import sys

#: What publishers build wheels of torch and vLLM for, by ``platform.machine()``.
MACHINES = ("x86_64", "aarch64")
#: The oldest C library that these wheels run with, and a system that has it.
GLIBC = (2, 28)
NO_NUMA = 3


def lack(system, machine, version, libc):  # type: ignore[no-untyped-def]
    """The reason why the packages cannot be installed, or "".

    Args:
        system: As ``platform.system()`` names it.
        machine: As ``platform.machine()`` names it.
        version: The interpreter's version, at least major and minor.
        libc: Name and version of the C library, as ``platform.libc_ver()``.
    """
    if system != "Linux" or machine not in MACHINES:
        return (
            f"the engines run on Linux alone, on x86-64 or arm64 (here: {system}, {machine}): "
            "on Windows use WSL 2, on a Mac a Linux container"
        )
    major, minor = version[:2]
    if not (3, 11) <= (major, minor) < (3, 14):
        found = f"{sys.executable} is Python {major}.{minor}"
        return f"{found}, not 3.11 to 3.13; name one: make PYTHON=python3.12"
    name, number = libc
    if name != "glibc" or tuple(int(part) for part in number.split(".")[:2]) < GLIBC:
        found = f"{name} {number}" if name else "this system's C library"
        return (
            "torch and vLLM are published for glibc 2.28 or later (Debian 10, Ubuntu 20.04, "
            f"Fedora 29), not for {found}"
        )
    return ""


def main(hardware):  # type: ignore[no-untyped-def]
    """Print the reason, if there is one. Returns the exit status."""
    reason = lack(platform.system(), platform.machine(), sys.version_info, platform.libc_ver())
    if reason:
        print(reason)
        return 1
    if hardware == "cpu":
        try:
            ctypes.CDLL("libnuma.so.1")
        except OSError:
            print(
                "libnuma is missing, which vLLM's CPU kernels need (as root, on Debian and Ubuntu: "
                "apt-get install libnuma1; on Fedora: dnf install numactl-libs)"
            )
            return NO_NUMA
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
