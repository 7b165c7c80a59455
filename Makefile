# make demo   draw the sample, train, measure, index, search and serve it (SERVE=0: all but the last)
# make test   all checks and tests
# make docs   the generated part of README.md
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= demo
SERVE ?= 1
PORT ?= 8000
HYPHASH := $(BIN)/hyphash

.PHONY: demo test lint types imports docs coverage clean

# The environment is built anew when pyproject.toml or the native kernel changes.
KERNEL := $(wildcard src/hyphash/hamming/kernel/*)
$(VENV)/.ready: pyproject.toml setup.py $(KERNEL)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: export HYPHASH_CACHE ?= $(abspath $(DEMO))/cache
demo: $(VENV)/.ready
	$(HYPHASH) data sample $(DEMO)/sample
	test -f $(DEMO)/run/weights.safetensors || $(HYPHASH) train $(DEMO)/sample --bits 48 --into $(DEMO)/run --overwrite
	$(HYPHASH) evaluate $(DEMO)/run
	$(HYPHASH) index $(DEMO)/run $(DEMO)/sample --part database --into $(DEMO)/collection
	$(HYPHASH) search $(DEMO)/collection $(DEMO)/sample/queries/00000.jpg --gallery $(DEMO)/by-photo.html
	$(HYPHASH) search $(DEMO)/collection --labels dog,person --rank asymmetric --gallery $(DEMO)/by-labels.html
	@echo "open $(DEMO)/run/report.html, $(DEMO)/by-photo.html and $(DEMO)/by-labels.html in a browser"
ifneq ($(SERVE),0)
	$(HYPHASH) serve $(DEMO)/collection --port $(PORT)
endif

test: $(VENV)/.ready lint types imports
	$(BIN)/pytest

coverage: $(VENV)/.ready
	$(BIN)/pytest --cov --cov-report=term:skip-covered

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

imports: $(VENV)/.ready
	$(BIN)/lint-imports

# The README's table of methods, from the registry.
docs: $(VENV)/.ready
	$(BIN)/python -c "import re, pathlib, subprocess; p = pathlib.Path('README.md'); \
	t = subprocess.run(['$(HYPHASH)', 'losses', '--markdown'], capture_output=True, text=True, check=True).stdout; \
	p.write_text(re.sub('(<!-- methods -->\n).*?(<!-- /methods -->)', lambda m: m[1] + t + m[2], p.read_text(), flags=re.S))"

clean:
	rm -rf $(VENV) $(DEMO) build dist src/*.egg-info
