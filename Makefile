# Everything a developer or a build machine runs. `make help` lists the targets.

.DEFAULT_GOAL := help
.PHONY: help setup test lint format types imports pytest interop simulate soak fuzz bench bench-short demo demo-store docs clean

BIN := .venv/bin
INSTALLED := .venv/.installed
# Python code outside the package; benchmarks and examples take part as soon as they exist.
AROUND := tests scripts $(wildcard benchmarks examples)
CODE := src $(AROUND)
# Passed to pytest: make test PYTEST_ARGS="-k recovery"
PYTEST_ARGS ?= -n auto --dist worksteal

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' \
	    | while IFS="$$(printf '\t')" read -r name text; do printf '  %-10s %s\n' "$$name" "$$text"; done

setup: $(INSTALLED)  ## create .venv with everything in it (does nothing when it is up to date)
	@:

$(INSTALLED): pyproject.toml scripts/find_python.sh
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	    { python=$$(scripts/find_python.sh) && echo "setup: .venv with $$python" && "$$python" -m venv --clear .venv; }
	@echo "setup: installing what pyproject.toml names"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

test: lint types imports pytest  ## lint, types, import contracts and all tests

lint: setup  ## ruff: rules and formatting
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)

format: setup  ## let ruff rewrite what it can
	@$(BIN)/ruff check --quiet --fix --exit-zero $(CODE) >/dev/null
	@$(BIN)/ruff format $(CODE)

types: setup  ## mypy, --strict for the package
	@$(BIN)/mypy --strict src
	@$(BIN)/mypy $(AROUND)

imports: setup  ## the arrows between packages
	@$(BIN)/lint-imports --no-logo

# On a build machine what fails beside others is tried once more alone: only what fails twice fails the run.
pytest: setup  ## only the tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS) || { status=$$?; [ "$$CI" = true ] && [ $$status = 1 ] || exit $$status; \
	    echo "Once more, one after the other, what failed:"; \
	    $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

interop: setup  ## only the tests against the real Java code
	@command -v java >/dev/null && command -v javac >/dev/null || \
	    { echo "make interop needs a JDK, version 17 (Debian: apt-get install openjdk-17-jdk-headless)" >&2; exit 1; }
	@$(BIN)/python -m pytest -m interop $(PYTEST_ARGS)

# make simulate SEED=7 ROUNDS=1 replays one; ROUNDS=0 goes on until Ctrl-C.
ROUNDS ?= 500
simulate: setup  ## the broker under faults in a world of its own; SEED=… ROUNDS=… (0: no end)
	@cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m simulator $(if $(SEED),--seed $(SEED)) --rounds $(ROUNDS)

# A seed gives the same faults in the same order; moments are the machine's.
MINUTES ?= 30
soak: setup  ## real processes under load and faults (as root with full disks too); MINUTES=… SEED=…
	@cd tests && ../$(BIN)/python -m chaos.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

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

demo: setup  ## the first minute: a broker, a pipeline on Spark (needs Java 17 or later), an audit
	@$(BIN)/python examples/demo.py

demo-store: setup  ## write a store, crash it, recover it and look inside
	@$(BIN)/python examples/demo_store.py

docs: setup  ## build the documentation site into build/site, with no warning, and check its links
	@$(BIN)/python scripts/check_links.py
	@$(BIN)/python scripts/make_reference.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean:  ## remove .venv, caches and what was built
	@rm -rf .venv build dist interop/target benchmarks/mqload/target tests/interop/go/target .grimp_cache .import_linter_cache .mypy_cache .pytest_cache \
	    .ruff_cache .hypothesis
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
