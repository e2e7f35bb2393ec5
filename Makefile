# Each target makes `.venv` by itself, from the exact versions in requirements.lock. `make` alone lists the targets.

PYTHON ?= $(firstword $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p; done) python3)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 4 ? n : 4)))
TESTS ?=
OPTIONS ?=

VENV := .venv
STAMP := $(VENV)/.installed
HALF := $(VENV)/.installing
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
TORCH := $(shell sed -n '/^torch==/p' requirements.lock)

# A folder that was moved, or whose Python is gone, holds programs that no longer run.
SOUND = $(VENV)/bin/python -c pass 2>/dev/null && grep -qsF '$(CURDIR)/$(VENV)' $(VENV)/bin/activate
ifneq ($(shell $(SOUND) && echo yes),yes)
.PHONY: $(STAMP)
endif

.DEFAULT_GOAL := help
.PHONY: help demo test lint format docs bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(STAMP) ## Five organisations train one German-English engine: runs/demo, report included
	$(VENV)/bin/fedmt demo $(OPTIONS)

test: $(STAMP) ## Run all tests, the slow ones too; TESTS=tests/corpus runs some
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup $(OPTIONS) $(TESTS)

lint: $(STAMP) ## Check style and types: ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(STAMP) ## Put code in its shape, and mend what ruff can mend
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

docs: $(STAMP) ## Write the table of keys in docs/recipes.md anew from the recipe's types
	$(VENV)/bin/python docs/keys.py

bench: $(STAMP) ## Measure speed and memory against other programs
	$(VENV)/bin/python bench/run.py $(OPTIONS)

clean: ## Remove what make and the tools made; runs and downloads stay
	rm -rf $(VENV) bench/.venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find src tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} +

# Killed half-way: begun anew. Otherwise only what the lock has new is installed.
# Torch: a wheel that pip is told of on this disk, else the build for CPUs, else what the package index has.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'fedmt needs Python 3.11 or newer, and $(PYTHON) is none; name one: make PYTHON=python3.12'; exit 2; }
	@test ! -e $(HALF) && $(SOUND) && $(PIP) --version >/dev/null 2>&1 || \
		{ rm -rf $(VENV) && echo 'making $(VENV)' && $(PYTHON) -m venv $(VENV); }
	@rm -f $(STAMP) && touch $(HALF)
	@$(PIP) install --quiet --no-deps --no-index $(TORCH) 2>/dev/null || \
		{ test -n '$(TORCH_INDEX)' && \
		$(PIP) install --no-deps --retries 1 --timeout 30 --index-url '$(TORCH_INDEX)' $(TORCH); } || \
		{ echo 'taking $(TORCH) as the package index has it' && \
		$(PIP) install --constraint requirements.lock $(TORCH); }
	$(PIP) install --quiet --requirement requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@mv $(HALF) $(STAMP)
