# dpquery. `make` lists the targets; every target sets up what it needs.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

unexport PYTHONDONTWRITEBYTECODE # else every process of the tests compiles all modules anew

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test near night mistakes test-all trust audit lock docs docs-site check lint types bench-strategies bench-plans bench-tuning bench-thresholds bench-rap bench-closest bench-answers bench-postprocess bench-accounting bench-adaptive bench-derived bench-noise bench-persons bench-replace bench-sources bench-engines bench-expect pipeline clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(READY) ## set up .venv with dpquery and the development tools

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' # the first to know groups
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --editable . --group dev
	@touch $@

# --- the main job on the sample data -------------------------------------------------------------
# The demo keeps a ledger of its own beside its files, so that trying it out charges nobody's budget.

demo: $(READY) ## plan, release and report on sample_data/: leaves release/ to look at
	DPQUERY_LEDGER=$(CURDIR)/.demo/ledger.db $(BIN)/dpquery plan workloads/sample_persons.yaml --epsilon 1
	DPQUERY_LEDGER=$(CURDIR)/.demo/ledger.db $(BIN)/dpquery release sample_data/persons.csv --epsilon 1 --replace
	$(BIN)/dpquery error-report

# --- a pipeline of your own: copy these rules ------------------------------------------------------
# release.json is written last, so it is the target to depend on. Making it again is free: the ledger
# holds the noisy measurements and the files come out byte for byte the same.

pipeline: build/report.html ## the same job as Make rules, in build/

build/dpquery.plan: workloads/sample_persons.yaml $(READY)
	@mkdir -p build
	$(BIN)/dpquery plan $< --out $@ --ledger $(CURDIR)/.demo/ledger.db

build/release/release.json: sample_data/persons.csv build/dpquery.plan
	$(BIN)/dpquery release $< --plan build/dpquery.plan --epsilon 1 --out $(@D) --replace \
	    --ledger $(CURDIR)/.demo/ledger.db

build/report.html: build/release/release.json
	$(BIN)/dpquery error-report $(<D) --html $@

# --- showcases: releases in the shape of known ones, of made-up records; docs/showcases.md -----------
# Each makes its records, plans, releases, reports and packs in build/showcases/, with a ledger there.

.PHONY: showcases showcase-redistricting showcase-earnings showcase-births showcase-broadband

showcases: showcase-redistricting showcase-earnings showcase-births showcase-broadband ## all four showcases

showcase-redistricting: EPSILON := 17.14
showcase-redistricting: build/showcases/redistricting/records.csv ## redistricting tables for nation, states, counties, tracts: a minute
	$(SHOWCASE)

showcase-earnings: EPSILON := 1.5
showcase-earnings: build/showcases/earnings/records.csv ## quartiles of earnings by institution and field
	$(SHOWCASE)

showcase-births: EPSILON := 9.98
showcase-births: build/showcases/births/records.csv ## births: every two-way table, means of weight and parity
	$(SHOWCASE)

showcase-broadband: EPSILON := 1
showcase-broadband: build/showcases/broadband/records.csv ## broadband shares by postal code, county and state
	$(SHOWCASE)

SHOWN  = $(@:showcase-%=%)
FOLDER = build/showcases/$(SHOWN)
SHOWCASE_LEDGER = --ledger $(CURDIR)/build/showcases/ledger.db

build/showcases/%/records.csv: sample_data/make_showcases.py $(READY)
	$(BIN)/python $< $* $@

define SHOWCASE
$(BIN)/dpquery plan workloads/$(SHOWN).yaml --epsilon $(EPSILON) --mechanism linear --out $(FOLDER)/dpquery.plan $(SHOWCASE_LEDGER)
$(BIN)/dpquery release $(FOLDER)/records.csv --plan $(FOLDER)/dpquery.plan --epsilon $(EPSILON) --out $(FOLDER)/release --replace $(SHOWCASE_LEDGER)
$(BIN)/dpquery error-report $(FOLDER)/release --html $(FOLDER)/report.html
$(BIN)/dpquery package $(FOLDER)/release --out $(FOLDER)/package --also csv --replace
endef

# --- development -----------------------------------------------------------------------------------

# Tests are shared out over at most four cores; one that has none left takes some of another one's.
CORES := -n auto --maxprocesses 4 --dist worksteal

test: $(READY) ## the tests of every day: four minutes of two cores
	$(BIN)/pytest -q $(CORES)

near: $(READY) ## the tests that execute what differs from BASE, cheapest first: a minute at most
	$(BIN)/python tests/mistakes/run.py near $(or $(BASE),HEAD)

ENGINES := $(VENV)/.engines

$(ENGINES): $(READY) # Spark and its Connect; its Java 17 and PostgreSQL's server are the system's packages
	$(BIN)/pip install --quiet --disable-pip-version-check 'pyspark[connect]>=4.3,<4.4'
	@touch $@

night: $(READY) $(ENGINES) ## every test but the slowest, and the map of what each executes, for `make near`
	rm -rf build/executed
	$(BIN)/pytest -q $(CORES) -p mistakes.executed -m 'not slow'

