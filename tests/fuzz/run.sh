#!/usr/bin/env bash
# Fuzz in an environment of its own (.venv-fuzz, from requirements/fuzz.txt):
#
#     tests/fuzz/run.sh parsers MINUTES [TARGET ...]   every parser by coverage, so long in all
#     tests/fuzz/run.sh api [schemathesis' options]    the running service against its OpenAPI document
#
# What the parsers' fuzzing found interesting is kept in .fuzz/corpus, what broke something in .fuzz/broken.
# Settings (environment): PYTHON, the interpreter to make the environment with (3.11).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
venv=.venv-fuzz

stamp="$venv/.lists-$(cksum < requirements/fuzz.txt | cut -d' ' -f1)"
if [ ! -f "$stamp" ]; then
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  echo "talkwire: installing what fuzzes into $venv"
  "$venv/bin/python" -m pip --disable-pip-version-check -qq install --no-deps --require-hashes \
    -r requirements/fuzz.txt
  rm -f "$venv"/.lists-*
  touch "$stamp"
fi

parsers() {
  local minutes=$1; shift
  local targets=("$@") site failed=0
  site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  export PYTHONPATH="$PWD:$site"   # the service's own packages, after this environment's
  [ "${#targets[@]}" -gt 0 ] || mapfile -t targets < <("$venv/bin/python" -m tests.fuzz.targets)
  mkdir -p .fuzz/broken
  for target in "${targets[@]}"; do
    echo "talkwire: fuzzing $target"
    "$venv/bin/python" -m tests.fuzz.run "$target" ".fuzz/corpus/$target" -timeout=20 -rss_limit_mb=2500 \
      -max_len=2000 -max_total_time=$((60 * minutes / ${#targets[@]} + 1)) -verbosity=0 -print_final_stats=1 \
      -artifact_prefix=".fuzz/broken/$target-" > ".fuzz/$target.log" 2>&1 || {
        failed=1
        echo "talkwire: $target broke; see .fuzz/$target.log and .fuzz/broken" >&2
      }
    grep -E 'number_of_executed_units' ".fuzz/$target.log" || true
  done
  return $failed
}

api() {
  local address
  out=$(mktemp)
  .venv/bin/python -m tests.fuzz.serve > "$out" & server=$!
  trap 'kill $server; rm -f "$out"' EXIT
  until [ -s "$out" ]; do
    kill -0 "$server" 2> /dev/null || { echo "talkwire: the service did not start" >&2; return 1; }
    sleep 0.5
  done
  address=$(cat "$out")
  "$venv/bin/st" run "$address/openapi.json" --no-color --seed 1 --max-examples 25 \
    --suppress-health-check all --exclude-path /admin/drain \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance "$@"
}

"$@"
