# Thin over deploy/: every target first makes the checkout ready (once), then runs one command.
VENV ?= .venv
export VENV
.DEFAULT_GOAL := help
.PHONY: help run test test-long pages docs deploy-check lint typecheck bench bench-peers faults soak release clean ready

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/'

ready:
	@deploy/bootstrap.sh

run: ready ## the demo: broker, clients, meter and job on this machine (DURATION=60 ends it after 60 s, FRESH=1 starts over, BROKERS=2)
	@exec $(VENV)/bin/kquota demo $(if $(DURATION),--duration $(DURATION)) $(if $(filter-out 0,$(FRESH)),--fresh) $(if $(BROKERS),--brokers $(BROKERS))

test: ready ## the test suite, with Spark and the real broker (ARGS="-k wheel" picks some)
	@exec deploy/test.sh $(ARGS)

test-long: ready ## the tests that take minutes: the pages with a demo running, an hour of decisions, thousands of sessions against Kafka's classes, kills
	@exec deploy/test.sh -m long --durations=15

pages: ready ## play every command of README and docs, also with a demo running (RENEW=1 writes what was printed into them)
	@exec env RENEW_PAGES=$(RENEW) deploy/test.sh tests/pages

docs: ready ## the site of docs/, in build/site/html: every link and anchor checked, nothing fetched when it is read
	@exec deploy/site.sh

deploy-check: ready ## the files of deploy/ against linters, schemas and the command line
	@exec deploy/check.sh $(ARGS)

lint: ready ## style, format, and which package may import which
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/lint-imports

typecheck: ready ## types, strictly
	@$(VENV)/bin/mypy

bench: ready ## the benchmarks, one table each
	@exec $(VENV)/bin/python -m bench $(ARGS)

bench-peers: ready ## other stream processors and ours; writes docs/peers.md (ARGS="--quick": in minutes)
	@exec $(VENV)/bin/python -m bench.peers --page docs/peers.md $(ARGS)

faults: ready ## kill the job at every failpoint, restart it, verify all it wrote (ARGS="--points usage.appended" picks some)
	@exec $(VENV)/bin/python -m tests.faults --report docs/faults.md $(ARGS)

soak: ready ## load, kills, a broker that comes and goes, edits and garbage for MINUTES=1.5, then the same verifier
	@exec $(VENV)/bin/python -m tests.soak --minutes $(or $(MINUTES),1.5) $(ARGS)

release: ready ## dist/: wheel, sources, the reporter's jar, lists of all parts (CycloneDX), checksums; built twice, equal to the byte
	@exec $(VENV)/bin/python -m deploy.release dist

clean: ## remove the environment and what tools left behind; the demo's data in .kquota stay
	@rm -rf $(VENV) build dist pipeline/meter/kquota-reporter.jar .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
