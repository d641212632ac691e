# `make demo` and `make test` need nothing installed before. `make help` lists the other targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# The first Python 3.11 or 3.12 that runs; a name on PATH may be a stub that does not.
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
BIN := .state/venv/bin
PY := $(BIN)/python
STACK := $(PY) -m stack
# Targets that need no set-up use the existing environment, or the system's Python.
STACK_AS_IS = $(if $(wildcard $(PY)),$(PY),"$(PYTHON)") -m stack

FORCED = $(if $(filter 1 yes true,$(FORCE)),--force)

.PHONY: help setup env up down status logs clean clean-all backup restore demo load test test-e2e test-unit test-long coverage faults cluster drill compose-test bench bench-guard check audit lock

help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

setup: ## install the virtual environment and the jars into .state/
	@if [ -z "$(PYTHON)" ]; then echo "setup: no Python 3.11 or 3.12 on PATH: install one, or make PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@"$(PYTHON)" -m stack.bootstrap

env: setup ## create .env with ports and secrets, if it is missing; docker compose reads it too
	@"$(PYTHON)" -m stack env

up: setup ## start Kafka, PostgreSQL, gateway, stream and Airflow, each after its dependencies are healthy
	@$(STACK) up

down: ## stop all services and keep the data
	@$(STACK_AS_IS) down

status: ## show each service with its address, health and log file
	@$(STACK_AS_IS) status

logs: ## print the end of every log; one service: make logs S=kafka; follow: make logs F=1
	@$(STACK_AS_IS) logs $(if $(F),--follow) $(S)

clean: ## stop all services, then remove the data; refused while accepted events wait, unless FORCE=1
	@$(STACK_AS_IS) clean $(FORCED)

clean-all: ## clean, then remove .state; the next run downloads again
	@$(STACK_AS_IS) clean $(FORCED)
	@rm -rf .state

backup: setup ## back up databases, archive, fallback store and .env while the stack runs: make backup TO=folder
	@$(STACK) backup $(if $(TO),"$(TO)")

restore: setup ## restore a backup while the stack is down: make restore FROM=folder
	@$(STACK) restore $(if $(FROM),"$(FROM)") $(FORCED)

demo: setup ## start the stack and walk through the pipeline, checking each step; another pipeline: make demo P=order_detail
	@$(STACK) up $(if $(P),--pipeline $(P))
	@$(PY) -m demo $(P)

load: up ## send the reference volume and wait until the view shows all of it
	@$(PY) -m demo.load

# Files go to the processes in their order: short ones, of tests/unit, come last, so that all end together. A process
# waits for its servers a third of its time, so three keep two cores busy; a whole stack needs the memory of two.
PYTEST = $(PY) -m pytest --dist loadfile --no-loadscope-reorder -n $(or $(PROCESSES),2)

test: PROCESSES = 3
test: setup ## run all tests except tests/e2e, in three processes; one test: make test T=file::name
	@$(if $(T),$(PY) -m pytest $(T),$(PYTEST) --ignore=tests/e2e)

test-e2e: setup ## run the end-to-end tests: Airflow and its pages in a browser, backups, tutorial, guide, rounds of faults
	@$(PYTEST) tests/e2e

test-unit: setup ## run the tests that start no server
	@$(PYTEST) -m "not servers"

test-long: setup ## run the files with tests that the two above leave out or shorten, in full
	@$(PYTEST) --long

coverage: setup ## run the tests that start no server, and print the lines they miss; all tests: make coverage T=tests
	@$(PYTEST) --cov --cov-report=term-missing:skip-covered $(or $(T),-m "not servers")

FAULTS = --rounds 20 --seed 7 $(if $(P),--pipeline $(P))

faults: setup ## run twenty seeded rounds of faults each against gateway, HTTP server, stream, batch and the order of questions; another pipeline: P=order_detail
	@$(PY) -m tests.faults.gateway $(FAULTS)
	@$(PY) -m tests.faults.clients $(FAULTS)
	@$(PY) -m tests.faults.stream $(FAULTS)
	@$(PY) -m tests.faults.stream $(FAULTS) --delivery exactly_once
	@$(PY) -m tests.faults.batch $(FAULTS)
	@$(PY) -m tests.faults.questions $(FAULTS)

cluster: setup ## fail three brokers, a database with a standby and a Spark cluster in every way under load; another pipeline: P=order_detail
	@$(PY) -m tests.faults.cluster $(if $(P),--pipeline $(P))
	@for version in $$($(PY) -m tests.support.older_brokers versions); do $(PY) -m tests.faults.cluster --kafka $$version $(if $(P),--pipeline $(P)) || exit 1; done
	@$(PY) -m tests.faults.failover
	@$(PY) -m tests.faults.failover --delivery exactly_once
	@$(PY) -m tests.faults.stream_on_cluster $(if $(P),--pipeline $(P))
	@$(PY) -m tests.faults.stream_on_brokers $(if $(P),--pipeline $(P))
	@$(PY) -m tests.faults.batch_on_cluster $(if $(P),--pipeline $(P))

drill: setup ## restore a stack of its own from a backup, and update it from an earlier commit and back, under load: FROM=commit
	@$(PY) -m tests.faults.drills $(if $(FROM),--ref $(FROM))

bench: setup ## measure gateway, stream and batch beside their peers, for an hour and a half at most; needs wrk, a JDK and a quiet machine
	@missed=; for each in gateway stream rebuild publish; do \
		$(PY) -m benchmarks.$$each || { code=$$?; [ $$code = 1 ] || exit $$code; missed="$$missed $$each"; }; \
	done; [ -z "$$missed" ] || { echo "failed, or missed a goal:$$missed"; exit 1; }

bench-guard: setup ## compare the cost of each hot path with benchmarks/guard.toml, for eight minutes; needs wrk, a JDK and a quiet machine
	@$(PY) -m benchmarks.guard $(N)

# Base images of the shell, else the official ones. DEBIAN_IMAGE=… builds stand-ins for them from that image first.
compose-test: setup ## build, fail, update and end the team deployment as containers; needs Docker and Compose 2
	@$(PY) -m tests.compose
	@$(if $(DEBIAN_IMAGE),images=$$($(PY) -m tests.compose.stand_ins --debian $(DEBIAN_IMAGE)) && export $$images &&) \
	$(PY) -m pytest -s tests/compose

check: setup ## check format, lint, types, import rules and generated documents
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(PY) -m stack.export --check

# Needs no set-up: Python alone, and the network.
audit: ## check the locked packages and jars for known vulnerabilities; needs the network
	@"$(PYTHON)" -m venv .state/audit
	@.state/audit/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
		-r requirements-audit.lock
	@status=0; \
	.state/audit/bin/pip-audit --require-hashes --disable-pip --progress-spinner off \
		-r requirements.lock -r requirements-build.lock -r requirements-local.lock -r requirements-audit.lock || status=1; \
	"$(PYTHON)" -m stack.jars audit stack/jars.lock benchmarks/stream/jars.lock || status=1; \
	exit $$status

lock: setup ## write the lock files of packages and jars; pins change only in requirements.txt; needs uv
	@for name in requirements requirements-build requirements-local requirements-audit; do \
		uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
			--custom-compile-command "make lock" --output-file $$name.lock $$name.txt || exit 1; done
	@$(PY) -m stack.jars lock
	@$(PY) -m benchmarks.stream.peers lock
	@$(PY) -m tests.support.older_brokers lock
