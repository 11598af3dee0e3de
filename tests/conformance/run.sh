#!/usr/bin/env bash
# Autobahn's testsuite against the service's WebSocket stack, in an environment of its own (.venv-autobahn, from
# requirements/autobahn.txt). What it finds is told by tests/conformance/autobahn.py; its own pages are in
# .fuzz/autobahn/index.html.
# Settings (environment): PYTHON; PYTHON2, since the suite has not been carried over to Python 3.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
python2=${PYTHON2:-python2.7}
venv=.venv-autobahn
list=requirements/autobahn.txt

if ! "$python2" -c 'import ssl, sys; sys.exit(sys.version_info[:2] != (2, 7))' 2> /dev/null; then
  echo "talkwire: Autobahn's testsuite runs under Python 2.7 only, with ssl; name one:" >&2
  echo "          make test-autobahn PYTHON2=/path/to/python2.7" >&2
  exit 1
fi
stamp="$venv/.lists-$(cksum < "$list" | cut -d' ' -f1)"
if [ ! -f "$stamp" ]; then
  echo "talkwire: installing Autobahn's testsuite into $venv"
  rm -rf "$venv" && mkdir "$venv"
  # pip's last that knows Python 2.7 runs from its archive; it and what builds packages come first, as Python 2.7
  # may have neither.
  awk '/^[a-z]/ { on = /^(pip|setuptools|wheel)==/ } on' "$list" > "$venv/tools.txt"
  "$python" -m pip --disable-pip-version-check -qq download --no-deps --only-binary :all: --python-version 2.7 \
    --require-hashes -d "$venv" -r "$venv/tools.txt"
  for list in "$venv/tools.txt" "$list"; do
    PYTHONPATH="$PWD/$venv" "$python2" "$(echo "$venv"/pip-*.whl)/pip" --disable-pip-version-check -qq install \
      --upgrade --no-deps --require-hashes --target "$venv" -r "$list"
  done
  touch "$venv/zope/__init__.py"   # a namespace of .pth files, which are not read here
  touch "$stamp"
fi
exec .venv/bin/python -m tests.conformance.autobahn --python2 "$python2" --suite "$venv" --out .fuzz/autobahn "$@"
