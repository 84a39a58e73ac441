# Everything runs in .venv, which the first target that needs it makes. PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
CAP ?= 4.5W
DEVICE ?= sim:jetson-nano
DEMO := .demo
TORCHLESS := .venv-without-torch
LOWEST := .venv-lowest
FLOWER := .venv-flower
AUDIT := .venv-audit

# Many processes are started: PYTHONDONTWRITEBYTECODE, as container images set it, would have each compile all it imports.
export PYTHONDONTWRITEBYTECODE=
# What a training step frees is kept for the next one. Given back, the kernel clears its pages again: a fifth of the time.
TRAINS := OMP_NUM_THREADS=1 MALLOC_TRIM_THRESHOLD_=536870912 MALLOC_MMAP_THRESHOLD_=33554432

.PHONY: demo paper paper-measured test test-slow test-exhaustive test-without-torch test-lowest test-newest test-aarch64 test-old-torch test-flower docs check audit format benchmarks clean

# The stamps, not the folder, say that an installation went through: of what runs, and of all that develops it.
.venv/runs: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch]'
	@touch $@

.venv/installed: .venv/runs
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

## The whole job on a simulated Jetson Nano: profile, estimate, plan, train, compare, report.
demo: .venv/runs
	rm -rf $(DEMO)
	mkdir $(DEMO)
	$(BIN)/wattune profile --device $(DEVICE) --output $(DEMO)/profile.json
	$(BIN)/wattune run --device $(DEVICE) --cap $(CAP) --profile $(DEMO)/profile.json --compare --output $(DEMO)/run

# A test that waits for ever ends at its timeout, with the stack that it waits in.
## Under four minutes on two cores; what takes a second each or loads a framework beside torch is left to test-slow.
test: .venv/installed
	$(TRAINS) $(BIN)/pytest -n 2 --dist loadgroup --timeout 300 -m 'not slow'

# Three at a time on two cores: many of them wait for a live board, a lease or another process. After a worker that was
# killed, xdist's new one may wait for ever.
## The slow tests.
test-slow: .venv/installed
	$(TRAINS) $(BIN)/pytest -n 3 --max-worker-restart 0 --dist loadgroup --timeout 1800 -m slow

## Before a release: the slow tests with all their kills, seeds and kinds, and properties on many other examples.
test-exhaustive: .venv/installed
	$(TRAINS) $(BIN)/pytest -n 3 --dist loadgroup --timeout 1800 -m 'slow or hypothesis' --exhaustive

## The parts that need no torch, on another Python: make test-without-torch PYTHON=python3.13
test-without-torch:
	$(PYTHON) -m venv --clear $(TORCHLESS)
	$(TORCHLESS)/bin/pip install --quiet --no-compile --disable-pip-version-check --no-deps -e .
	$(TORCHLESS)/bin/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt numpy pydantic rich typer \
		httpx scipy 'tomli; python_version < "3.11"' hypothesis \
		pytest pytest-timeout pytest-xdist
	$(TORCHLESS)/bin/pytest -n 2 --dist loadgroup --timeout 300 -m 'not slow' tests/test_records.py tests/planning tests/reporting tests/devices tests/agent \
		--ignore tests/devices/test_devices_believable.py
	rm -rf $(TORCHLESS)

# The tools that test are as new as elsewhere. The oldest torch warns of its own SequentialLR.
## The oldest releases that pyproject.toml allows, on the oldest Python: make test-lowest PYTHON=python3.10
test-lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[torch]'
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python -c constraints.txt \
		hypothesis pytest pytest-timeout pytest-xdist tqdm
	$(LOWEST)/bin/wattune plan --help > $(LOWEST)/help.txt
	$(TRAINS) $(LOWEST)/bin/pytest -n 2 --dist loadgroup --timeout 300 -m 'not slow' \
		-W 'ignore:The epoch parameter:UserWarning' \
		tests/test_records.py tests/planning tests/search tests/devices tests/loop
	rm -rf $(LOWEST)

## The newest Python and the newest release of everything, in a root of Debian's next release; needs to be root.
test-newest:
	.ci/newest

## What a board runs, on the instructions of its processor, emulated; needs to be root.
test-aarch64:
	.ci/aarch64

## Steps of programs seen by the Pythons and releases of torch that boards came with; 8 GB in WATTUNE_OLD_TORCH.
test-old-torch: .venv/installed
	OMP_NUM_THREADS=1 .ci/old-torch

# Flower asks for older releases of typer, rich, protobuf, fastapi and uvicorn than the rest is developed with. Torch and
# whatever else is in .venv comes from there, which saves minutes.
## The integration with Flower, in an environment of its own.
test-flower: .venv/installed
	$(PYTHON) -m venv --clear $(FLOWER)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$$($(FLOWER)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/overlay.pth"
	$(FLOWER)/bin/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[flower]'
	WATTUNE_REQUIRE_FLOWER=1 $(TRAINS) $(FLOWER)/bin/python -m pytest -n 2 --dist loadfile --timeout 300 tests/integrations/test_integrations_flower*.py

# The hook reads this checkout; NO_MKDOCS_2_WARNING silences an advertisement of the theme.
## The pages as a site with search and an API reference, in build/site. A broken link or any other warning is an error.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Without its cache: a stale one has called two unsorted imports sorted, and an empty machine found them.
check: .venv/installed
	$(BIN)/ruff format --check src tests benchmarks examples docs
	$(BIN)/ruff check --no-cache src tests benchmarks examples docs
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src tests benchmarks examples docs deploy *.md
	$(BIN)/vermin --quiet --no-tips --violations -t=3.6- src/wattune_agent src/wattune/program/hook
	-$(BIN)/python -m benchmarks.stale

# pip-audit looks releases up in the advisory database of PyPI, over the network. What it does not find there is an error
# (--strict) for the lower bounds; of what is installed, torch without CUDA is never found.
## Known vulnerabilities in the oldest releases that the server's lower bounds allow, and in what is installed.
audit: .venv/installed
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -m tests.support.lower_bounds server > $(AUDIT)/lower-bounds.txt
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --requirement $(AUDIT)/lower-bounds.txt
	$(BIN)/pip freeze --exclude-editable --disable-pip-version-check > $(AUDIT)/installed.txt
	$(AUDIT)/bin/pip-audit --no-deps --disable-pip --requirement $(AUDIT)/installed.txt

format: .venv/installed
	$(BIN)/ruff format src tests benchmarks examples docs
	$(BIN)/ruff check --fix src tests benchmarks examples docs

benchmarks: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks

## The evaluation of arXiv 2502.18323 on simulated boards, in benchmarks/paper/README.md.
paper: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks paper
	$(BIN)/python -m benchmarks readme

## Real trainings for it, up to three hours, on images and texts in DATA (see benchmarks/paper/README.md).
paper-measured: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks paper measured --data $(DATA)
	$(BIN)/python -m benchmarks readme

clean:
	rm -rf .venv $(FLOWER) $(AUDIT) $(DEMO) build dist src/*.egg-info
