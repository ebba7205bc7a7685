# One venv in the checkout; uv makes it fast, plain pip works as well (see README).
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export GPUPLANNER_DATA ?= ../shared/data
# Tests start many processes: each would compile every module that it loads, of the libraries as well.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast test-long test-prometheus test-slurm replay-slurm test-mig-parted test-crds lint format sample bench notebook dashboard docs docs-site lock clean

demo: $(VENV)/.all  ## run the full analysis on bundled sample data
	$(BIN)/gpuplanner demo -o reports/demo

# The loops of the simulator are compiled once, by all processors, before tests that run side by side would each do it.
test: $(VENV)/.dev  ## all quick tests
	$(BIN)/gpuplanner compile
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not long and not lint" tests

# What has a coverage floor is traced while its own tests run; tracing all tests would take a third as long again.
TRACED := $(foreach package,hardware usage/ledger cost planner/verification,tests/$(package))
TRACED += tests/planner/test_limits.py  # what else checks plans

test-long: $(VENV)/.dev  ## the tests that make test leaves out, coverage floors, and new examples for the properties
	$(BIN)/gpuplanner compile
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "long and not lint" tests
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not lint" --cov --cov-report= $(TRACED)
	$(BIN)/coverage report
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -q -n 2 -m "hypothesis and not long" tests

test-fast: $(VENV)/.dev  ## without kernels, browsers and long runs
	$(BIN)/python -m pytest -q -m "not long and not lint and not slow and not notebook and not browser" tests

test-prometheus: $(VENV)/.dev build/prometheus/usr/bin/prometheus  ## live telemetry from a real Prometheus
	GPUPLANNER_PROMETHEUS_BIN=build/prometheus/usr/bin $(BIN)/python -m pytest -q -m prometheus tests/ingest/telemetry tests/decision/recurring

build/prometheus/usr/bin/prometheus:  # Debian's package, unpacked and not installed
	mkdir -p build/prometheus
	cd build/prometheus && apt-get download prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb

test-slurm: $(VENV)/.dev  ## written files and scripts on real daemons of Slurm (Debian: slurm-wlm, munge)
	$(BIN)/python -m pytest -q -m slurm tests/report/bundle/real

replay-slurm: $(VENV)/.dev  ## a day of jobs through a real controller, compared with the simulator; about a quarter of an hour
	$(BIN)/python benchmarks/replay_slurm/replay_slurm.py $(REPLAY)

test-crds: $(VENV)/.dev  ## custom resources against the published schemas and rules of their controllers
	$(BIN)/python -m pytest -q -m crds tests/report/bundle

test-mig-parted: $(VENV)/.dev  ## written configurations through the nvidia-mig-parted that GPUPLANNER_MIG_PARTED names
	$(BIN)/python -m pytest -q -m mig_parted tests/report/bundle/real

lint: $(VENV)/.dev  ## style, types, layers, spelling, notebooks without output, doctests, tests of the repository
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/nbstripout --verify notebooks/*.ipynb
	GPUPLANNER_CACHE=build/test-studies $(BIN)/python -m pytest -q --doctest-modules gpuplanner tests/clusters/{dumps,planted,search,growth}.py
	$(BIN)/python -m pytest -q -m "lint and not long" tests

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

sample: $(VENV)/.all  ## make data/sample again; the same seed gives the same bytes
	$(BIN)/python data/make_sample.py -o data/sample

# These measure on the public traces; without the folder they are left out.
ON_TRACES := $(addprefix benchmarks/,packing.py reading.py services.py serving_speed.py speed_model.py)
BENCHMARKS = $(filter-out $(if $(wildcard $(GPUPLANNER_DATA)),,$(ON_TRACES)),$(sort $(wildcard benchmarks/*.py)))

bench: $(VENV)/.bench  ## ratios against named peers
	for file in $(BENCHMARKS); do $(BIN)/python $$file || exit 1; done

notebook: $(VENV)/.all  ## JupyterLab on the notebooks
	$(BIN)/gpuplanner notebook

dashboard: $(VENV)/.all  ## the notebooks as pages without code, controls live
	$(BIN)/uv pip install -q --python $(BIN)/python -c requirements.lock -e '.[dashboard]'
	$(BIN)/gpuplanner notebook --dashboard

docs: $(VENV)/.dev  ## reference pages that are made from the code
	$(BIN)/python docs/make_reference.py

docs-site: $(VENV)/.dev  ## the documentation as a site that needs no network: build/site/index.html
	$(BIN)/uv pip install -q --python $(BIN)/python "mkdocs-material>=9.6,<10"
	$(BIN)/mkdocs build --strict

lock: $(VENV)/.dev  ## pin every package that the tests run with
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-annotate --no-header --all-extras pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) build dist .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check uv

$(VENV)/.all: pyproject.toml requirements.lock | $(VENV)/bin/uv
	$(BIN)/uv pip install -q --python $(BIN)/python -c requirements.lock -e '.[all]'
	touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(BIN)/uv pip install -q --python $(BIN)/python -c requirements.lock -e '.[dev,bench]'
	touch $@

$(VENV)/.dev: pyproject.toml requirements.lock | $(VENV)/bin/uv
	$(BIN)/uv pip install -q --python $(BIN)/python -c requirements.lock -e '.[dev]'
	touch $@ $(VENV)/.all
