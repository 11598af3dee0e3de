#!/usr/bin/env bash
# Try the page in a headless Chromium against the real service. Chromium is a system package, which
# no list of ours installs: CHROMIUM names one, else the usual names are tried. SCREENSHOTS: a folder
# to leave pictures of the page in.
set -euo pipefail
cd "$(dirname "$0")/../.."
browser=${CHROMIUM:-}
for name in chromium chromium-browser google-chrome; do
  [ -n "$browser" ] || browser=$(command -v "$name" || true)
done
if [ -z "$browser" ] || ! command -v "$browser" >/dev/null; then
  echo "talkwire: no Chromium here; install it (on Debian: apt-get install chromium) or name one:" >&2
  echo "          make test-page CHROMIUM=/path/to/chrome" >&2
  exit 1
fi
CHROMIUM=$browser exec .venv/bin/python -m pytest -p no:cacheprovider tests/page/check_page.py "$@"
