# Needs python3 (3.11 or newer) and make; a C compiler for the compiled hot path; a JDK and Maven only for the tests that
# judge by Apache Kafka and Spark. For another Python, beside the first: make check PYTHON=python3.13 VENV=.venv-3.13
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
LISTEN  ?= 127.0.0.1:9092
DATA    ?= data
WORKERS ?= auto
ARGS    ?=
COMPILE ?= 1
SEED    ?= $(shell date +%s)
COMPILED := $(CURDIR)/$(VENV)/compiled
SOURCES := $(shell find kbroker -name '*.py')
# Python that is started with FAST finds the compiled code first, and what is only in the sources (tests, benchmarks)
# after it; with PLAIN it finds the sources first.
FAST    := PYTHONPATH=$(COMPILED):$(CURDIR) PYTHONSAFEPATH=1
PLAIN   := PYTHONPATH=$(CURDIR)
# Runs tests that failed once more, alone, and lists those that then passed.
TESTS   := $(BIN)/python -m tools.run_tests
COMPILED_TESTS := KBROKER_COMPILED=1 $(FAST) $(TESTS) -o pythonpath="$(COMPILED) ." --ignore tests/testing/test_docs.py
CHOSEN  := $(if $(filter-out 0,$(COMPILE)),$(FAST),$(PLAIN))

PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet install
LOCKED  := $(PIP) --require-hashes --no-build-isolation
LOCK    := $(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-header --no-emit-options \
           --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

.PHONY: help install install-test install-spark compiled run test check fast long other-pythons this-python shuffle kills chaos docs lint types bench wheel lock clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 18

install: $(VENV)/.installed $(if $(filter-out 0,$(COMPILE)),compiled) ## create .venv with kbroker in it, compiled (COMPILE=0: interpreted)

compiled: $(COMPILED)/.made ## compile the hot path for the kbroker in .venv

run: install ## start a broker on 127.0.0.1:9092 (LISTEN=host:port DATA=directory COMPILE=0 ARGS=...)
	@$(if $(filter 0,$(COMPILE)),$(PLAIN)) exec $(BIN)/kbroker serve --listen $(LISTEN) --data-dir $(DATA) $(ARGS)

check: lint types fast ## the fast half: ruff, mypy, tests without a JVM

fast: install-test ## the tests without a JVM
	$(BIN)/pytest tests -n $(WORKERS) -m "not jvm and not slow" -q $(ARGS)

# The second run forces what systems without epoll and Linux's sendfile get; the third takes the compiled hot path.
test: install-test install-spark compiled lint types ## everything: ruff, mypy, all tests, real clients, comparison with Apache Kafka
	$(BIN)/python -m tools.jars specs judge41 judge39 clients28 spark streams tables
	$(TESTS) -n $(WORKERS) --dist loadgroup $(ARGS)
	KBROKER_PORTABLE=1 $(TESTS) tests/server tests/broker compat_tests -n $(WORKERS) --dist loadgroup -q \
		-m "not jvm and not slow" $(ARGS)
	@test -z "$$CI" && ! ls $(COMPILED)/*.so >/dev/null 2>&1 && echo "skipped: the compiled hot path (no C compiler)" || \
		$(COMPILED_TESTS) tests/broker tests/testing compat_tests -n $(WORKERS) --dist loadgroup -q \
		-m "not jvm and not slow" $(ARGS)

# What depends most on the interpreter: the compiled code, sockets and signals, the command line, the fixtures.
other-pythons: install-test ## tests on every other supported Python that is found
	set -e; for python in $$($(BIN)/python -m tools.pythons); do \
		$(MAKE) --no-print-directory this-python PYTHON=$$python VENV=.venv-$${python##*python}; done

this-python: install-test compiled
	$(TESTS) tests/cli tests/client tests/deploy tests/tools -n $(WORKERS) -q -m "not jvm and not slow" $(ARGS)
	$(COMPILED_TESTS) tests/broker tests/testing -n $(WORKERS) -q -m "not jvm and not slow" $(ARGS)

# Finds tests that depend on another: each order comes from its seed, which pytest prints. ARGS wins: -n 0, -m "" for all.
shuffle: install-test ## tests in random order, those without a JVM (SEED=number ARGS=...)
	$(BIN)/pytest tests compat_tests -n 2 --dist loadgroup -m "not jvm" --shuffle $(SEED) $(ARGS)

long: install-test install-spark ## the tests that take minutes: chaos, further migrations, secured clusters, clients in Go
	$(BIN)/python -m tools.jars judge41 judge39
	$(TESTS) --long -n $(WORKERS) --dist loadgroup $(ARGS)

# The suite kills twice; this takes a quarter of an hour.
kills: install-test install-spark ## kill -9 of a pipeline's driver and broker, twenty times (KBROKER_SEED=number)
	$(BIN)/python -m tools.jars spark tables
	KBROKER_KILLS=20 $(BIN)/pytest tests/pipeline/test_kills.py -n 0 -s -o faulthandler_timeout=3600 $(ARGS)

# `make long` takes one step; this takes half an hour.
chaos: install-test ## transactions while brokers die and partitions move, twenty steps (KBROKER_STEPS KBROKER_SEED)
	$(BIN)/python -m tools.jars judge41
	KBROKER_STEPS=$${KBROKER_STEPS:-20} $(BIN)/pytest --long tests/cluster/test_chaos.py -n 0 -s -o faulthandler_timeout=3600 $(ARGS)

docs: install-test ## regenerate the generated pages of docs/
	$(BIN)/python -m tools.compatibility
	$(BIN)/python -m tools.cli_docs
	$(BIN)/python -m tools.configuration
	$(BIN)/python -m tools.metrics

lint: install-test ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: install-test ## mypy, strict
	$(BIN)/mypy

bench: install-test install-spark compiled ## benchmarks against Apache Kafka (COMPILE=0: with the hot path interpreted)
	$(BIN)/python -m tools.jars judge41 spark tables
	$(CHOSEN) $(BIN)/python -m benchmarks $(ARGS)

wheel: install-test $(VENV)/.compile ## dist/: a compiled wheel for this Python, and the source distribution (COMPILE=0: pure Python)
	KBROKER_COMPILE=$(COMPILE) $(BIN)/python -m build --no-isolation --outdir dist

lock: install-test ## regenerate the lock files in requirements/
	$(PIP) "pip-tools>=7.4"
	$(LOCK) --upgrade -o requirements/build.lock requirements/build.in
	$(LOCK) --upgrade -o requirements/core.lock pyproject.toml
	$(LOCK) --upgrade --extra test -c requirements/core.lock -o requirements/test.lock pyproject.toml
	$(LOCK) --upgrade --extra tls -c requirements/test.lock -o requirements/tls.lock pyproject.toml
	$(LOCK) --upgrade -c requirements/test.lock -o requirements/compile.lock requirements/compile.in
	$(LOCK) --upgrade -o requirements/spark.lock requirements/spark.in

clean: ## remove all build results, and the data of make run
	rm -rf .venv* .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist data *.egg-info

install-test: $(VENV)/.installed-test
install-spark: $(VENV)/.installed-spark

# Sources without wheels (crcmod, pyspark) are built with the setuptools of the lock, never with one fetched unseen.
$(VENV)/.build: requirements/build.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kbroker needs Python 3.11 or newer: make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(LOCKED) -r requirements/build.lock
	@touch $@

$(VENV)/.core: requirements/core.lock $(VENV)/.build
	$(LOCKED) -r requirements/core.lock
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.core
	$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.compile: requirements/compile.lock $(VENV)/.build
	$(LOCKED) -r requirements/compile.lock
	@touch $@

# A file in the environment puts the compiled code before the sources of the editable installation.
$(COMPILED)/.made: setup.py pyproject.toml $(SOURCES) $(VENV)/.core $(VENV)/.compile
	@echo "compiling the hot path: about a minute (COMPILE=0 does without)"
	rm -rf build $(COMPILED)
	$(PIP) --no-build-isolation --no-deps --target $(COMPILED) . || { echo "make ... COMPILE=0 does without" >&2; exit 1; }
	@path=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/kbroker-compiled.pth; \
	if ls $(COMPILED)/*.so >/dev/null 2>&1; then echo $(COMPILED) >"$$path"; \
	else rm -f "$$path"; echo "no C compiler, or no Python.h: kbroker runs interpreted, which is slower" >&2; fi
	@touch $@

$(VENV)/.installed-test: requirements/test.lock $(VENV)/.installed
	$(LOCKED) -r requirements/test.lock
	@touch $@

$(VENV)/.installed-spark: requirements/spark.lock $(VENV)/.installed
	$(LOCKED) -r requirements/spark.lock
	@touch $@
