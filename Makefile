# `make demo` and `make test` do everything from nothing. `make help` says the rest.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# The first Python 3.11 or 3.12 that runs; a name on PATH may be a stub that does not.
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
BIN := .state/venv/bin
PY := $(BIN)/python
STACK := $(PY) -m stack
# What needs no set-up takes the environment that is there; stopping and cleaning up go without one too.
STACK_AS_IS = $(if $(wildcard $(PY)),$(PY),"$(PYTHON)") -m stack

FORCED = $(if $(filter 1 yes true,$(FORCE)),--force)

.PHONY: help setup env up down status logs clean clean-all backup restore demo load test test-e2e test-unit test-long coverage faults cluster drill compose-test bench bench-guard check audit lock

help: ## this list
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

setup: ## virtual environment and jars into .state/; seconds when they are there
	@if [ -z "$(PYTHON)" ]; then echo "setup: no Python 3.11 or 3.12 on PATH: install one, or make PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@"$(PYTHON)" -m stack.bootstrap

env: setup ## make .env, ports and secrets, if there is none; docker compose reads it too
	@"$(PYTHON)" -m stack.team.make_env

up: setup ## start Kafka, PostgreSQL, gateway, stream and Airflow, in the order of their health
	@$(STACK) up

down: ## stop them all and leave no process behind
	@$(STACK_AS_IS) down

status: ## what runs, where, healthy or not, log file
	@$(STACK_AS_IS) status

logs: ## the last lines of every log; one service: make logs S=kafka; follow: make logs F=1
	@$(STACK_AS_IS) logs $(if $(F),--follow) $(S)

clean: ## down, then remove the data; the environment, the jars and .env stay; accepted events that wait: FORCE=1
	@$(STACK_AS_IS) clean $(FORCED)

clean-all: ## clean, then remove .state altogether; the next run downloads again
	@$(STACK_AS_IS) clean $(FORCED)
	@rm -rf .state

backup: setup ## databases, archive, fallback store and .env, while the stack runs: make backup TO=folder
	@$(STACK) backup $(if $(TO),"$(TO)")

restore: setup ## a backup, when the stack is down: make restore FROM=folder
	@$(STACK) restore $(if $(FROM),"$(FROM)") $(FORCED)

demo: setup ## the story of board_detail, told and checked on the terminal; another pipeline's: make demo P=order_detail
	@$(STACK) up $(if $(P),--pipeline $(P))
	@$(PY) -m demo $(P)

load: up ## send the reference volume and wait until the view holds all of it
	@$(PY) -m demo.load

# Files go to the processes in their order: short ones, of tests/unit, come last, so that all end together. A process
# waits for its servers a third of its time, so three keep two cores busy; a whole stack needs the memory of two.
PYTEST = $(PY) -m pytest --dist loadfile --no-loadscope-reorder -n $(or $(PROCESSES),2)

test: PROCESSES = 3
test: setup ## all tests but those of tests/e2e, in three processes, each with its servers; one: make test T=file::name
	@$(if $(T),$(PY) -m pytest $(T),$(PYTEST) --ignore=tests/e2e)

test-e2e: setup ## the pipeline as a whole: Airflow and its pages in a browser, backups, tutorial and guide, rounds of faults
	@$(PYTEST) tests/e2e

test-unit: setup ## the tests that start no server
	@$(PYTEST) -m "not servers"

test-long: setup ## the files with tests that the two above leave out or shorten, in full
	@$(PYTEST) --long

coverage: setup ## the lines that the tests without servers run, of each file; all tests: make coverage T=tests
	@$(PYTEST) --cov --cov-report=term-missing:skip-covered $(or $(T),-m "not servers")

FAULTS = --rounds 20 --seed 7 $(if $(P),--pipeline $(P))

faults: setup ## twenty seeded rounds of faults each against gateway, its server, stream, batch and the order of questions; another pipeline: P=order_detail
	@$(PY) -m tests.faults.gateway $(FAULTS)
	@$(PY) -m tests.faults.clients $(FAULTS)
	@$(PY) -m tests.faults.stream $(FAULTS)
	@$(PY) -m tests.faults.batch $(FAULTS)
	@$(PY) -m tests.faults.questions $(FAULTS)

cluster: setup ## three brokers, a database with a standby and a Spark cluster, failed in every way under load; another pipeline: P=order_detail
	@$(PY) -m tests.faults.cluster $(if $(P),--pipeline $(P))
	@for version in $$($(PY) -m tests.support.older_brokers versions); do $(PY) -m tests.faults.cluster --kafka $$version $(if $(P),--pipeline $(P)) || exit 1; done
	@$(PY) -m tests.faults.failover
	@$(PY) -m tests.faults.stream_on_cluster $(if $(P),--pipeline $(P))
	@$(PY) -m tests.faults.batch_on_cluster $(if $(P),--pipeline $(P))

drill: setup ## a stack of its own restored from a backup, and updated from an earlier commit and back, under load: FROM=commit
	@$(PY) -m tests.faults.drills $(if $(FROM),--ref $(FROM))

bench: setup ## figures of gateway, stream and batch beside their peers, an hour and a half at most; needs wrk, a JDK and a quiet machine
	@$(PY) -m benchmarks.gateway
	@$(PY) -m benchmarks.stream
	@$(PY) -m benchmarks.rebuild
	@$(PY) -m benchmarks.publish

bench-guard: setup ## cost of each hot path relative to a peer, against benchmarks/guard.toml, eight minutes; needs wrk, a JDK and a quiet machine
	@$(PY) -m benchmarks.guard $(N)

# Base images of the shell, else the official ones. DEBIAN_IMAGE=… builds stand-ins for them from that image first.
compose-test: setup ## the team deployment as containers: built, failed, updated and ended; needs Docker and Compose 2
	@$(PY) -m tests.compose
	@$(if $(DEBIAN_IMAGE),images=$$($(PY) -m tests.compose.stand_ins --debian $(DEBIAN_IMAGE)) && export $$images &&) \
	$(PY) -m pytest -s tests/compose

check: setup ## format, lint, types, import rules, generated docs
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(PY) -m stack.export --check
	@$(PY) -m include.gateway.calls.openapi --check

# Needs no set-up: Python alone, and the network.
audit: ## known vulnerabilities of the locked packages and jars; needs the network
	@"$(PYTHON)" -m venv .state/audit
	@.state/audit/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
		-r requirements-audit.lock
	@status=0; \
	.state/audit/bin/pip-audit --require-hashes --disable-pip --progress-spinner off \
		-r requirements.lock -r requirements-build.lock -r requirements-local.lock -r requirements-audit.lock || status=1; \
	"$(PYTHON)" -m stack.jar_audit stack/jars.lock benchmarks/stream/jars.lock || status=1; \
	exit $$status

lock: setup ## make the lock files of packages and jars again; pins stay unless requirements.txt moves them; needs uv
	@for name in requirements requirements-build requirements-local requirements-audit; do \
		uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
			--custom-compile-command "make lock" --output-file $$name.lock $$name.txt || exit 1; done
	@$(PY) -m stack.jars lock
	@$(PY) -m benchmarks.stream.peers lock
	@$(PY) -m tests.support.older_brokers lock
