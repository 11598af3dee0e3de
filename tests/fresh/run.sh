#!/usr/bin/env bash
# From a bare system to the first sentence: make a minimal Debian and a minimal Ubuntu by debootstrap, clone HEAD there,
# and type what README says, as an ordinary user. Nothing but Python, its venv and make is installed.
#
#     tests/fresh/run.sh [bookworm|noble]...    (both, if none is named)
#
# As root; mounts and processes are in namespaces of their own, and everything is removed at the end. This machine's pip
# settings hold there too. Settings (environment): DEBIAN_MIRROR, UBUNTU_MIRROR; PORT; TESTS, what pytest runs at the end;
# FOLDER, where the systems are made (4 GB each); ONEDNN_MAX_CPU_ISA=AVX2 for a processor without AVX-512.
set -euo pipefail
cd "$(dirname "$0")/../.."
export DEBIAN_MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian} UBUNTU_MIRROR=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}
export PORT=${PORT:-8765} TESTS=${TESTS:-tests/ipc}
user=newcomer

say() { printf 'test-fresh: %s\n' "$*"; }
die() { printf 'test-fresh: %s\n' "$*" >&2; exit 1; }

# Put a bare system of this name into $root; 2 if it cannot be had here.
make_system() {
  local mirror=$DEBIAN_MIRROR options=() script=$1
  if [ "$1" = noble ]; then
    mirror=$UBUNTU_MIRROR
    options=(--components=main,universe)
    # debootstrap may be older than the system that it makes; all of Ubuntu's are made alike
    [ -e "/usr/share/debootstrap/scripts/$1" ] || script=gutsy
    local keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    if [ -f "$keys" ]; then options+=(--keyring="$keys"); else
      say "no $keys here: the packages of $1 are not verified"
      options+=(--no-check-gpg)
    fi
  fi
  "${PYTHON:-python3}" -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=20)' \
    "$mirror/dists/$1/Release" 2>/dev/null || return 2
  debootstrap --variant=minbase --include=python3,python3-venv,make "${options[@]}" \
    "$1" "$root" "$mirror" "$script" > "$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; die "debootstrap failed"; }
}

# What belongs to this machine rather than to the system: names, proxies' certificates, pip's settings and wheel folders.
lend_network() {
  local path paths
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  paths=$( { echo /etc/pip.conf /etc/xdg/pip; "${PYTHON:-python3}" -m pip config list; } |
    grep -o "/[^' \\\\]*" | sed 's,^//,/,' | sort -u)
  for path in $paths; do
    [ -e "$path" ] && [ "$path" != / ] || continue
    if [ -f "$path" ] && cmp -s "$path" "$root$path"; then continue; fi # it is in a folder that is there
    if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}"; touch "$root$path"; fi
    mount --bind -o ro "$path" "$root$path"
  done
}

# Run a command there, as the user and in the clone, with an environment of a new login.
there() {
  local settings
  mapfile -t settings < <(env | grep -E '^(PIP_|https?_proxy=|no_proxy=|HTTPS?_PROXY=|NO_PROXY=|ONEDNN_|TORCH_INDEX=)')
  chroot --userspec="$user:$user" "$root" env -i HOME="/home/$user" PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 \
    ${settings[@]+"${settings[@]}"} bash -c 'cd ~/talkwire && exec "$@"' - "$@"
}

# In namespaces of our own: a system's whole story. The second argument says how libnuma comes there.
try_system() {
  local name=$1 libnuma=$2 told packages line
  root=$3
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount --rbind /dev "$root/dev"
  lend_network
  chroot "$root" useradd --create-home --shell /bin/bash "$user"
  git -c safe.directory='*' clone -q --no-hardlinks . "$root/home/$user/talkwire"
  chroot "$root" chown -R "$user:$user" "/home/$user"

  # without apt's lists, as in a container's image: one line that names the package, before any download
  rm -rf "$root"/var/lib/apt/lists/*
  if told=$(there make run 2>&1); then die "$name: 'make run' ended well without libnuma: $told"; fi
  told=$(grep '^talkwire: ' <<< "$told")
  say "$name, bare: $told"
  packages=$(sed -n 's/.*apt-get install \([a-z0-9 .+-]*\).*/\1/p' <<< "$told")
  [ "$packages" = libnuma1 ] && [ "$(wc -l <<< "$told")" = 1 ] || die "$name: that should name libnuma1, in one line"
  [ ! -e "$root/home/$user/talkwire/.venv" ] || die "$name: something was installed before that"

  chroot "$root" apt-get -qq update
  if [ "$libnuma" = as-root ]; then
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get -qq install --no-install-recommends $packages >/dev/null
  fi

  SECONDS=0
  exec 3< <(there bash -c 'echo $$ > pid; exec make run ARGS="--port '"$PORT"'"' 2>&1)
  while :; do
    read -r line <&3 || die "$name: the service ended before it was ready"
    say "$name: $line"
    case "$line" in *"Ready after"*) break ;; esac
  done
  cat <&3 > "$root.service" & local draining=$!
  say "$name: ready $SECONDS s after 'make run' was typed"
  there .venv/bin/talkwire say "A new machine, and it speaks." --url "ws://127.0.0.1:$PORT" --out said.wav
  there python3 - said.wav <<'PY'
import array, sys, wave
with wave.open(sys.argv[1]) as file:
    samples = array.array("h", file.readframes(file.getnframes()))
    seconds = file.getnframes() / file.getframerate()
loud = max(map(abs, samples), default=0)
print(f"test-fresh: {seconds:.2f} s were spoken, at most {loud / 32768:.2f} of full scale")
sys.exit(not (0.5 < seconds < 20 and loud > 1000))
PY
  kill -TERM "$(cat "$root/home/$user/talkwire/pid")"
  wait "$draining" || true
  say "$name: make test ARGS=\"$TESTS\""
  there make test ARGS="$TESTS -q -n 2"
  say "$name: passed"
}

if [ "${1:-}" = --inside ]; then
  try_system "$2" "$3" "$4"
  exit
fi
[ "$(id -u)" = 0 ] || die "needs root: debootstrap and chroot"
command -v debootstrap >/dev/null || die "no debootstrap here (on Debian and Ubuntu: apt-get install debootstrap)"
folder=$(mktemp -d "${FOLDER:-/var/tmp}/talkwire-fresh.XXXXXX")
trap 'rm -rf --one-file-system "$folder"' EXIT
tried=0
for name in "${@:-bookworm noble}"; do for name in $name; do
  root=$folder/$name
  case "$name" in
    bookworm) libnuma=as-root ;;
    noble) libnuma=as-user ;;
    *) die "bookworm and noble are known here, not $name" ;;
  esac
  status=0
  make_system "$name" || status=$?
  if [ "$status" = 2 ]; then say "$name is skipped: its archive cannot be reached"; continue; fi
  [ "$status" = 0 ] || exit "$status"
  unshare --mount --pid --fork --kill-child "$0" --inside "$name" "$libnuma" "$root"
  rm -rf --one-file-system "$root"
  tried=$((tried + 1))
done; done
[ "$tried" -gt 0 ] || die "no system could be made"
