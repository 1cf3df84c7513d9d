# `make compare` and `make test` are the two commands; both set up what they need.

PYTHON ?= $(shell for v in 3.11 3.12 3.10; do command -v python$$v >/dev/null 2>&1 && python$$v -c 'import venv, ensurepip' >/dev/null 2>&1 && echo python$$v && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WHAT ?=

.PHONY: setup compare test check results sweep matrix format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "gradbridge needs Python 3.10, 3.11 or 3.12 with venv (on Debian: apt install python3-venv); or name one: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' || { echo "gradbridge needs Python 3.10, 3.11 or 3.12; $(PYTHON) is another" >&2; exit 2; }
	@echo "setting up $(VENV): some minutes, once"
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,check]'
	touch $@

compare: $(STAMP)
	$(BIN)/gradbridge compare $(WHAT)

test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile $(WHAT)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/fatou lint julia bridge/templates/each.jl
	$(BIN)/fatou format --check julia bridge/templates/each.jl

results: $(STAMP)
	GRADBRIDGE_CACHE=$(VENV)/cache $(BIN)/gradbridge compare --no-live --jacobian --out results/seed

sweep: $(STAMP)
	rm -rf results/mxnet-2.0.0b1
	$(BIN)/gradbridge sweep --backend 'mxnet-2.0.0b1/*' --max-cases 3000 --seed 1 --out results/mxnet-2.0.0b1

matrix: $(STAMP)
	$(BIN)/gradbridge env add mxnet==1.9.1 mxnet-native==1.8.0.post0
	$(BIN)/gradbridge compare mxnet-21143 --matrix --backend 'mxnet-2.0.0b1' --out $(VENV)/matrix
	mkdir -p results/matrix && cp $(VENV)/matrix/matrix.csv $(VENV)/matrix/summary.csv results/matrix

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/fatou format julia bridge/templates/each.jl

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
