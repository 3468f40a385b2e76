# Two commands do everything, from nothing but Python 3.11 or newer and make:
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
NOTEBOOKS := $(sort $(wildcard notebooks/*.md))
LABS := $(sort $(wildcard book/lab_*.md))
EXECUTED := $(NOTEBOOKS:%.md=_build/executed/%.ipynb)
SOURCES = $$(find cfcore cfscm cfchest cfbook data -type f -not -name '*.pyc' | LC_ALL=C sort) requirements.lock
PAGES := $(shell find book -type f -not -name '*.pyc') _config.yml _toc.yml

# Notebooks run side by side, each in one thread: two processes beat two threads.
CORES ?= 2
SIDE_BY_SIDE = OMP_NUM_THREADS=1 $(MAKE) --no-print-directory --jobs=$(CORES) $(if $(filter output-sync,$(.FEATURES)),--output-sync)
NBVAL := $(NOTEBOOKS:notebooks/%.md=nbval-%)
UNIT := unit-study unit-packages
RENDERED := book browser interactive
BOOK_CHECK := $(RENDERED:%=book-check-%)
REFRESHED := $(NOTEBOOKS:notebooks/%.md=baseline-%)

.PHONY: help setup hooks lint unit $(UNIT) nbval $(NBVAL) book-check $(BOOK_CHECK) test book executed baseline $(REFRESHED) student lab slides reproduce verify-artefacts real bench wheel-check serve clean FORCE

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 13

setup: .venv/stamp ## Make .venv and install the lock

hooks: setup ## Let git refuse commits that hold anything of a real patient
	git config core.hooksPath .githooks

.venv/stamp: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Python 3.11 or newer is needed, not {sys.version}"'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -c 'import matplotlib.font_manager' # its slow first time is not for a notebook to report
	touch $@

lint: setup ## Check style, and that nothing of a real patient is tracked
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	test ! -e .git || $(BIN)/cfcore guard

unit: setup ## Run unit tests and doctests
	@$(SIDE_BY_SIDE) --keep-going $(UNIT)

unit-study: # of the study and the pages
	$(PYTEST) tests/cfbook tests/book cfbook $(RENDERED:%=--ignore=tests/book/test_%.py)

unit-packages: # of everything else
	$(PYTEST) tests cfcore cfscm cfchest --ignore=tests/cfbook --ignore=tests/book

nbval: setup ## Rerun the committed notebooks and compare their outputs
	@$(SIDE_BY_SIDE) --keep-going $(NBVAL)

$(NBVAL): nbval-%:
	$(PYTEST) --quiet --nbval notebooks/$*.ipynb --nbval-sanitize-with tests/nbval.cfg --noconftest --override-ini=addopts= -W default -p no:cacheprovider

book-check: book ## Check the rendered book
	@$(SIDE_BY_SIDE) --keep-going $(BOOK_CHECK)

$(BOOK_CHECK): book-check-%:
	CFCORE_BOOK=_build/html $(PYTEST) tests/book/test_$*.py

test: lint ## Everything that continuous integration runs
	@echo "unit tests and notebooks, $(CORES) at a time; each tells when it is done"
	@$(SIDE_BY_SIDE) --keep-going $(UNIT) $(NBVAL)
	@$(MAKE) --no-print-directory book-check

# What every notebook computes from, by content: an edit executes them again, a mere touch does not.
_build/sources: FORCE
	@mkdir -p _build && cksum $(SOURCES) > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

_build/executed/notebooks/%.ipynb: notebooks/%.md _build/sources | .venv/stamp
	$(BIN)/cfcore run $< $@ --provenance $(@:.ipynb=.provenance.json)

_build/html/index.html: $(EXECUTED) $(PAGES) .venv/stamp
	cp -r _config.yml _toc.yml book _build/executed/
	$(BIN)/cfcore provenance _build/executed/notebooks >> _build/executed/book/provenance.md
	$(BIN)/python -m cfbook.production.artefacts page >> _build/executed/book/provenance.md
	$(BIN)/python -m cfbook.production.interactive _build/executed/book/_static
	$(BIN)/python -m cfbook.production.gallery _build/executed
	$(BIN)/python -m cfbook.production.reference _build/executed/book/api
	$(BIN)/jupyter-book build _build/executed --path-output . -W -n --keep-going
	$(BIN)/cfcore guard --book _build/html
	touch $@

book: setup ## Execute every notebook and render the book
	@$(SIDE_BY_SIDE) executed
	@$(MAKE) --no-print-directory _build/html/index.html

executed: $(EXECUTED)

baseline: setup ## Re-execute the committed notebooks (the nbval baseline)
	@$(SIDE_BY_SIDE) $(REFRESHED)

$(REFRESHED): baseline-%:
	$(BIN)/cfcore run notebooks/$*.md notebooks/$*.ipynb

student: book ## Write worksheets, and the book without solutions, to _build/student
	rm -rf _build/student
	$(BIN)/cfcore student _build/executed _build/student/sources
	$(BIN)/jupyter-book build _build/student/sources -W -n --keep-going
	mv _build/student/sources/_build/html _build/student/html
	rm -r _build/student/sources
	$(BIN)/cfcore worksheets $(NOTEBOOKS) $(LABS) _build/student/notebooks

.venv/lab: .venv/stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --constraint requirements.lock --editable '.[lab]'
	touch $@

# Worksheets that are there are kept, with their answers.  A kernel that is not encrypted would warn of it.
lab: setup .venv/lab ## Open worksheets in JupyterLab; they and your answers are in runs/lab
	$(BIN)/cfcore worksheets $(NOTEBOOKS) $(LABS) runs/lab
	PATH="$$PWD/$(BIN):$$PATH" $(BIN)/jupyter lab --KernelManager.transport_encryption=auto runs/lab

slides: setup ## Draw every figure large, for slides, into _build/slides
	$(BIN)/cfcore slides $(NOTEBOOKS) _build/slides

PART ?= 1 2 3 4 5
REPRODUCE = PATH="$$PWD/$(BIN):$$PATH" $(BIN)/snakemake

reproduce: setup ## Make every file below data/ again from nothing, in five parts (PART=3: that one alone)
	for part in $(PART); do \
	    $(BIN)/python -m cfbook.production.artefacts clear $$part; \
	    $(REPRODUCE) part_$$part --cores $(CORES) --rerun-incomplete --rerun-triggers input --config out=data; \
	done
	$(BIN)/python -m cfbook.production.artefacts list

verify-artefacts: setup ## Compare every file with the manifest, and make a sample of each kind again
	OMP_NUM_THREADS=1 $(BIN)/python -m cfbook.production.artefacts verify

# Networks side by side, then what they say in all worlds, then one table after the other; called again it goes on.
REAL = $(BIN)/python -m cfbook.real.make
REAL_NETWORKS = $(addprefix real/generator/,train fold-0 fold-1) $(addprefix real/predictors/,0 1 2 3 4 fold-0 fold-1) real/readers
REAL_WORLDS = $(addprefix real/predictions/,test fold-0 fold-1)
REAL_TABLES = cohort associations pair_counts skills readings support averages bias check pairs report shares

real: setup ## Study real radiographs: make real NIH=FOLDER, of ChestX-ray14, into runs/real (about 90 minutes on 2 cores)
	test -d "$(NIH)" || { echo "make real NIH=FOLDER: where is ChestX-ray14?" >&2; exit 2; }
	$(REAL) images $(NIH)
	@$(SIDE_BY_SIDE) $(REAL_NETWORKS)
	@$(SIDE_BY_SIDE) $(REAL_WORLDS)
	@$(SIDE_BY_SIDE) $(addprefix real/table/,$(REAL_TABLES))

real/generator/%: ; $(REAL) generator $(NIH) --part "$(filter fold-%,$*)"
real/predictors/%: ; $(REAL) predictors $(NIH) $(if $(filter fold-%,$*),--part $*,--seed $*)
real/predictions/%: ; $(REAL) predictions $(NIH) --part "$(filter fold-%,$*)"
real/table/%: ; $(REAL) $* $(NIH)
real/readers: ; $(REAL) readers $(NIH)

bench: setup ## Print the performance ratios
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file; done

wheel-check: setup ## Install the wheel into an empty environment, extra by extra, and try it
	$(BIN)/python tests/try_wheel.py

serve: book ## Serve the book on http://localhost:8000
	$(BIN)/python -m http.server --directory _build/html 8000

clean: ## Remove what was built (not .venv)
	rm -rf _build
