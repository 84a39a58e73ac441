"""Tests that share a fixture of their module run in one process, which makes it once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import os
import pytest

@pytest.fixture(scope="module")
def made():
    with open({made!r}, "a") as file:
        print("made", file=file)

@pytest.mark.parametrize("number", range(8))
def test_with_it(made, number):
    pass

@pytest.mark.parametrize("number", range(8))
def test_without_it(number):
    with open({others!r}, "a") as file:
        print(os.getpid(), file=file)
"""


@pytest.mark.slow
def test_a_fixture_of_a_module_is_made_once(tmp_path):
    made, others = tmp_path / "made", tmp_path / "others"
    (tmp_path / "test_it.py").write_text(MODULE.format(made=str(made), others=str(others)))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    exhaustive:\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-n", "2", "--dist", "loadgroup", "test_it.py"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "16 passed" in done.stdout, done.stdout + done.stderr
    assert made.read_text().splitlines() == ["made"]
    assert len(set(others.read_text().split())) == 2
