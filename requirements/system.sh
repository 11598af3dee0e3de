#!/usr/bin/env bash
# Install the system packages that the service needs, and those without which some tests are skipped (Debian, Ubuntu;
# as root):
#
#     requirements/system.sh
set -euo pipefail

packages=(
  libnuma1      # vLLM's CPU kernels (install.sh can do without root what this does)
  libopus0      # opuslib: Opus packets by the system's library
  prometheus    # promtool: make check-monitoring
  chromium      # make test-page
  nginx-light   # the documented proxy, in front of the service
  haproxy       # the balancer of several services on one machine
)
missing=()
for package in "${packages[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
echo "talkwire: installing ${missing[*]}"
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends "${missing[@]}" >/dev/null
