# make            what there is to do
# make run        the service, from nothing but this tree and a Python
SHELL := /bin/bash
PYTHON ?= python3
HARDWARE ?= auto
# The browser of "make test-page"; empty: the first of the usual names
CHROMIUM ?=
# The interpreter of "make test-autobahn"; empty: python2.7
PYTHON2 ?=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# What the service or pytest is to be given: make run ARGS="--port 9000", make test ARGS="tests/streaming -x"
ARGS ?=
# Not empty: "make lock" chooses all versions anew
UPGRADE ?=
# How long "make soak" takes
MINUTES ?= 60

VENV := .venv
BIN := $(VENV)/bin
INSTALL := PYTHON="$(PYTHON)" VENV="$(VENV)" HARDWARE="$(HARDWARE)" TORCH_INDEX="$(TORCH_INDEX)" requirements/install.sh

.DEFAULT_GOAL := help
.PHONY: help install run run-fake test test-quick test-long test-nightly soak fuzz test-fuzz test-autobahn test-clients test-reference test-page test-fresh test-training check check-deploy check-monitoring format gpu-check test-v2 test-gpu voice-eval judges side-by-side lock clean distclean

help: ## show this
	@echo 'Talkwire. Two commands do most of it: "make run" speaks, "make test" tests.'
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 25
	@echo 'Variables: PYTHON=$(PYTHON) HARDWARE=$(HARDWARE) (cpu, cuda, cuda-next, auto) TORCH_INDEX=... ARGS=...'

install: ## make the environment, without starting anything
	@$(INSTALL) service

run: install ## start the service on 127.0.0.1:8000 with the embedded voice
	@exec $(BIN)/talkwire serve $(ARGS)

run-fake: ## the gateway with fake engines, to work on it: noise instead of speech, ready at once
	@$(INSTALL) dev
	@exec $(BIN)/python -m loadtest.fake_server --port 8000 $(ARGS)

# Tests start many processes, and each would compile the project anew if this were set.
test test-quick test-long test-training: export PYTHONDONTWRITEBYTECODE :=

# Four files at a time, since tests also wait; make test ARGS="-n 0 --pdb" for one by one
test: ## run the tests
	@$(INSTALL) dev
	@$(BIN)/python -m pytest -p no:cacheprovider -n 4 --dist loadfile -m "not long and not nightly" $(ARGS)

# Files that need neither torch nor vLLM, which cannot even be imported then, without their longest tests
QUICK := tests/text tests/streaming tests/service/contexts tests/service/dialects/contract \
  $(patsubst %,tests/codec/test_%.py,batching cost fake layer_ranges memory messages pending warmup workers)

test-quick: ## tests without torch and vLLM, in about a minute: text, sessions, the gateway with fake engines
	@$(INSTALL) dev
	@$(BIN)/python -m pytest -p no:cacheprovider -p tests.without_engines -n 4 --dist worksteal -m "not long and not nightly and not slow" \
	  -k "not linear_time and not schedule_promise" $(QUICK) $(ARGS)

test-long: ## the tests that "make test" leaves out to stay short
	@$(INSTALL) dev
	@$(BIN)/python -m pytest -p no:cacheprovider -n 2 --dist loadfile -m long $(ARGS)

test-nightly: ## the faults at length: a million frames, a thousand killed clients, bad networks; the codec without AVX-512
	@$(INSTALL) dev
	@$(BIN)/python -m pytest -p no:cacheprovider -m nightly --timeout 3600 $(ARGS)
	@ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest -p no:cacheprovider tests/codec

soak: ## does the service grow while it works? make soak MINUTES=60
	@$(INSTALL) dev
	@$(BIN)/python -m loadtest.soak --minutes $(MINUTES) $(ARGS)

fuzz: ## the parsers, fuzzed by coverage: make fuzz MINUTES=60 (an environment of its own)
	@$(INSTALL) dev
	@PYTHON="$(PYTHON)" tests/fuzz/run.sh parsers $(MINUTES) $(ARGS)

test-fuzz: ## the routes against the OpenAPI document, by schemathesis (in the same environment)
	@$(INSTALL) dev
	@PYTHON="$(PYTHON)" tests/fuzz/run.sh api $(ARGS)

test-autobahn: ## Autobahn's testsuite against the WebSocket stack (an environment of its own; Python 2.7)
	@$(INSTALL) dev
	@PYTHON="$(PYTHON)" PYTHON2="$(PYTHON2)" tests/conformance/run.sh $(ARGS)

test-clients: ## the official clients and agent frameworks against the real service (an environment of their own)
	@$(INSTALL) service
	@PYTHON="$(PYTHON)" tests/official/run.sh $(ARGS)

