BIN := .venv/bin
PYTEST := $(BIN)/pytest -n auto --dist worksteal
# Keep bytecode, whatever the environment says: else each of the many processes compiles it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup browser train check bench test quick fast slow gpu lint types mutation faults wheel docs figures explorer clean

help:  ## List the targets.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup:  ## Create .venv and install everything, if that is not done yet.
	@sh scripts/setup.sh

browser:  ## Install chromium for the tests of the report, if it is missing and apt-get can install it.
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium for the tests of the report"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >/dev/null 2>&1 \
	  || echo "make browser: apt-get could not install chromium; the tests that need it are skipped"; \
	else echo "make browser: no chromium, and no apt-get as root to install it; the tests that need it are skipped"; fi

train: setup  ## Train two networks with C-EP on MNIST, in half a minute.
	$(BIN)/eqprop train c-ep-1h --epochs 10 --seeds 2

check: setup  ## Compare the learning rules of the paper's four networks with BPTT.
	$(BIN)/python examples/paper_networks.py

bench: setup  ## Check that the engines agree, then measure their speed (results/engines-cpu.json).
	$(BIN)/pytest tests/test_engines.py
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/scaling.py

test: quick slow mutation  ## Run all checks: quick, then slow, then mutation.

quick: lint  ## Run lint, types and the fast tests, in about a minute and a half.
	@$(MAKE) --no-print-directory -j 2 types fast

fast: setup  ## Run the fast tests alone.
	$(PYTEST) -m "not slow"

slow: setup browser  ## Run the slow tests, two processes per core: half of the time they wait.
	$(PYTEST) -n $$((2 * $$(getconf _NPROCESSORS_ONLN))) -m slow

gpu: setup  ## Run the tests that use a GPU.
	$(BIN)/pytest -m gpu

lint: setup  ## Check style, formatting and import contracts.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup  ## Check types.
	$(BIN)/mypy

mutation: setup  ## Plant defects in the sources and check that the tests catch each one.
	$(BIN)/python tests/mutations.py

faults: setup  ## Kill runs, damage files and give bad inputs, seeded (results/faults.json).
	$(BIN)/python -m tests.faults

wheel: setup  ## Build the wheel and the source distribution into dist/.
	$(BIN)/python -m build --no-isolation

docs: setup  ## Build the documentation into site/; open site/index.html.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

figures: setup  ## Draw the figures of the documentation.
	$(BIN)/python examples/figures.py

explorer:  ## Build the page of the explorer from explorer/src; needs Node.
	cd explorer && npm ci --no-fund --no-audit && npm run -s build

clean:  ## Delete .venv, build outputs and caches.
	find src tests benchmarks examples -name __pycache__ -exec rm -rf {} +
	rm -rf explorer/node_modules .venv build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
