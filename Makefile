# Every step says in one line what it does, and is skipped when nothing changed since.

MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.DEFAULT_GOAL := help

# The tools of .venv come before the system's.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Vitest colors its output even in a log file.
ifeq ($(MAKE_TERMOUT),)
export NO_COLOR := 1
endif

say = @echo "==>"
configure = cmake -S . -B build -G Ninja -DPython_EXECUTABLE=$(CURDIR)/.venv/bin/python
cpp_files = find csrc tests -name '*.cpp' -o -name '*.h'

.PHONY: help demo test test-all soak recovery torture explore sanitize lab bench dev lint requirements check-cuda format clean build core wheel tools core-tools \
  apart chromium oldest newest

help: ## show this list
	@echo "Chameleon Lab: train PyTorch models in less device memory."
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 16

demo: core ## set up, build and run the main job: the first thing to try
	$(say) "Running the main job"
	@python -m benchmarks.demo

test: ## set up, build, and run the gate: style, types and the tests that take minutes; what failed is listed last
	@$(MAKE) build || { printf '==> 1 failed, and nothing is tested without it. To run it again:\n  make build\n'; exit 1; }
	@python scripts/test.py gate

test-all: ## the same with every test there is, which takes about two hours
	@$(MAKE) build || { printf '==> 1 failed, and nothing is tested without it. To run it again:\n  make build\n'; exit 1; }
	@python scripts/test.py all

soak: build ## make 50 checkpoints and a thousand steps after them, and search every loop's floor (minutes)
	@failed=0; \
	OMP_NUM_THREADS=1 python -m pytest -q -m soak tests/integration/test_savers.py || failed=1; \
	CHAMELEON_SOAK=1 OMP_NUM_THREADS=1 python -m pytest -q tests/integration/test_floor.py -k smallest || failed=1; \
	exit $$failed

oldest: .venv/.installed ## build and test with the oldest PyTorch, in its CUDA build and without a GPU (downloads 3 GB once; 40 minutes)
	@python scripts/test.py all oldest-first-call oldest-second-call oldest-third-call oldest oldest-gpu

newest: .venv/.installed ## build and run the integration tests with the newest PyTorch, likewise (half an hour)
	@python scripts/test.py all newest newest-gpu

recovery: build ## kill and restart replicas under torchft, which is installed into build/packages for it (minutes)
	@[ -e build/packages/torchft/.done ] || { scripts/torchft.sh build/packages/torchft; }
	$(say) "Killing replicas under torchft"
	@OMP_NUM_THREADS=1 PYTHONPATH=build/packages/torchft python -m pytest -q -m torchft tests/recovery

torture: build apart ## try to break every promise, count, and write docs/reliability.md (hours)
	$(say) "Trying to break the promises"
	@python -m torture --json build/bench/torture.json --docs docs/reliability.md

explore: build ## run the property tests with new examples, ten times over, and 10,000 programs of each kind on the fake GPU (half an hour)
	@for round in 1 2 3 4 5 6 7 8 9 10; do \
	  echo "==> Property tests with new examples, round $$round of 10"; \
	  OMP_NUM_THREADS=1 python -m pytest -q -n 2 --dist load -p no:cacheprovider --hypothesis-profile=explore tests/property || exit 1; \
	done
	$(say) "Random programs on the fake GPU, in random legal order"
	@python -m benchmarks.fake_gpu --json build/bench/fake_gpu.json

sanitize: .venv/.installed ## run the C++ core's stress test under Address-, UndefinedBehavior- and ThreadSanitizer
	@scripts/sanitize.sh $(CURDIR)/.venv/bin/python

lab: build ## start JupyterLab with the tutorials
	$(say) "Starting JupyterLab in tutorials/"
	@cd tutorials && jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root)

bench: build apart ## measure the main job, replays, the recorder, changing ops and small programs (four hours), and write build/bench/*.json
	$(say) "Measuring the main job"
	@python -m benchmarks.main_job --json build/bench/main_job.json
	$(say) "Measuring swaps and replays, mixed, beside checkpointing"
	@python -m benchmarks.remat --json build/bench/remat.json
	$(say) "Measuring what recording costs"
	@python -m benchmarks.overhead --json build/bench/overhead.json
	$(say) "Measuring steps that change"
	@python -m benchmarks.adapt --json build/bench/adapt.json
	$(say) "Trying programs as people write them, in less and less of their memory"
	@python -m benchmarks.programs --json build/bench/programs.json

dev: build chromium ## set up everything for development

core: .venv/.core # what runs a training loop, without the panel
	$(say) "Building the C++ core"
	@[ -e build/build.ninja ] || $(configure) -DBUILD_PANEL=OFF >/dev/null
	@cmake --build build --target _C _planner

build: build/build.ninja ## build the C++ core and the panel, where they changed
	$(say) "Building the C++ core and the JupyterLab panel"
	@cmake --build build

wheel: build ## build a wheel for each PyTorch that is supported, into build/wheels (TORCH="2.12 2.15" for some of them)
	@python scripts/wheel.py $(TORCH)

lint: node_modules/.package-lock.json ## check style, types and complexity: ruff, mypy, clang-format, lizard, biome
	$(say) "Checking the style of Python, C++ and TypeScript, and the types of Python"
	@ruff check --quiet --output-format=concise
	@ruff format --check --quiet || { ruff format --diff; echo 'Run `make format`.'; exit 1; }
	@mypy --no-error-summary
	@$(cpp_files) | xargs -r clang-format --dry-run -Werror
	@$(cpp_files) | xargs -r lizard --languages cpp --CCN 20 --warnings_only
	@npm run --silent lint

requirements: .venv/.installed ## ask the package index whether a new user can install together what is pinned
	@python scripts/requirements.py

check-cuda: build ## compile the CUDA device against CUDA's headers, every warning an error (no GPU is needed)
	$(say) "Compiling the CUDA device, and the fake GPU that it is tested on"
	@cmake --build build --target check_cuda fake_cuda fake_allocator

format: node_modules/.package-lock.json ## mend style
	@ruff check --quiet --fix
	@ruff format --quiet
	@$(cpp_files) | xargs -r clang-format -i
	@npm run --silent format

clean: ## remove what was built (.venv and node_modules stay)
	@rm -rf build labextension/lib chameleon_lab/labextension chameleon_lab/_C*.so chameleon_lab/_planner*.so chameleon_lab/_built_for.py

node_modules/.package-lock.json: package-lock.json | build/build.ninja
	$(say) "Installing the npm packages"
	@cmake --build build --target npm_packages

build/build.ninja: .venv/.installed
	$(say) "Finding the compiler and PyTorch"
	@$(configure) -DBUILD_PANEL=ON >/dev/null
	@touch $@

# What is missing is named before anything is downloaded.
.venv/.core: constraints.txt scripts/setup.sh | $(if $(filter-out demo core,$(or $(MAKECMDGOALS),help)),tools,core-tools)
	@scripts/setup.sh core

.venv/.installed: .venv/.core pyproject.toml | tools
	@scripts/setup.sh python

tools core-tools:
	@scripts/setup.sh $@

apart: .venv/.installed
	@scripts/setup.sh apart

chromium:
	@scripts/setup.sh chromium
