# make demo   sets everything up, then opens the page on a bundled model, or shows it in the terminal
# make docs   sets up, then builds the site, its figures included, into site/
# make test   sets everything up, then checks style and types and runs the fast tests (under 4 minutes)
# make test-all   the same with the slow tests: browser, distributed, export, notebooks, fuzzing
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-all check docs setup bench clean

demo: setup
	$(BIN)/clearhead demo

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" --hypothesis-profile=fast

test-all: check node_modules
	$(BIN)/pytest -n 2 --dist worksteal

# tsc and prettier check the page's JavaScript; without npm, their tests are skipped
node_modules: package-lock.json
	npm ci --silent --no-audit --no-fund || echo "the JavaScript of the page is not checked: npm ci failed"

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python bench/forward.py

setup: $(READY)

# requirements.lock has every package with its hashes, except torch, which has builds for different devices; a looser
# requirement for it could pull in gigabytes of GPU libraries. The constraints pin the tools that build the package.
$(READY): pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -c 'import sys; sys.exit("clearhead needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --no-deps --requirement requirements.lock
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --no-deps --editable .
	touch $@

clean:
	rm -rf $(VENV) node_modules demo .mypy_cache .ruff_cache .hypothesis
