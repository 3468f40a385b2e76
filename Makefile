# Two commands do everything, from nothing but Python 3.11 or newer, make and a C compiler:
#
#   make book    execute every notebook and render the book to _build/html
#   make test    lint, unit tests, doctests, notebook regression tests, book checks
#
# Neither changes a tracked file.  `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
NOTEBOOKS := $(wildcard notebooks/*.md)
EXECUTED := $(NOTEBOOKS:%.md=_build/executed/%.ipynb)
BASELINE := $(NOTEBOOKS:.md=.ipynb)
SOURCES := $(shell find cfcore data -type f -not -name '*.pyc')
PAGES := $(shell find book -type f) _config.yml _toc.yml

.PHONY: help setup lint unit nbval book-check test book baseline reproduce bench serve clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 13

setup: .venv/stamp ## Make .venv and install the lock

.venv/stamp: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Python 3.11 or newer is needed, not {sys.version}"'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

lint: setup ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

unit: setup ## Run unit tests and doctests
	$(PYTEST) --ignore=tests/test_book.py

nbval: setup ## Rerun the committed notebooks and compare their outputs
	$(PYTEST) --nbval notebooks --override-ini=addopts= -W default

book-check: book ## Check the rendered book
	CFCORE_BOOK=_build/html $(PYTEST) tests/test_book.py

test: lint unit nbval book-check ## Everything that continuous integration runs

_build/executed/notebooks/%.ipynb: notebooks/%.md $(SOURCES) .venv/stamp
	$(BIN)/cfcore run $< $@ --provenance $(@:.ipynb=.provenance.json)

_build/html/index.html: $(EXECUTED) $(PAGES) .venv/stamp
	cp -r _config.yml _toc.yml book _build/executed/
	$(BIN)/cfcore provenance _build/executed/notebooks >> _build/executed/book/provenance.md
	$(BIN)/jupyter-book build _build/executed --path-output . -W -n --keep-going
	touch $@

book: _build/html/index.html ## Execute every notebook and render the book

baseline: setup ## Re-execute the committed notebooks (the nbval baseline)
	for name in $(NOTEBOOKS:notebooks/%.md=%); do $(BIN)/cfcore run notebooks/$$name.md notebooks/$$name.ipynb; done

PRESET ?= book
CORES ?= 2

reproduce: setup ## Train and marginalise everything from nothing, into runs/ (PRESET=book CORES=2)
	PATH="$$PWD/$(BIN):$$PATH" $(BIN)/snakemake --cores $(CORES) --rerun-incomplete --config preset=$(PRESET)

bench: setup ## Print the performance ratios
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file; done

serve: book ## Serve the book on http://localhost:8000
	$(BIN)/python -m http.server --directory _build/html 8000

clean: ## Remove what was built (not .venv)
	rm -rf _build
