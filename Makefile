# Everything a developer or a build machine runs. `make help` lists the targets.

.DEFAULT_GOAL := help
.PHONY: help demo up test test-all test-rest setup lint format types imports interop simulate soak soak-spark fuzz bench bench-short demo-store docs clean

BIN := .venv/bin
# Python code outside the package; benchmarks and examples take part as soon as they exist.
AROUND := tests scripts $(wildcard benchmarks examples)
CODE := src $(AROUND)
# How far proofs go, quick or full, and what is passed to pytest: make test PYTEST_ARGS="-k recovery"
export PROOF ?= quick
PYTEST_ARGS ?= -n auto --dist worksteal
# Needs more than Python, or more than some seconds: the marks are in pyproject.toml.
REST := interop or spark or browser or go or node or slow

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' \
	    | while IFS="$$(printf '\t')" read -r name text; do printf '  %-11s %s\n' "$$name" "$$text"; done

demo: .venv/.spark  ## the first minute: a broker, a pipeline on Spark, an audit
	@$(BIN)/python examples/demo.py

up: .venv/.console  ## a whole RocketMQ on this machine, with its console; Ctrl-C stops it
	@$(BIN)/kourou up

test: lint imports  ## minutes: lint, import contracts, and every test that needs nothing but Python
	@$(BIN)/python -m pytest -m "not ($(REST))" $(PYTEST_ARGS)

test-all: test test-rest  ## test, and what needs Java, Maven, Go, Node, Chromium, Spark or time

test-rest: types  ## what test-all has beyond test
	@$(BIN)/python -m pytest -m "$(REST)" $(PYTEST_ARGS)

setup: .venv/.dev  ## .venv with everything for developers: 2 GB
	@:

# One .venv for all; a target installs the extra that it needs, once. `dev` has all of them.
BUILD := pyproject.toml hatch_build.py src/kourou/message/_batch_records.pyx
.venv/.%: $(BUILD) scripts/find_python.sh
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	    { python=$$(scripts/find_python.sh) && echo "Making .venv with $$python" && "$$python" -m venv --clear .venv; }
	@for file in $(BUILD); do [ .venv/.dev -nt $$file ] || stale=yes; done; \
	    if [ -z "$$stale" ]; then touch $@; exit; fi; \
	    echo "Installing kourou[$*] into .venv"; \
	    $(BIN)/python -m pip install --disable-pip-version-check --editable '.[$*]' && touch $@

lint: .venv/.test  ## ruff: rules and formatting
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)

format: .venv/.test  ## let ruff rewrite what it can
	@$(BIN)/ruff check --quiet --fix --exit-zero $(CODE) >/dev/null
	@$(BIN)/ruff format $(CODE)

imports: .venv/.test  ## the arrows between packages
	@$(BIN)/lint-imports --no-logo

types: setup  ## mypy, --strict for the package
	@$(BIN)/mypy --strict src
	@$(BIN)/mypy $(AROUND)

interop: setup  ## only the tests against the real Java code
	@$(BIN)/python -m pytest -m interop $(PYTEST_ARGS)

# make simulate SEED=7 ROUNDS=1 replays one; ROUNDS=0 goes on until Ctrl-C.
ROUNDS ?= 500
simulate: setup  ## the broker under faults in a world of its own; SEED=… ROUNDS=… (0: no end)
	@cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m simulator $(if $(SEED),--seed $(SEED)) --rounds $(ROUNDS)

# A seed gives the same faults in the same order; moments are the machine's.
MINUTES ?= 30
soak: setup  ## real processes under load and faults (as root with full disks too); MINUTES=… SEED=…
	@cd tests && ../$(BIN)/python -m chaos.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

soak-spark: setup  ## streams on Spark while brokers restart and its processes are killed; MINUTES=… SEED=… JAVA=1
	@cd tests && ../$(BIN)/python -m chaos.spark_soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(JAVA),--java)

# GUIDED=60 has atheris look for inputs that reach new code, for so many seconds each target.
FRAMES ?= 100000
FILES ?= 10000
EXPRESSIONS ?= 100000
GUIDED ?= 0
WORKERS ?= 1
fuzz: setup  ## frames, files and expressions that are nearly right; FRAMES=… FILES=… EXPRESSIONS=… GUIDED=… SEED=…
	@test $(GUIDED) = 0 || $(BIN)/python -c 'import atheris' 2>/dev/null || \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check atheris
	@cd tests && ../$(BIN)/python -m fuzz --frames $(FRAMES) --files $(FILES) --expressions $(EXPRESSIONS) \
	    --workers $(WORKERS) --guided $(GUIDED) $(if $(SEED),--seed $(SEED))

bench: setup  ## everything beside Java's, into results/ with a report (an hour; needs a JDK, Maven and Go)
	@$(BIN)/python -m benchmarks

# What a build machine does: right answers, and how near each mode comes to the limit. No time is asserted.
bench-short: setup  ## two minutes of load on Kourou's broker alone, beside its limit (needs Go)
	@$(BIN)/python -m benchmarks brokers --only kourou --rounds 1 --seconds 2 \
	    --modes send sendsync one batch pull tail topics holds flush

demo-store: .venv/.test  ## write a store, crash it, recover it and look inside
	@$(BIN)/python examples/demo_store.py

docs: setup  ## build the documentation site into build/site, with no warning, and check its links
	@$(BIN)/python scripts/check_links.py
	@$(BIN)/python scripts/make_reference.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean:  ## remove .venv, caches and what was built
	@rm -rf .venv build dist interop/target benchmarks/mqload/target tests/interop/go/target .grimp_cache .import_linter_cache .mypy_cache .pytest_cache \
	    .ruff_cache .hypothesis
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
