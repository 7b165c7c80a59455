# make demo    draw the sample, train, measure, index, search and serve it (SERVE=0: all but the last)
# make check   ruff, types, imports and every test that needs no server, browser, cluster or emulator
# make lowest  the tests of `make check` with the lowest versions that pyproject.toml allows, in build/lowest (uv gets them)
# make test    all checks and tests; what they need is installed first
# make harden  hostile files, kills, power cuts and a soak in the numbers of docs/security.md: a quarter of an hour
# make docs    the generated part of docs/methods.md
# make docs-site  the documentation site, in build/site
# make picture the moving picture of README.md, of a real browser: five minutes
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= demo
SERVE ?= 1
PORT ?= 8000
HYPHASH := $(BIN)/hyphash
# Two processes; tests/conftest.py says which tests one of them runs together, and in which order.
PROCESSES := --numprocesses 2 --dist loadgroup --no-loadscope-reorder --max-worker-restart 0
PYTEST := $(BIN)/pytest $(PROCESSES)
QUICK := -m "not (server or browser or cluster or slow)" --hypothesis-profile quick
LOWEST := build/lowest

.PHONY: demo test check quick lowest harden programs static lint types imports docs docs-site picture coverage clean

# The environment is built anew when pyproject.toml or the native kernel changes: all of it, or what the demo needs.
KERNEL := $(wildcard src/hyphash/hamming/kernel/*)
INSTALL = test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	$(BIN)/python -m pip install --disable-pip-version-check --editable

$(VENV)/.demo: pyproject.toml setup.py $(KERNEL)
	@echo "installing PyTorch and what else the demo needs into $(VENV): 2 to 4 minutes, 6 GB"
	@$(INSTALL) '.[train,sample,serve]'
	@touch $@

$(VENV)/.ready: pyproject.toml setup.py $(KERNEL)
	@echo "installing everything that tests need into $(VENV): 3 to 5 minutes, 7 GB"
	@$(INSTALL) '.[dev]'
	@touch $(VENV)/.demo $@

demo: export HYPHASH_CACHE ?= $(abspath $(DEMO))/cache
demo: $(VENV)/.demo
	$(HYPHASH) data sample $(DEMO)/sample
	test -f $(DEMO)/run/weights.safetensors || $(HYPHASH) train $(DEMO)/sample --bits 48 --into $(DEMO)/run --overwrite
	$(HYPHASH) evaluate $(DEMO)/run
	$(HYPHASH) index $(DEMO)/run $(DEMO)/sample --part database --into $(DEMO)/collection
	$(HYPHASH) search $(DEMO)/collection $(DEMO)/sample/queries/00000.jpg --gallery $(DEMO)/by-photo.html
	$(HYPHASH) search $(DEMO)/collection --labels dog,person --gallery $(DEMO)/by-labels.html
	@echo "open $(DEMO)/run/report.html, $(DEMO)/by-photo.html and $(DEMO)/by-labels.html in a browser"
ifneq ($(SERVE),0)
	$(HYPHASH) serve $(DEMO)/collection --port $(PORT)
endif

test: programs static
	$(PYTEST)

# Types take half a minute of one core where mypy has no cache yet: beside the tests.
check: lint imports
	@$(MAKE) --no-print-directory --jobs 2 types quick

quick: $(VENV)/.ready
	$(PYTEST) $(QUICK)

# Types are checked with the newest versions alone. What an old package calls and a newer one below it deprecates is no
# failure of ours.
lowest:
	uv venv --clear --python 3.11 $(LOWEST)
	uv pip install --python $(LOWEST) --resolution lowest-direct --requirements pyproject.toml --extra dev
	uv pip install --python $(LOWEST) --no-deps --editable .
	PATH=$(abspath $(LOWEST))/bin:$$PATH $(LOWEST)/bin/pytest $(PROCESSES) $(QUICK) \
		-W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning -W ignore::FutureWarning

# The same tests as in `make test`, in other numbers.
harden: export HYPHASH_CRASH_ROUNDS := 350
harden: export HYPHASH_KILLS := 150
harden: export HYPHASH_POWER_CUTS := 520
harden: export HYPHASH_HOSTILE_FILES := 1000
harden: export HYPHASH_SCHEMATHESIS := 100
harden: export HYPHASH_SOAK := 600
harden: programs $(VENV)/.ready
	$(PYTEST) -rP --show-capture=stdout tests/harden tests/collection/test_crash.py tests/collection/test_stranger.py tests/service/test_abuse.py \
		tests/stores/test_postgresql_server.py tests/hamming/test_segments.py

coverage: programs $(VENV)/.ready
	$(PYTEST) --cov --cov-report=term:skip-covered

programs:
	@$(PYTHON) tests/setup/programs.py

static: lint types imports

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

imports: $(VENV)/.ready
	$(BIN)/lint-imports

# The table of methods, from the registry.
docs: $(VENV)/.ready
	$(BIN)/python -c "import re, pathlib, subprocess; p = pathlib.Path('docs/methods.md'); \
	t = subprocess.run(['$(HYPHASH)', 'losses', '--markdown'], capture_output=True, text=True, check=True).stdout; \
	p.write_text(re.sub('(<!-- methods -->\n).*?(<!-- /methods -->)', lambda m: m[1] + t + m[2], p.read_text(), flags=re.S))"

# A warning is an error: links, anchors, pages that no menu names. tests/test_docs.py builds it in the same way.
docs-site: export NO_MKDOCS_2_WARNING := 1
docs-site: $(VENV)/.ready
	$(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

picture: programs $(VENV)/.ready
	PYTHONPATH=tests/setup $(BIN)/python docs/site/picture.py

clean:
	rm -rf $(VENV) $(DEMO) build dist src/*.egg-info