test-reference: ## the codecs of Fish and Qwen3-TTS, and its prompts and speakers, against other code (in a folder of its own)
	@$(INSTALL) dev
	@tests/reference/run.sh $(ARGS)

test-training: ## the training and the evaluation of the embedded voice
	@$(INSTALL) dev
	@$(BIN)/python -m pytest -p no:cacheprovider -n 4 --dist loadfile training/tests $(ARGS)

test-page: ## the page in a headless Chromium (a system package), against the real service
	@$(INSTALL) dev
	@CHROMIUM="$(CHROMIUM)" tests/page/run.sh $(ARGS)

test-fresh: ## from a bare Debian and Ubuntu (debootstrap; as root) to the first sentence: make test-fresh ARGS="noble"
	@PYTHON="$(PYTHON)" tests/fresh/run.sh $(ARGS)

check: ## lint, formatting, types, import layers, the code's budget
	@$(INSTALL) dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy examples --exclude 'pipecat_bot|livekit_agent'
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.budget
	@for client in python pipecat livekit; do \
	  (cd clients/$$client/src && "$(CURDIR)/$(BIN)/lint-imports" --no-cache --config ../pyproject.toml) || exit 1; done

check-monitoring: ## dashboard, rules and alerts (promtool: Debian's package prometheus)
	@$(INSTALL) dev
	@$(BIN)/python deploy/monitoring/check.py

check-deploy: ## manifests and Dockerfiles, by the API's schemas and checkov (an environment of its own)
	@$(INSTALL) service
	@PYTHON="$(PYTHON)" BIN="$(BIN)" deploy/check.sh

format: ## let ruff fix and format
	@$(INSTALL) dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

gpu-check: ## the first run on a GPU, in stages: what works, how fast, and what is broken
	@$(INSTALL) service
	@$(BIN)/python -m benchmarks.gpu_check $(ARGS)

test-v2: ## the GPU adapter on a CPU, in an interpreter (slow; an environment of its own)
	@$(INSTALL) dev
	@PYTHON="$(PYTHON)" tests/talker/v2_env/run.sh $(ARGS)

test-gpu: ## the talkers against their oracles, code by code, on a GPU
	@$(INSTALL) dev
	@TALKWIRE_TEST_RUNNER=v2 VLLM_USE_V2_MODEL_RUNNER=1 TRITON_F32_DEFAULT=ieee $(BIN)/python -m pytest -p no:cacheprovider \
	  tests/talker/test_conformance.py tests/talker/test_spoken.py tests/talker/test_higgs_v2.py tests/talker/test_fish_s2.py $(ARGS)

voice-eval: ## how good the embedded voice is, by a recogniser
	@$(INSTALL) dev
	@$(BIN)/python -m training.evaluate $(ARGS)

judges: .venv-judges/installed ## the same, on texts that no weights were tuned to, also by judges that took no part in its training
	@$(INSTALL) dev
	@$(BIN)/python -m training.evaluate --sentences training/evaluation/untuned.txt --judges-python .venv-judges/bin/python $(ARGS)

.venv-judges/installed: training/pyproject.toml
	@"$(PYTHON)" -m venv .venv-judges
	@.venv-judges/bin/python -m pip install -qq "pip>=25.1"
	@.venv-judges/bin/python -m pip install -qq --group training/pyproject.toml:judges
	@touch $@

side-by-side: .venv-judges/installed .venv-peers/installed ## first sound, gaps, cost and quality beside Piper and Kokoro-82M, on this machine (npm is needed)
	@$(INSTALL) dev
	@$(BIN)/python -m training.evaluation.side_by_side --judges-python .venv-judges/bin/python $(ARGS)

.venv-peers/installed: training/pyproject.toml
	@"$(PYTHON)" -m venv .venv-peers
	@.venv-peers/bin/python -m pip install -qq "pip>=25.1"
	@.venv-peers/bin/python -m pip install -qq --group training/pyproject.toml:peers
	@cd .venv-peers && npm pack --silent kokoro-js@1.2.1 >/dev/null && tar xzf kokoro-js-1.2.1.tgz package/voices
	@touch $@

lock: ## add what is new to requirements/*.txt, by uv; UPGRADE=1 chooses all versions anew
	@test -x .venv-lock/bin/uv || { "$(PYTHON)" -m venv .venv-lock && .venv-lock/bin/python -m pip install -qq uv; }
	@UV=.venv-lock/bin/uv UPGRADE="$(UPGRADE)" requirements/lock.sh cpu otel dev cuda cuda-next torch-plain ray opus deploy clients fuzz

clean: ## remove caches and build leftovers
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	@find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## that, and the environments
	@rm -rf .venv .venv-judges .venv-peers .venv-lock .venv-v2 .venv-deploy .venv-clients .venv-fuzz .venv-autobahn .venv-reference .fuzz .gpu-check
