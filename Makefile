# Everything a contributor types. `make` sets up; `make help` lists the rest.

VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
# A worker a processor: each collects all tests, for half a minute. Tests that start real processes wait for them now and then: one worker more.
CORES   := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# The first Python 3.11 or newer on the path. Override with `make PYTHON=/path/to/python`.
FIND_PYTHON = for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; break; }; done
PYTHON ?= $(shell $(FIND_PYTHON))

# Where pip finds a CPU build of PyTorch besides its own index: `make TORCH_INDEX=https://download.pytorch.org/whl/cpu`
INDEX   := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
TORCH   := $(shell sed -n 's/^torch==//p' constraints.txt)
PIP     := $(BIN)/python -m pip --disable-pip-version-check --no-input
INSTALL := install -qq $(INDEX) --constraint constraints.txt --group dev --group docs --editable '.[all,lightgbm,ray]' --editable ./papers

.DEFAULT_GOAL := setup
.PHONY: setup help demo test test-network thorough faults check format docs bench clean

setup: $(READY) ## create .venv and install everything (once; later runs need no network)
	@echo "Ready. Next: make demo. All targets: make help."

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## train on digits over 100 clients and write a report
	@$(BIN)/atoll demo $(ARGS)

test: $(READY) ## run the tests that start no process, in parallel (WORKERS=n, ARGS="tests/core -k name")
	@$(BIN)/python -m compileall -q src papers/src # also where bytecode is forbidden
	@$(BIN)/pytest -q -n $(or $(WORKERS),$(CORES)) --dist worksteal --durations=25 -m "not network and not slow" $(ARGS)

test-network: $(READY) ## run the tests that start processes: sites, servers, engines with workers, scripts (WORKERS=n, ARGS=...)
	@$(BIN)/python -m compileall -q src papers/src # tests start hundreds of processes
	@$(BIN)/pytest -q -n $(or $(WORKERS),$(shell expr $(CORES) + 1)) --dist worksteal --durations=25 -m "network and not slow" $(ARGS)

thorough: $(READY) ## all tests, with the slow ones that have a quick sibling and ten times as many examples of each law
	@$(BIN)/python -m compileall -q src papers/src
	@$(BIN)/pytest -q -n $(or $(WORKERS),$(shell expr $(CORES) + 1)) --dist worksteal -m "" --hypothesis-profile=thorough $(ARGS)

faults: $(READY) ## cut networks, fill disks, turn clocks: the tests of failures that take minutes
	@ATOLL_FAULTS=1 $(BIN)/pytest -q tests/runtime/failures tests/runtime/line/test_mutations.py

check: $(READY) ## lint, format check and strict types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(READY) ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(READY) ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "The documentation is in site/index.html."

bench: $(READY) ## compare speed with other frameworks (installs them in environments of their own)
	@$(BIN)/python benchmarks/run.py $(ARGS)
	@$(BIN)/python benchmarks/plot.py "$$(ls -t benchmarks/results/*.json | head -n 1)"
	@$(BIN)/python benchmarks/scale.py
	@$(BIN)/python benchmarks/heavy.py --compile always --rounds 8
	@$(BIN)/python benchmarks/real.py

clean: ## remove everything that was built, the environment too
	rm -rf $(VENV) site dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src papers tests docs examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml papers/pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Atoll needs Python 3.11 or newer. Install it, or run: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/pip || { echo "Creating $(VENV) with $(PYTHON)" >&2; $(PYTHON) -m venv $(VENV); }
	@$(PIP) install -qq --upgrade 'pip>=25.1'
	@test "$$(uname)" != Linux || $(PIP) index versions torch $(INDEX) 2>/dev/null | grep -q '$(TORCH)+cpu' || \
	  echo "pip sees no CPU build of PyTorch, so it will fetch gigabytes of CUDA libraries too. Without a GPU, press Ctrl-C and run: make TORCH_INDEX=https://download.pytorch.org/whl/cpu" >&2
	@echo "Installing Atoll with all extras; the first time takes a few minutes" >&2
	@$(PIP) $(INSTALL)
	@touch $@
