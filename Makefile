# make plan   set up and plan the chapter's closing example
# make test   set up and run every test
# make measure-here   measure llama.cpp on this machine, calibrate, predict, plan, and measure what was planned (fetches its packages)
# make check  what CI runs: tests, lint, types, architecture, dependencies
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: plan test check serve measure-here lock clean

plan: $(STAMP)
	$(BIN)/goodput plan scenarios/chapter8.yaml

test: $(STAMP)
	$(BIN)/python -m pytest -n auto

check: $(STAMP)
	bash .ci/run

serve: $(STAMP)
	$(BIN)/goodput serve

measure-here: $(STAMP)
	$(BIN)/python bench/measure_here.py

$(STAMP): requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q api db models planner solvers
	touch $(STAMP)

# Resolves pyproject.toml to exact, hashed versions for every platform; needs the package uv.
lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --extra dev --extra postgres \
		--output-file requirements.txt pyproject.toml requirements-build.in

clean:
	rm -rf $(VENV)