mistakes: $(READY) ## mistakes made by rule, 80 drawn by the date, after `make night`: an hour of a core
	$(BIN)/python tests/mistakes/machine.py 80

test-all: $(READY) ## every test, the slow ones too
	$(BIN)/pytest -q $(CORES) -m ''

audit: $(READY) ## the audit of the installed versions in its short form
	$(BIN)/dpquery audit --quick

trust: $(READY) ## all that speaks for dpquery in one table: the audit, hostile input, crashes, planted mistakes
	$(BIN)/python tests/house/trust.py

lint: $(READY) ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy, strict
	$(BIN)/mypy

check: lint types audit test ## what CI runs: lint, types, the short audit, tests

docs: $(READY) ## write what comes from the table of fields: the spec's reference page, the starter
	$(BIN)/python -c 'from pathlib import Path; from dpquery.spec.documents import STARTER, reference; \
	    Path("dpquery/docs/spec.md").write_text(reference(), encoding="utf-8"); \
	    Path("workloads/starter.yaml").write_text(STARTER, encoding="utf-8")'

docs-site: $(READY) ## the pages as a site, in build/site/
	$(BIN)/pip install --quiet --disable-pip-version-check --group docs
	rm -rf build/pages && mkdir -p build/pages && cp dpquery/docs/*.md dpquery/docs/*.png build/pages
	$(BIN)/mkdocs build --quiet --config-file dpquery/docs/mkdocs.yml --site-dir ../../build/site

# pip-tools lives in a folder of its own that goes away again: dpquery needs none of it.
lock: ## lock the newest versions of all dependencies by their hashes (needs Python 3.11)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check pip-tools
	CUSTOM_COMPILE_COMMAND='make lock' build/lock/bin/pip-compile --quiet --upgrade --strip-extras \
	    --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
	    --output-file dpquery/audit/requirements.txt pyproject.toml
	rm -rf build/lock

# Small matrices: threads that wait for each other take most of the time.
BENCH := OPENBLAS_NUM_THREADS=1 PYTHONPATH=tests/harness $(BIN)/python

bench-strategies: $(READY) ## our errors against the published ones and the bound: half an hour
	$(BENCH) tests/bench/bench_strategies.py
	$(BENCH) tests/bench/bench_office.py
	$(BENCH) tests/bench/bench_unions.py

bench-plans: $(READY) ## CPU seconds of plan for the shipped specs: until its choice was at hand, and in all
	$(BENCH) tests/bench/bench_plans.py

bench-tuning: $(READY) ## what a weight on a part of a workload does to the rest
	$(BENCH) tests/bench/bench_tuning.py

bench-thresholds: $(READY) ## thresholds on Adult: planned, measured and simulated errors
	$(BENCH) tests/bench/bench_thresholds.py

bench-rap: $(READY) ## RAP on Adult against published runs, and later questions (plots bench/future.html)
	@mkdir -p bench
	$(BENCH) tests/bench/bench_rap.py
	$(BENCH) tests/bench/bench_future.py bench/future.json bench/future.html

bench-closest: $(READY) ## what `prefer: closest` takes, judged on ten data sets (needs the extra bench): an hour
	$(BENCH) tests/bench/bench_choice.py

bench-expect: $(READY) ## how often plan expects the verdict of the report, on 81 data sets (needs the extra bench)
	$(BENCH) tests/bench/bench_expect.py

bench-answers: $(READY) ## 126 million answers, from the file to Parquet, stage by stage
	$(BENCH) tests/bench/bench_answers.py

bench-postprocess: $(READY) ## what the columns beside the estimates gain on Adult
	$(BENCH) tests/bench/bench_postprocess.py

bench-adaptive: $(READY) ## adaptive whole tables beside linear releases and AIM (needs the extra bench): hours, and it goes on where it stopped
	$(BENCH) tests/bench/bench_adaptive.py

bench-derived: $(READY) ## how often intervals of shares, means, differences and quantiles hold the truth
	$(BENCH) tests/bench/bench_derived.py

bench-accounting: $(READY) ## sigma by every accounting, for 1, 4 and 16 releases of one budget
	$(BENCH) tests/bench/bench_accounting.py

bench-noise: $(READY) ## draws of exact noise a CPU second
	$(BENCH) tests/bench/bench_noise.py

bench-sources: $(READY) ## 10 million rows from every kind of source, beside pyarrow, DuckDB and polars
	$(BENCH) tests/bench/bench_sources.py

bench-engines: $(READY) $(ENGINES) ## the sample's rows on every engine, beside its own group-by
	$(BENCH) tests/bench/bench_engines.py

bench-replace: $(READY) ## replace-one neighbours: noise now over what was drawn before, on the shipped workloads
	$(BENCH) tests/bench/bench_replace.py

bench-persons: $(READY) ## what persons cost beside rows, at 10 million rows
	$(BENCH) tests/bench/bench_persons.py

clean: ## remove what the demo and the pipeline made (never a ledger of yours)
	rm -rf build release report.html dpquery.plan
