# Needs make and Python 3.11 or later; everything else is installed into .venv.

# The first interpreter that is new enough. Each one is run, not only looked up: a version manager's
# shim can exist for a Python that is not there.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$python"; break; }; done)

BIN := .venv/bin
STAMP := .venv/.installed

# The tests start hundreds of processes; where the environment forbids bytecode files, each of them would
# compile Winch again, which takes longer than the rest of its start.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup with-pgbouncer demo test test-all conformance check format site site-look reference shots bench bench-picture chaos chaos-pairs django wagtail faktory clients frameworks mutations soak scale-in move-lab fuzz clean shop dist sdist-check notes matrix

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## create .venv with Winch and its tools

# Redone when pyproject.toml changes. The stamp is written last, so an interrupted install is redone.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later found; set PYTHON=/path/to/python" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev]'
	@touch $@

demo: setup ## a tour on SQLite: real jobs, a worker, nothing to install
	$(BIN)/winch demo

test: setup ## every test but the slow ones
	$(BIN)/python scripts/test_parts.py

# PgBouncer is no Python package. Where it cannot be installed its tests and faults fail; they do not hide.
PGBOUNCER := $(or $(WINCH_TEST_PGBOUNCER_BIN),/usr/sbin/pgbouncer)

with-pgbouncer: setup
	@test -x $(PGBOUNCER) || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends pgbouncer

test-all: with-pgbouncer ## every test, the slow ones too, then again with the oldest dependencies
	@command -v redis-server >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends redis-server
	@command -v strace >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends strace
	@command -v chromium >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends chromium
	@command -v node >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends nodejs
	@test -x $(BIN)/promtool || test "$$(id -u)" != 0 || scripts/promtool.sh $(BIN)
	@command -v systemd-analyze >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends systemd
	@command -v npm >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends npm
	@command -v go >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends golang-go
	@command -v java >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends default-jre-headless
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev,e2e,docs]'
	$(BIN)/python scripts/test_parts.py --slow
	$(BIN)/python scripts/oldest.py

conformance: setup ## what every storage driver must do
	$(BIN)/python scripts/conformance.py

check: setup ## format, lint, types by mypy and pyright, layers and the fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/public_types.py
	$(BIN)/python scripts/openapi_diff.py
	$(BIN)/python scripts/test_parts.py core

format: setup ## format, and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Beside the stamp of setup, so that only documentation needs the tools of the extra `docs`.
DOCS_STAMP := .venv/.docs-installed
$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev,docs]'
	@touch $@

site: $(DOCS_STAMP) ## the documentation into build/site/VERSION/, by two builders that both fail on a warning
	$(BIN)/python scripts/site.py

reference: setup ## the pages and diagrams that follow from the code: docs/reference, docs/lifecycle.md, docs/images/diagrams
	$(BIN)/python scripts/reference_pages.py
	$(BIN)/python scripts/lifecycle_page.py
	$(BIN)/python scripts/diagrams.py

# A browser is no Python package; see test-all.
site-look: site ## open every page of the built site in Chromium; screenshots go to build/site-look
	@command -v chromium >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends chromium
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev,e2e,docs]'
	$(BIN)/python -m pytest tests/docs/test_site.py -q

shots: setup ## pictures of the dashboard for README and docs: a real browser, real jobs
	@command -v chromium >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends chromium
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev,e2e]'
	$(BIN)/python scripts/screenshots.py
	$(BIN)/python scripts/screenshots.py --million build/shots/million
	WINCH_TEST_TASK_SHOTS=docs/images/tasks $(BIN)/python -m pytest tests/web/test_ten_tasks.py -q

STORE ?= sqlite
SECONDS ?= 60
shop: setup ## examples/shop under kills: STORE=sqlite|postgres|redis|redis+cluster SECONDS=60
	$(BIN)/python -m examples.shop.drive --store $(STORE) --seconds $(SECONDS)

django: setup ## Django's own tests of its tasks (5.2, 6.0, 6.1) with Winch as the backend, on every store; ONLY=6.1
	$(BIN)/python scripts/django_suite.py $(if $(ONLY),--only $(ONLY))
	$(BIN)/pytest tests/django -q

KILLS ?= 5
frameworks: setup ## the shops of FastAPI, Flask and Litestar, oldest and newest, under their servers and kill -9; ONLY=flask KILLS=5
	$(BIN)/python scripts/frameworks.py --kills $(KILLS) $(if $(ONLY),--only $(ONLY))

faktory: setup ## Faktory's own clients for Node and Python, unchanged, against `winch serve --faktory` on every store
	@command -v npm >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends npm
	$(BIN)/pytest tests/web/test_faktory_clients.py -q

