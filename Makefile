# SPDX-License-Identifier: Apache-2.0
# `make run` and `make test` install what they need; `make help` lists all targets.

PYTHON := .venv/bin/python
NAMESPACES := scripts/with-namespaces.sh
# One file for all Pythons, and wheels only: nothing is compiled when it is installed.
LOCK := .venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.10 --no-build --no-annotate --custom-compile-command "make lock"
TOPOLOGY ?= topologies/two-racks.yaml
ARGS ?=
TESTS ?=
CASES ?=
JOBS ?= auto
SEED ?= 0
MINUTES ?=

.PHONY: help run test fuzz soak reliability placements papers recordings bench wheel docs cli-reference summary-reference lint lock stubs setup setup-test setup-lint setup-docs p4 clean

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' \
		| while IFS="$$(printf '\t')" read -r name text; do printf '%-17s %s\n' "$$name" "$$text"; done

run: setup ## the main job: two racks train on handwritten digits (TOPOLOGY=..., ARGS="--target embedded")
	@.venv/bin/rackhub run $(TOPOLOGY) $(ARGS)

test: setup-test ## every test (TESTS="tests/unit -k job", JOBS=1 for one at a time)
	@git ls-files '*.py' | $(PYTHON) -m compileall -q -i - # once, not in each of hundreds of processes
	@$(NAMESPACES) $(PYTHON) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(TESTS) # in the order of conftest.py

fuzz: setup-test ## look for inputs that break the embedded target, a worker or a server, MINUTES=10 (ARGS="aggregation server", ARGS=--coverage, ARGS=programs: against BMv2)
	@$(PYTHON) -m tests.fuzz --minutes $(or $(MINUTES),10) $(ARGS)

soak: setup-test ## long tests: 10^6 chunks, 10^6 hostile packets, 10^7 packets, every fault, MINUTES=20 of random ones (SEED=1)
	@RACKHUB_CHUNKS=1000000 RACKHUB_SEED=$(SEED) RACKHUB_HOSTILE=1000000 RACKHUB_HOSTILE_INTERFACES=100000 \
		RACKHUB_HOSTILE_HOSTS=100000 RACKHUB_HOSTILE_CALLS=10000 RACKHUB_PACKETS=10000000 $(NAMESPACES) $(PYTHON) -m pytest \
		tests/packet/jobs/test_protocol.py tests/packet/node/test_hostile.py tests/packet/test_memory_flat.py \
		tests/packet/controller/test_hostile_service.py tests/packet/p4runtime/test_hostile_p4runtime.py \
		tests/unit/hosts/test_hostile_hosts.py tests/unit/specs/test_hostile_files.py $(TESTS)
	@$(NAMESPACES) $(PYTHON) -m pytest -m soak $(TESTS)
	@.venv/bin/rackhub experiment reliability --soak $(or $(MINUTES),20) --seed $(SEED) $(ARGS)

reliability: setup ## have every fault happen, write docs/results/reliability.md (ARGS="--target embedded --target bmv2")
	@.venv/bin/rackhub experiment reliability --write docs/results/reliability.md $(ARGS)

placements: setup ## train with every placement of servers, write docs/results/placements.md (ARGS="--target embedded --target bmv2")
	@.venv/bin/rackhub experiment placements --write docs/results/placements.md $(ARGS)

papers: setup ## run all experiments that reproduce papers, write their pages into docs/results (ARGS=--emulated)
	@.venv/bin/rackhub experiment all --write docs/results $(ARGS)

bench: setup ## what the embedded target, BMv2, Linux and a loop that does nothing forward on one core (ARGS="--json")
	@.venv/bin/rackhub bench switch $(ARGS)

wheel: setup ## the embedded target by itself, rackhub-switch: dist/*.whl
	@rm -rf switch/build switch/*.egg-info # of sources that may be gone
	@$(PYTHON) -m pip wheel --quiet --no-deps --no-build-isolation -w dist ./switch
	@rm -rf switch/build switch/*.egg-info
	@ls dist/*.whl

docs: setup-docs ## the documentation site: site/index.html
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict # not --quiet, which hides warnings from --strict

cli-reference: setup ## write docs/reference/cli.md from the commands' own help
	@$(PYTHON) scripts/cli_reference.py

summary-reference: setup ## write the keys and the schema of summary.json from their model
	@$(PYTHON) scripts/summary_reference.py

lint: setup-lint docs ## format, style, types, layers, shell scripts, environments, merges, documentation
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy --num-workers auto
	@.venv/bin/mypy examples/*.py
	@.venv/bin/lint-imports --no-logo
	@shellcheck scripts/*.sh .ci/run
	@$(PYTHON) scripts/cli_reference.py --check
	@$(PYTHON) scripts/summary_reference.py --check
	@for each in .venv*; do $$each/bin/python -m pip --disable-pip-version-check check || exit; done
	@! git grep -nE '^(<{7}|>{7}) ' # what a merge left behind

setup: ## install what running needs (apt with sudo if need be, .venv)
	@scripts/setup.sh run

setup-test: ## install what testing needs, too
	@scripts/setup.sh test

setup-lint: ## install linters, too
	@scripts/setup.sh lint

setup-docs: ## install what builds the documentation, by itself
	@scripts/setup.sh docs

lock: setup-lint ## lock the newest versions of all Python packages, for every supported Python (requirements/)
	@$(LOCK) pyproject.toml --extra test --extra lint -o requirements/rackhub.txt
	@$(LOCK) requirements/shell.in -o requirements/shell.txt
	@$(LOCK) requirements/finsy.in -o requirements/finsy.txt
	@$(LOCK) requirements/docs.in -o requirements/docs.txt

stubs: setup-lint ## write the Python of P4Runtime and of protocol/*.proto (needs PyPI)
	@.venv/bin/uv run --quiet --script scripts/stubs.py

recordings: setup-test ## ask BMv2 anew what tests compare the embedded target with (CASES="stacks")
	@$(PYTHON) -m tests.packet.differential.recordings $(CASES)

p4: setup ## compile p4src/ and the benchmark's programs if sources changed; needs p4c
	@$(PYTHON) -m specs.p4program
	@$(PYTHON) -m benchmarks.forwarding.builds

clean: ## remove the venvs and caches; runs/ stays
	rm -rf dist site .venv .venv-shell .venv-finsy .venv-docs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
