PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.docs_installed

TRAIN ?= +algo=ppo env=f110
LEARN ?=
SMOLLM ?=
WORKERS ?= 2
MARKS ?= not thorough
TESTS ?=
EXECUTE ?= off

.PHONY: help install lint train test docs learn smollm

help:
	@echo "make install                                 create .venv with everything that tests need"
	@echo "make train [TRAIN='+algo=ppo env=f110']      train, with any Hydra overrides"
	@echo "make lint                                    Ruff, formatting, types"
	@echo "make test  [WORKERS=2] [MARKS=] [TESTS=tests/physics]   run the tests, with MARKS= the thorough ones too"
	@echo "make docs  [EXECUTE=force]                   the site, into docs/_build/html; EXECUTE runs its notebooks"
	@echo "make learn [LEARN='f110 --write docs/results.md']   train known tasks over seeds and check their bounds"
	@echo "make smollm                                  compare SmolLM2-135M, from a package, with its known numbers"

$(INSTALLED): pyproject.toml
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

install: $(INSTALLED)

lint: install
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m basedpyright --pythonpath $(RUN)
	$(RUN) -m basedpyright --pythonpath $(RUN) --project overrides.pyrightconfig.json

train: install
	$(RUN) -m jaxmarl_echelon.train $(TRAIN)

# Modules are compiled once, and their assertions rewritten once, even where the environment forbids bytecode.
test: install
	PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -n $(WORKERS) --dist worksteal --durations=10 $(if $(MARKS),-m "$(MARKS)") $(TESTS)

$(DOCS_INSTALLED): $(INSTALLED)
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

docs: $(DOCS_INSTALLED)
	JAXMARL_DOCS_EXECUTE=$(EXECUTE) $(RUN) docs/site/build.py

learn: install
	$(RUN) benchmarks/learn.py $(LEARN)

smollm: install
	$(RUN) benchmarks/smollm.py $(SMOLLM)
