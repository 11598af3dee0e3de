#!/usr/bin/env bash
# Choose versions and hashes with uv: NAME.in -> NAME.txt for each NAME. Versions that a list has stay, unless
# UPGRADE=1; they fit Python 3.11 and later on Linux. NAME.in holds requirement lines, and
#
#     #: omit PACKAGE: reason      leaves PACKAGE, and what only PACKAGE needs, out (so lists install with --no-deps)
#     #: beside LIST               goes into one environment with LIST.txt: takes its versions
#     #: instead PACKAGE==VERSION   takes that version, whatever the lists that it includes ask for
#
# Settings (environment): UV, the program; UPGRADE.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-uv}
omitted=$(mktemp)
instead=$(mktemp)
trap 'rm -f "$omitted" "$instead"' EXIT

for name in "$@"; do
  beside=$(sed -n 's/^#: beside \(.*\)$/\1/p' "requirements/$name.in")
  options=(--universal --python-version 3.11 --generate-hashes --no-annotate --quiet)
  [ -z "${UPGRADE:-}" ] || options+=(--upgrade)
  [ -z "$beside" ] || options+=(--constraint "requirements/$beside.txt")
  sed -n 's/^#: omit \([^:]*\):.*/\1/p' "requirements/$name.in" > "$omitted"
  sed -n 's/^#: instead \(.*\)$/\1/p' "requirements/$name.in" > "$instead"
  "$uv" pip compile "requirements/$name.in" "${options[@]}" --excludes "$omitted" --overrides "$instead" \
    --custom-compile-command "make lock" --output-file "requirements/$name.txt"
  echo "requirements/$name.txt: $(grep -c '==' "requirements/$name.txt") packages"
done
