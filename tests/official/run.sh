#!/usr/bin/env bash
# Try the official clients and agent frameworks against the real service, in an environment of their own
# (.venv-clients); the service is .venv's. Arguments are pytest's: tests/official/run.sh -k openai
# Settings (environment): PYTHON, the interpreter to make the environment with (3.11 or 3.12).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
venv=.venv-clients

stamp="$venv/.lists-$(cksum < requirements/clients.txt | cut -d' ' -f1)"
if [ ! -f "$stamp" ]; then
  if ! [ -x "$venv/bin/python" ]; then
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || {
      echo "talkwire: Pipecat's environment takes Python 3.11 or 3.12: make test-clients PYTHON=python3.12" >&2
      exit 1
    }
    "$python" -m venv "$venv"
  fi
  echo "talkwire: installing $(grep -c '==' requirements/clients.txt) packages from requirements/clients.txt"
  "$venv/bin/python" -m pip --disable-pip-version-check -qq install --no-deps --require-hashes \
    -r requirements/clients.txt
  rm -f "$venv"/.lists-*
  touch "$stamp"
fi
# Installed from the tree; the sources are read where they are.
for client in python pipecat livekit; do
  stamp="$venv/.client-$client-$(cksum < clients/$client/pyproject.toml | cut -d' ' -f1)"
  if [ ! -f "$stamp" ]; then
    "$venv/bin/python" -m pip --disable-pip-version-check -qq install --no-deps --no-build-isolation -e "clients/$client"
    rm -f "$venv/.client-$client-"*
    touch "$stamp"
  fi
done
# The vendors' JavaScript SDKs, where there is Node.js.
if command -v npm > /dev/null; then
  js=tests/official/js
  stamp="$js/node_modules/.lock-$(cksum < $js/package-lock.json | cut -d' ' -f1)"
  if [ ! -f "$stamp" ]; then
    npm ci --prefix "$js" --ignore-scripts --no-audit --no-fund --silent
    touch "$stamp"
  fi
fi
what=(tests/official)
# Two files at a time, since clients mostly wait. Only one process can write the table.
at_once=2
for word in "$@"; do
  if [ -e "${word%%::*}" ]; then what=(); fi
  if [ "$word" = --write-table ]; then at_once=0; fi
done
exec "$venv/bin/python" -m pytest -c tests/official/pytest.ini -n "$at_once" --dist loadfile "${what[@]}" "$@"
