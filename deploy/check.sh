#!/usr/bin/env bash
# Render every overlay, hold it against the API server's schemas, and let checkov look at manifests and Dockerfiles;
# make a bill of materials as an image does, and hold it against CycloneDX's schema. Where haproxy and Docker's Compose
# are installed, they read their own files (so do tests/deploy, without Docker).
# Settings (environment): PYTHON, BIN (where the service's environment has its programs).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
bin=${BIN:-.venv/bin}
venv=.venv-deploy

stamp="$venv/.lists-$(cksum < requirements/deploy.txt | cut -d' ' -f1)"
if [ ! -f "$stamp" ]; then
  echo "talkwire: installing what checks manifests into $venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check -qq install --no-deps --require-hashes \
    -r requirements/deploy.txt
  touch "$stamp"
fi

# The oldest version that knows preStop.sleep by default, and a late one.
versions=(1.30 1.37)
# Why checkov is not asked these:
skip=CKV_K8S_11       # CPU limits: throttling shows as gaps in speech
skip+=,CKV_K8S_43     # images by digest, and with it
skip+=,CKV_K8S_15     # always pulled: the operator's overlay names the registry and the digest

rendered=$(mktemp -d)
materials=$(mktemp)
trap 'rm -rf "$rendered" "$materials"' EXIT
for overlay in deploy/k8s/overlays/*; do
  file="$rendered/$(basename "$overlay").yaml"
  "$bin/python" -m tests.deploy.render "$overlay" > "$file"
  for version in "${versions[@]}"; do
    "$venv/bin/kubernetes-validate" --strict --quiet -k "$version" "$file"
  done
done
"$bin/python" requirements/sbom.py > "$materials"
"$venv/bin/python" deploy/check_sbom.py "$materials"
checkov() { "$venv/bin/checkov" --quiet --compact --skip-download "$@"; }
checkov --framework kubernetes --skip-check "$skip" --directory "$rendered"
checkov --framework dockerfile --directory deploy/docker
if haproxy=$(PATH="$PATH:/usr/sbin" command -v haproxy); then
  # The test's user may not be root, and need not be the package's.
  sed -E '/^ *(user|group) haproxy$/d' deploy/haproxy/haproxy.cfg > "$rendered/haproxy.cfg"
  "$haproxy" -c -f "$rendered/haproxy.cfg"
else
  echo "talkwire: no haproxy (requirements/system.sh), so its configuration was not read"
fi
if docker compose version >/dev/null 2>&1; then
  for file in deploy/docker/compose.yaml deploy/docker/compose.gpus.yaml; do
    docker compose -f "$file" config --quiet
  done
else
  echo "talkwire: no Docker Compose, so its files were not read by it"
fi
