# Two commands do everything on a fresh machine with Python 3.11 and make:
#   make demo   install into .venv and run the main job on embedded data
#   make test   install into .venv and run the whole test suite
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow test-ray test-flower consortium conformance mutants lint format docs tutorial bench bench-peers screenshots plotly clean

# torch first and pinned: a looser requirement may pull gigabytes of GPU packages
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "coterie needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt torch==2.13.0
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --editable '.[docs]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/coterie demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest --numprocesses 2

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest --numprocesses 2 --durations 20 -m slow

# a real SuperLink and SuperNodes on loopback; flwr caps other packages, so it has an environment of its own
FLOWER := .venv-flower
$(FLOWER)/.installed: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip --quiet install --constraint constraints-flower.txt torch==2.13.0
	$(FLOWER)/bin/python -m pip --quiet install --constraint constraints-flower.txt --editable '.[flower]' pytest pytest-xdist hypothesis
	touch $@

test-flower: $(FLOWER)/.installed
	$(FLOWER)/bin/python -m pytest tests/flower tests/cli -m 'not slow and not ray' --numprocesses 2 --dist loadfile --durations 10

# four hospitals on this machine: invitation, approval, decision, training with one site lost and back, predictions
consortium: $(FLOWER)/.installed
	$(FLOWER)/bin/python tools/consortium.py

$(VENV)/.ray: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --editable '.[dev,ray]'
	touch $@

# one Ray session, so one process
test-ray: $(VENV)/.ray
	$(BIN)/python -m pytest -m ray tests/engines

# the table of docs/conformance.md
conformance: $(VENV)/.ray
	$(BIN)/python tools/conformance.py

mutants: $(VENV)/.installed
	$(BIN)/python tests/mutants/run.py

lint: $(VENV)/.installed
	$(BIN)/ruff check src reproductions tests examples benchmarks tools
	$(BIN)/ruff format --check src reproductions tests examples benchmarks tools
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix src reproductions tests examples benchmarks tools
	$(BIN)/ruff format src reproductions tests examples benchmarks tools

# the site, in site/: any warning is an error, and the search must find every public name
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python tools/site/check_search.py site
	@echo "Read it: $(BIN)/python -m http.server --directory site, then http://localhost:8000"

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/bench_ifca.py
	$(BIN)/python benchmarks/bench_histograms.py
	$(BIN)/python benchmarks/bench_priors.py

bench-peers: $(VENV)/.installed
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet torch==2.13.0
	.venv-peers/bin/python -m pip install --quiet --requirement benchmarks/peers/requirements.txt
	$(BIN)/python benchmarks/peers/bench_peers.py

# the report page of docs/report.md, photographed by Chromium
screenshots: $(VENV)/.installed
	$(BIN)/python tools/screenshots.py

# the outputs and pictures of docs/tutorial.md
tutorial: $(VENV)/.installed
	$(BIN)/python tools/tutorial.py

# the part of plotly.js that the report page carries, from npm; only to move to another version
plotly: $(VENV)/.installed
	$(BIN)/python tools/plotly_bundle.py

clean:
	rm -rf $(VENV) $(FLOWER) .venv-peers dist build site coterie-demo
