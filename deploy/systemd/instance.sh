#!/usr/bin/env bash
# One of several services on a machine, each with a GPU of its own (talkwire@.service runs this):
#
#     instance.sh run ARGUMENT...     become "talkwire ARGUMENT...", once no other service here is loading
#     instance.sh wait                return when the service has loaded its models
#
# Services load one after another: each compiles and reads gigabytes, and those that speak already need the cores too.
# A lock is held until the service has loaded or ended. It runs on the cores beside its GPU where numactl and
# nvidia-smi are installed and the kernel knows which these are.
# Settings (environment): CUDA_VISIBLE_DEVICES, TALKWIRE_PORT, LOCK (default: ~/start.lock), TALKWIRE (the program),
# SYSFS (where the kernel describes devices).
set -euo pipefail
: "${TALKWIRE_PORT:?the port of this service}"
talkwire=${TALKWIRE:-$(dirname "$0")/../../.venv/bin/talkwire}

# Whether GET /health/startup is answered with 200. In a shell of its own, which may fail.
has_loaded() (
  exec 3<>"/dev/tcp/127.0.0.1/$TALKWIRE_PORT" || exit 1
  printf 'GET /health/startup HTTP/1.0\r\n\r\n' >&3
  read -r -t 5 _ status _ <&3 && [ "$status" = 200 ]
) 2>/dev/null

# The NUMA node of the first visible GPU; -1 or nothing where it is not known.
numa_node() {
  local bus
  bus=$(nvidia-smi --id="${CUDA_VISIBLE_DEVICES:?the GPU}" --query-gpu=pci.bus_id --format=csv,noheader | head -n 1)
  # nvidia-smi writes 00000000:3B:00.0, the kernel 0000:3b:00.0
  bus=${bus,,}
  cat "${SYSFS:-/sys}/bus/pci/devices/${bus#0000}/numa_node" 2>/dev/null
}

case "${1:-}" in
  run)
    shift
    exec 9>>"${LOCK:-$HOME/start.lock}"
    flock 9
    # This shell becomes the service, under the same process id. The lock stays with the one that watches it, which is
    # no child of the service.
    service=$$
    ( (until has_loaded || ! kill -0 "$service" 2>/dev/null; do sleep 0.2; done) </dev/null & )
    bind=()
    if command -v numactl >/dev/null && command -v nvidia-smi >/dev/null; then
      node=$(numa_node || true)
      [[ "$node" =~ ^[0-9]+$ ]] && bind=(numactl "--cpunodebind=$node" "--preferred=$node" --)
    fi
    echo "talkwire: starting on port $TALKWIRE_PORT${bind[*]:+ by ${bind[*]}}" >&2
    exec "${bind[@]}" "$talkwire" "$@" 9>&-
    ;;
  wait)
    until has_loaded; do sleep 0.5; done
    ;;
  *)
    echo "instance.sh: run or wait, not '${1:-}'" >&2
    exit 2
    ;;
esac
