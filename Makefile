# Everything runs in .venv, which the first target that needs it makes. PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
CAP ?= 4.5W
DEVICE ?= sim:jetson-nano
DEMO := .demo
TORCHLESS := .venv-without-torch

.PHONY: demo test test-without-torch check format benchmarks clean

# The stamp, not the folder, says that the installation went through.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

## The whole job on a simulated Jetson Nano: profile, estimate, plan, train, compare, report.
demo: .venv/installed
	rm -rf $(DEMO)
	mkdir $(DEMO)
	$(BIN)/wattune profile --device $(DEVICE) --output $(DEMO)/profile.json
	$(BIN)/wattune run --device $(DEVICE) --cap $(CAP) --profile $(DEMO)/profile.json --compare --output $(DEMO)/run

test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup

## The parts that need no torch, on another Python: make test-without-torch PYTHON=python3.13
test-without-torch:
	$(PYTHON) -m venv --clear $(TORCHLESS)
	$(TORCHLESS)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	$(TORCHLESS)/bin/pip install --quiet --disable-pip-version-check numpy plotly pydantic rich typer \
		httpx nvidia-ml-py packaging 'tomli; python_version < "3.11"' hypothesis jsonschema pytest
	$(TORCHLESS)/bin/pytest -m 'not slow' tests/test_records.py tests/planning tests/reporting tests/devices tests/agent \
		--ignore tests/devices/test_devices_believable.py
	rm -rf $(TORCHLESS)

check: .venv/installed
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --no-tips --violations -t=3.6- src/wattune_agent

format: .venv/installed
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/ruff check --fix src tests benchmarks examples

benchmarks: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks

clean:
	rm -rf .venv $(DEMO) build dist src/*.egg-info
