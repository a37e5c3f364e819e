# Everything a person or CI types. One virtual environment in the checkout: .venv
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check peers crash bench clean docs

help:  ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

.venv/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sojourn needs Python 3.11 or newer; set PYTHON=")'
	@echo 'Installing into .venv ...'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

demo: .venv/ready  ## The main job, offline: kill the daemon in the middle, lose nothing
	@$(BIN)/sojourn demo

test: .venv/ready  ## All tests
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

check: .venv/ready  ## What CI runs: format, lint, types, import contracts, docs, tests with coverage
	@PATH="$(CURDIR)/$(BIN):$$PATH" ./scripts/check

peers: .venv/ready  ## Servers of other people's making for the tests of models, as far as they can be installed
	@./scripts/peers

crash: .venv/ready  ## The long crash and load suites
	@$(BIN)/python -m pytest -m crash

bench: .venv/ready  ## Benchmarks: one JSON line each, as a ratio to a baseline of the same run
	@code=0; for b in benchmarks/bench_*.py; do $(BIN)/python $$b || code=1; done; exit $$code

docs: .venv/ready  ## Write the generated pages anew
	@$(BIN)/python scripts/generate_docs.py

clean:  ## Remove what the targets made
	rm -rf .venv .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis htmlcov dist build
