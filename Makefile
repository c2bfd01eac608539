PYTHON ?= python3
TORCH ?= $(if $(filter Darwin,$(shell uname)),2.13.0,2.13.0+cpu)
TORCH_INDEX ?=
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: help setup browser train check bench test lint types unit mutation picture clean

help:  ## what each target does
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: .venv/.done  ## make .venv and install everything (does nothing when that is done)

.venv/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@echo "installing PyTorch $(TORCH)"
	@$(BIN)/pip install -q "torch==$(TORCH)" numpy -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) || { \
	  echo "make setup: pip found no CPU build of PyTorch $(TORCH). Name an index that has it (PyTorch's install page does): make setup TORCH_INDEX=...; or take the default build, gigabytes on Linux: make setup TORCH=2.13.0"; exit 1; }
	$(BIN)/pip install -q -e ".[dev]" -c constraints.txt
	@touch .venv/.done

browser:  ## a chromium for the tests of the report, if there is none and apt-get can install it
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium for the tests of the report"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >/dev/null 2>&1 \
	  || echo "make browser: apt-get could not install chromium; the tests that need it are skipped"; \
	else echo "make browser: no chromium, and no apt-get as root to install it; the tests that need it are skipped"; fi

train: setup  ## the main job: train C-EP on MNIST, two networks, half a minute
	$(BIN)/eqprop train c-ep-1h --epochs 10 --seeds 2

check: setup  ## hold the paper's four networks against BPTT
	$(BIN)/python examples/paper_networks.py

bench: setup  ## parity first, then the engines against each other; results/engines-cpu.json
	$(BIN)/pytest tests/test_engines.py
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/scaling.py

test: lint types unit mutation  ## lint, types, tests, and the defects that tests must catch

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

unit: setup browser
	$(BIN)/pytest

mutation: setup
	$(BIN)/python tests/mutations.py

picture: setup  ## draw the picture of the README
	$(BIN)/python examples/picture.py

clean:  ## remove what was installed and cached
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
