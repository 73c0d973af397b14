# Everything one does with a checkout. `make` alone lists the targets.

# One torch thread per process: many small actors on few cores lose far more to two threads than they win.
export OMP_NUM_THREADS := 1
export RAY_USAGE_STATS_ENABLED := 0
# Where it is set, each of Ray's many processes would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE
# Handed on to setup.sh: which Python to use, and which optional dependencies to install.
export PYTHON ?=
export EXTRAS ?=

BIN := .venv/bin
# make test CPU=sse, CPU=avx2: with the arithmetic of a machine that has no more than these instructions.
CPU := own
# make test JITTER=3: with other last bits in initial weights. PRECISION=float32, bfloat16: what `precision: auto` means.
export JITTER ?=
export PRECISION ?=
PYTEST := $(BIN)/python benchmarks/kernels.py $(CPU) -m pytest
IN_TWO := -n 2 --dist loadfile --no-loadscope-reorder --durations=15
# The others need neither Ray nor a browser.
REAL := ray or cluster or learning or browser

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test test-slow test-fast soak lint format types docs pictures constraints cluster

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' Makefile

setup: ## Make .venv or bring it up to date (PYTHON=python3.12, EXTRAS=dev)
	@./setup.sh

demo: setup ## Train Pendulum from a scripted teacher's preferences
	$(BIN)/rlhf-ray train pendulum

test: setup ## The tests that take less than two seconds each, in two processes with a Ray each (CPU=sse, JITTER=1, PRECISION=bfloat16: as on another machine)
	$(PYTEST) -m "not (slow or soak)" $(IN_TWO)

test-slow: setup ## The others, but for the soak
	$(PYTEST) -m "slow and not soak" $(IN_TWO)

test-fast: setup ## The tests without Ray and the browser
	$(PYTEST) -m "not ($(REAL) or slow or soak)" -n 2 --dist loadfile

soak: setup ## The tests that take minutes, and properties on many examples; writes down what came of them
	@mkdir -p build
	@HYPOTHESIS_PROFILE=soak bash -o pipefail -c '$(BIN)/pytest -m "soak or hypothesis" -v --tb=short --durations=0 2>&1 | tee build/soak.log'; status=$$?; \
	{ echo "commit $$(git rev-parse --short HEAD), $$(nproc --all) cores, $$(date -u +%F)"; \
	  grep -E "^tests/.*(PASSED|FAILED|ERROR|SKIPPED)|^[0-9.]+s call|^(FAILED|ERROR) |^=+ .*(passed|failed)" build/soak.log; } \
	  >benchmarks/results/soak.txt; exit $$status

lint: setup ## Check style, format and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: setup ## Format, and repair what can be repaired by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup ## Check types
	$(BIN)/mypy

# Nitpicky (-n): a name in the reference that leads nowhere is an error too, but for what docs/conf.py names.
docs: setup ## Renew the generated parts of docs/ and build the site into build/docs; a warning is an error
	$(BIN)/python docs/generated.py
	$(BIN)/python -m sphinx -q -n -W --keep-going -d build/docs-cache docs build/docs
	@echo "docs: build/docs/index.html"

pictures: setup ## Make the pictures of README and docs/ anew; takes minutes, needs Chromium
	$(BIN)/python benchmarks/pictures.py

# Built for the oldest Python. torch loses its local version and its CUDA packages, so that one file serves machines that
# take the CPU build and machines that take the CUDA build. uv does not read pip's find-links: hand them over.
constraints: setup ## Renew constraints.txt: the newest versions that fit together
	@export UV_FIND_LINKS="$${UV_FIND_LINKS:-$${PIP_FIND_LINKS:-$$($(BIN)/python -m pip config get global.find-links 2>/dev/null)}}"; \
	set -e; trap 'rm -f constraints.new' EXIT; \
	$(BIN)/uv pip compile --quiet pyproject.toml --extra dev --extra interpret --python-version 3.11 --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links >constraints.new; \
	{ \
	  echo "# The versions the tests run with; setup.sh installs with -c constraints.txt."; \
	  echo "# Renewed by \`make constraints\`."; \
	  sed -E -e 's/\+cpu$$//' -e '/^(nvidia-|cuda-|triton==)/d' constraints.new; \
	} >constraints.txt

# The nodes of a cluster get what is committed, and nothing else that lies around here.
cluster: setup ## Make what `ray up cluster.yaml` needs: Ray's token for this machine, and build/cluster
	@$(BIN)/ray get-auth-token --generate >/dev/null
	@rm -rf build/cluster && git archive --prefix=build/cluster/ HEAD | tar -xf -
	@echo "cluster: build/cluster is $$(git rev-parse --short HEAD)"
