# make demo   draw the sample, train, measure, index and search it
# make test   all checks and tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= demo
HYPHASH := $(BIN)/hyphash

.PHONY: demo test lint types imports clean

# The environment is built anew when pyproject.toml or the native kernel changes.
KERNEL := $(wildcard src/hyphash/hamming/kernel/*.c src/hyphash/hamming/kernel/*.h)
$(VENV)/.ready: pyproject.toml setup.py $(KERNEL)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: export HYPHASH_CACHE ?= $(abspath $(DEMO))/cache
demo: $(VENV)/.ready
	$(HYPHASH) data sample $(DEMO)/sample
	test -f $(DEMO)/run/weights.safetensors || $(HYPHASH) train $(DEMO)/sample --bits 48 --into $(DEMO)/run --overwrite
	$(HYPHASH) evaluate $(DEMO)/run
	$(HYPHASH) index $(DEMO)/run $(DEMO)/sample --into $(DEMO)/collection
	$(HYPHASH) search $(DEMO)/collection $(DEMO)/sample/queries/00000.jpg --gallery $(DEMO)/by-photo.html
	$(HYPHASH) search $(DEMO)/collection --labels dog,person --rank asymmetric --gallery $(DEMO)/by-labels.html
	@echo "open $(DEMO)/run/report.html, $(DEMO)/by-photo.html and $(DEMO)/by-labels.html in a browser"

test: $(VENV)/.ready lint types imports
	$(BIN)/pytest --cov --cov-report=term:skip-covered

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

imports: $(VENV)/.ready
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) $(DEMO) build dist src/*.egg-info
