.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
# Torch first and by exact version: an open range lets pip take a build of several gigabytes.
TORCH := $(shell sed -n 's/^ *- \(torch==.*\)/\1/p' environment.yml)
PROFILE ?= quick
JOBS ?= 2
SAMPLE := --sample

.PHONY: help env engines reproduce book test test-all test-quick launchers faults fuzz lint format types bench bench-emulated pictures clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

# Packages are downloaded while the engines, of which the compiler takes minutes, are built.
env: ## create .venv and install everything
	@$(MAKE) --no-print-directory -j 2 $(VENV)/ready $(VENV)/engines

$(VENV)/torch: scripts/system_packages.sh
	sh scripts/system_packages.sh $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV); the first time takes some minutes."
	$(BIN)/python -m pip install --quiet $(TORCH)
	touch $@

$(VENV)/ready: $(VENV)/torch pyproject.toml environment.yml
	sed -n 's/^ *- \([A-Za-z0-9_.-]*==.*\)/\1/p' environment.yml | grep -v '^torch==' > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[dev]'
	if command -v mpiexec >/dev/null; then $(BIN)/python -m pip install --quiet --constraint $(VENV)/constraints.txt mpi4py; fi
	touch $@

# Horovod and BytePS are built once and kept; without a compiler all else works without them.
$(VENV)/wheels: $(VENV)/torch scripts/install_engines.sh $(wildcard scripts/engines/*.sh scripts/engines/*/*)
	sh scripts/install_engines.sh $(BIN)/python wheels
	touch $@

$(VENV)/engines: $(VENV)/ready $(VENV)/wheels
	sh scripts/install_engines.sh $(BIN)/python
	touch $@

engines: ## build Horovod and BytePS again if their recipes changed, or if it failed
	sh scripts/install_engines.sh $(BIN)/python

reproduce: env ## execute every notebook and build the site (PROFILE=quick|full|paper)
	$(BIN)/ddlnb survey reproduce --profile $(PROFILE) --jobs $(JOBS) --yes

book: env ## build the site of the last run again, executing nothing
	$(BIN)/ddlnb survey book --profile $(PROFILE)

# They start hundreds of processes that import the package: these read its bytecode, also where the environment forbids
# Python to write any.
reproduce test test-all test-quick launchers: export PYTHONDONTWRITEBYTECODE :=

# Side by side what starts no processes (a thread each), then notebooks and files of tests that start ranks. With more of
# them than cores, emulated links miss their bandwidth. Examples in docstrings are all in the first: none starts ranks.
test: env ## run the tests, of long ones a sample, on the real engines and in notebooks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SAMPLE) -n auto -m "not ranks and not notebook and not slow"
	OMP_NUM_THREADS=1 DDLNB_JOBS=1 $(BIN)/python -m pytest $(SAMPLE) tests -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "ranks or slow or notebook"

test-all: SAMPLE :=
test-all: test ## run all tests, every notebook included

test-quick: env ## only the tests that start no processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SAMPLE) -n auto -m "not ranks and not notebook and not slow"

launchers: env ## the seven methods on Open MPI, SSH and Slurm, started here (as root: installs them)
	scripts/launchers/ssh_loopback.sh install
	scripts/launchers/slurm_one_node.sh install
	$(BIN)/python -m pytest tests/launch/test_launchers.py --durations=10

faults: env ## inject 500 faults into sweeps and count what became of them (an hour; resumable); and measure for ten minutes, and see what grows
	$(BIN)/python -m tests.faults --count 500 --seed 1 --out build/faults/faults.csv
	$(BIN)/python -m tests.faults.growth

fuzz: env ## a million odd inputs through all readers (an hour and a half)
	$(BIN)/python -m tests.fuzz --inputs 1000000 --out build/fuzz.csv

lint: env ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: env ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: env ## check types
	$(BIN)/mypy

bench: env ## how quick forecasts are, and what a message costs
	$(BIN)/python -m benchmarks.forecast_speed
	$(BIN)/python -m benchmarks.scale_speed
	$(BIN)/python -m benchmarks.message_cost

bench-emulated: env ## all methods against DDP and Horovod on emulated links, and against forecasts (an hour)
	$(BIN)/python -m benchmarks.emulated
	$(BIN)/python -m benchmarks.emulated_networks
	$(BIN)/python -m benchmarks.searched_emulated --out build/searched-emulated

pictures: reproduce ## refresh the README's pictures from the site
	mkdir -p docs/pictures
	cp build/$(PROFILE)/pages/figures/fig3_timelines-2.png docs/pictures/timelines.png
	cp build/$(PROFILE)/pages/figures/fig4_throughput-1.png docs/pictures/throughput.png
	cp build/$(PROFILE)/pages/figures/sec3_1_4_resnet50-2.png docs/pictures/breakdown.png

clean: ## remove what was built, not the environment
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
