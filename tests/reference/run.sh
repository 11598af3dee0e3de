#!/usr/bin/env bash
# Compare the codecs with other people's implementations, which are installed in .venv-reference for nothing else.
# Arguments are pytest's: tests/reference/run.sh -k decode
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=.venv-reference

stamp="$folder/.lists-$(cksum < requirements/reference.txt | cut -d' ' -f1)"
if [ ! -f "$stamp" ]; then
  echo "talkwire: installing $(grep -c '==' requirements/reference.txt) packages from requirements/reference.txt"
  rm -rf "$folder"
  .venv/bin/python -m pip --disable-pip-version-check -qq install --no-deps --require-hashes \
    --target "$folder" -r requirements/reference.txt
  touch "$stamp"
fi
exec .venv/bin/python -m pytest -p no:cacheprovider tests/reference "$@"