clients: setup ## every SDK (Python, TypeScript, Go) against real servers on SQLite, PostgreSQL and Redis; ONLY='--languages go --stores sqlite'
	@command -v node >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends nodejs
	@command -v npm >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends npm
	@command -v go >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y --no-install-recommends golang-go
	$(BIN)/python -m scripts.clients $(ONLY)
	$(if $(ONLY),,$(BIN)/python -m scripts.clients --languages deno,bun --stores sqlite)
	$(if $(ONLY),,$(BIN)/pytest tests/clients -q -m slow --deselect tests/clients/test_scenarios.py::test_every_sdk_on_every_store)

wagtail: setup ## Wagtail's own tests that enqueue, with Winch as the backend of its tasks
	$(BIN)/python scripts/wagtail_suite.py

bench: setup ## Winch beside its peers, real servers; QUICK=1 the main rows, ONLY='pg drain' for one scenario, BESIDE=main for another commit
	$(BIN)/python -m bench $(if $(filter 1,$(QUICK)),--quick) $(if $(ONLY),--only '$(ONLY)') $(if $(BESIDE),--beside '$(BESIDE)')

bench-picture: setup ## the picture of README and docs/benchmarks.md, from the newest file in bench/results
	$(BIN)/python -m bench.picture

SEED ?= 1
AT_ONCE ?= $(if $(filter 1,$(QUICK)),1,2)
# All three are run, whatever the first two find; then their findings decide.
# With FAULTS only these are run, under the load of limits, rates, FIFO keys and tenants (LOAD=standard: jobs of
# every kind), and nothing is added to the results.
chaos: with-pgbouncer ## the reliability lab: every fault on every store; QUICK=1 nine of them; SEED=1; RESUME=1 what has not passed yet; FAULTS=F1,F3 LOAD=gated
ifdef FAULTS
	$(BIN)/python -m lab --seed $(SEED) --at-once $(AT_ONCE) --fault $(FAULTS) --load $(or $(LOAD),gated) \
		--journal build/chaos-faults.jsonl --logs build/chaos $(if $(filter 1,$(RESUME)),--resume)
else
	@failed=; \
	$(BIN)/python -m lab --seed $(SEED) --at-once $(AT_ONCE) $(if $(filter 1,$(QUICK)),--quick) --keep \
		--journal build/chaos.jsonl --logs build/chaos $(if $(filter 1,$(RESUME)),--resume) || failed=1; \
	$(BIN)/python -m lab.simulate $(if $(filter 1,$(QUICK)),2000,20000 --keep) --seed $(SEED) || failed=1; \
	$(BIN)/python -m lab.report || failed=1; test -z "$$failed"
endif

chaos-pairs: with-pgbouncer ## two faults at once, twelve pairs drawn from SEED
	$(BIN)/python -m lab --seed $(SEED) --pairs 12 --at-once $(AT_ONCE) --keep

mutations: with-pgbouncer ## take each safeguard out, one at a time: the lab must notice
	$(BIN)/python -m lab.mutations --keep; status=$$?; $(BIN)/python -m lab.report && exit $$status

MINUTES ?= 10
soak: setup ## faults of all kinds for MINUTES on STORE, watching memory, descriptors and connections
	$(BIN)/python -m lab.soak --store $(STORE) --minutes $(MINUTES) --keep; status=$$?; $(BIN)/python -m lab.report && exit $$status

move-lab: setup ## six moves between stores under load, with kills: nothing lost, nothing doubled, FIFO order kept; BACK=1 and back again
	$(BIN)/python -m lab.move --seed $(SEED) $(if $(filter 1,$(BACK)),--back)

scale-in: setup ## a simulated scaler removes 15 of 20 workers under load: no attempt is lost, no job runs twice
	$(BIN)/python -m lab.scale_in --store $(STORE) --seed $(SEED)

fuzz: setup ## feed malformed input to everything that parses input
	$(BIN)/python -m lab.fuzz

PYTHONS ?= 3.11,3.12,3.13,3.14
dist: setup ## wheel, source archive and bill of materials in dist/, built twice, checked, and run on each installed Python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[release]'
	$(BIN)/python -m scripts.release.dist --pythons $(PYTHONS)

notes: setup ## move the fragments of changes/ under VERSION=x.y.z in CHANGELOG.md and set the version
	@test -n "$(VERSION)" || { echo "name the version: make notes VERSION=0.2.0" >&2; exit 2; }
	$(BIN)/python -m scripts.release.notes $(VERSION)

matrix: setup ## each installed Python, PostgreSQL, Redis and Valkey of the support matrix; CELLS='postgres valkey-9'
	$(BIN)/python -m scripts.matrix $(CELLS)

sdist-check: setup ## `make check` in the unpacked source archive of `make dist`
	$(BIN)/python -m scripts.release.unpacked

clean: ## remove .venv, caches and build output
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist .coverage .coverage.*
	find src tests scripts bench lab -name __pycache__ -type d -prune -exec rm -rf {} +
