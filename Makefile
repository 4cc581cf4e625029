# Works on a machine that has only Python >= 3.11 with pip: every target first makes .venv and installs what it needs there.
# All paths are relative, so a checkout in a folder with spaces in its name is fine.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

# The first Python that is new enough; choose another with make PYTHON=...
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && echo "$$p" && break; done)
NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))

# The data sets, where a shared folder beside the checkout has them; KBPJAX_DATA from outside wins.
ifeq ($(origin KBPJAX_DATA),undefined)
ifneq ($(wildcard ../shared/data/.),)
export KBPJAX_DATA := $(shell cd ../shared/data && pwd)
endif
endif

# Bytecode is written even where the environment says not to: else every process of a test compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PYTEST_ARGS ?= -n auto --dist worksteal

.PHONY: help demo test test-times test-slow test-examples test-experiments test-lowest test-newest coverage mutants fuzz lint format types notebooks notebooks-update docs dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

demo: .venv/.installed-experiments ## run the denoising experiment, quick version
	$(BIN)/python -m experiments.denoising --quick

test: .venv/.installed-dev ## run the tests of the library (PYTEST_ARGS="-x -k grid")
	MPLBACKEND=Agg $(BIN)/python -m pytest -m "not slow" tests --ignore tests/experiments \
		-p tests.times --times build/test-times.json $(PYTEST_ARGS)

test-times: ## print the CPU seconds of each file in the last make test, and whether they are within the budget
	$(BIN)/python .ci/check_test_times.py

test-slow: .venv/.installed-dev ## run the programs of pages, several devices, memory, long properties
	MPLBACKEND=Agg $(BIN)/python -m pytest -m slow tests $(PYTEST_ARGS)

test-examples: .venv/.installed-dev ## run the examples of docstrings, and check the shapes and types that functions declare
	KBPJAX_CHECKED=1 MPLBACKEND=Agg $(BIN)/python -m pytest -p tests.conftest -m slow kbpjax $(PYTEST_ARGS)

test-experiments: .venv/.installed-dev ## test the experiments: their parts, and quick runs on the data of KBPJAX_DATA
	MPLBACKEND=Agg $(BIN)/python -m pytest -m experiments tests/experiments $(PYTEST_ARGS)

test-lowest: .venv/.created ## run the tests of the library with the lowest versions of its dependencies, in build/lowest
	MPLBACKEND=Agg $(BIN)/python .ci/check_versions.py lowest $(BIN)/python $(PYTEST_ARGS)

test-newest: .venv/.installed-dev ## the same with the newest versions, on Python 3.12 or later (PYTHON=), in build/newest
	MPLBACKEND=Agg $(BIN)/python .ci/check_versions.py newest '$(PYTHON)' $(PYTEST_ARGS)

coverage: .venv/.installed-dev ## run the tests and say which lines of the package none of them reaches
	MPLBACKEND=Agg $(BIN)/python -m pytest $(PYTEST_ARGS) --cov --cov-report=term-missing:skip-covered

mutants: .venv/.installed-dev ## change the code in many small ways and see whether the tests notice (an hour or two)
	$(BIN)/python .ci/check_mutants.py $(MUTANTS_ARGS)

fuzz: .venv/.installed-dev ## call every public function wrongly, copy and compare objects, compare models with enumeration, damage files (FUZZ_ARGS="--seed 1")
	$(BIN)/python -m tests.fuzz.enumeration
	$(BIN)/python -m tests.fuzz.calls --each 8 $(FUZZ_ARGS)
	$(BIN)/python -m tests.fuzz.objects
	$(BIN)/python -m tests.fuzz.files --tries 1000 --kills 50

lint: .venv/.installed-dev ## check rules and formatting with ruff, and the words of pages and docstrings
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python .ci/check_words.py all

format: .venv/.installed-dev ## mend what ruff can mend
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

types: .venv/.installed-dev ## check the types with basedpyright
	$(BIN)/python -m basedpyright

notebooks: .venv/.installed-dev ## check that the notebooks run and print what is committed
	$(BIN)/python .ci/check_notebooks.py $(NOTEBOOKS)

notebooks-update: .venv/.installed-dev ## run the notebooks that have changed and write their outputs (NOTEBOOKS="images angles": these)
	$(BIN)/python .ci/check_notebooks.py --update $(NOTEBOOKS)

docs: .venv/.installed-dev ## build the documentation site into build/site, without a warning
	$(BIN)/python .ci/build_docs.py

dist: .venv/.installed-dev ## build the source archive and the wheel into dist, and try the wheel in an environment of its own
	$(BIN)/python .ci/build_package.py

clean: ## remove .venv, caches and builds
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache
	find . -name .git -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# A stamp is written only after its install has succeeded, and renewed when pyproject.toml changes.
.venv/.created:
	@py='$(PYTHON)'; \
	if ! "$$py" -c '$(NEW_ENOUGH)' 2>/dev/null; then \
		echo "kbpjax needs Python 3.11 or later, and $${py:-no python on the PATH} is not that: make PYTHON=/path/to/python3.11" >&2; exit 1; fi; \
	echo "Making .venv with $$("$$py" --version)"; \
	"$$py" -m venv .venv >/dev/null 2>&1 || { \
		"$$py" -m venv --without-pip .venv && "$$py" -m pip --python .venv install --quiet pip; }
	@touch $@

.venv/.installed-experiments: pyproject.toml | .venv/.created
	@rm -f $@
	@echo "Installing kbpjax and what the experiments need into .venv; the first time takes a minute or two"
	@$(BIN)/python -m pip install --quiet --editable '.[experiments]'
	@touch $@

.venv/.installed-dev: pyproject.toml | .venv/.created
	@rm -f $@
	@echo "Installing kbpjax and the development tools into .venv; the first time takes a minute or two"
	@$(BIN)/python -m pip install --help | grep -q -e --group || $(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --editable '.[experiments,baselines]' --group dev
	@touch .venv/.installed-experiments $@
