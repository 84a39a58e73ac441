# Everything runs in .venv, which the first target that needs it makes. PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
CAP ?= 4.5W
DEVICE ?= sim:jetson-nano
DEMO := .demo

.PHONY: demo test check format benchmarks clean

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

check: .venv/installed
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/ruff check --fix src tests benchmarks examples

benchmarks: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks

clean:
	rm -rf .venv $(DEMO) build dist src/*.egg-info
