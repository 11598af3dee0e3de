#!/usr/bin/env bash
# Test Model Runner V2's adapter, which is the GPU's path, on a CPU: its Triton kernels run in Triton's interpreter.
#
#     tests/talker/v2_env/run.sh [pytest arguments]
#
# The environment, .venv-v2, is the project's own (.venv) with Triton and a stand-in "cpu" backend beside it. They
# stay out of .venv, because vLLM uses Triton wherever it finds it.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=tests/talker/v2_env venv=.venv-v2
stamp="$venv/.made-$(cat $here/requirements.txt $here/run.sh | cksum | cut -d' ' -f1)"

make_env() {
  .venv/bin/python -m venv --clear --without-pip "$venv"
  local site base
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  base=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  .venv/bin/python -m pip --disable-pip-version-check --python "$venv/bin/python" install -qq --no-deps \
    --require-hashes -r "$here/requirements.txt"
  printf 'import site; site.addsitedir(%s)\n' "'$base'" > "$site/project.pth"
  printf '%s\n' "$PWD/$here/backend" > "$site/triton_cpu_interp.pth"
  touch "$stamp"
}

[ -f "$stamp" ] || make_env
export TALKWIRE_TEST_RUNNER=v2 VLLM_USE_V2_MODEL_RUNNER=1 TRITON_INTERPRET=1
exec "$venv/bin/python" -m pytest -p no:cacheprovider -n 2 --dist loadfile tests/talker/test_step_kernels.py \
  tests/codec/test_snake_kernel.py tests/talker/test_fast_ar_kernels.py \
  tests/talker/test_conformance.py tests/talker/test_spoken.py tests/talker/test_higgs_v2.py \
  tests/talker/test_fish_s2.py tests/talker/test_qwen3_tts.py tests/talker/test_qwen3_tts_cloning.py \
  tests/talker/test_words.py "$@"
