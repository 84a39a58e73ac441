"""Packages that are not installed or too old are one line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules[{missing!r}] = None  # as if it were not installed
from wattune.cli import main
sys.exit(main({arguments!r}))
"""


def started(program, folder, **environment):
    environment = {**os.environ, **environment}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "extra", "arguments"),
    [
        ("torch", "torch", ["run", "--device", "sim:jetson-nano", "--cap", "4.5W"]),
        ("torch", "torch", ["profile", "--device", "sim:jetson-nano"]),
        ("torch", "torch", ["estimate"]),
        ("sklearn", "torch", ["estimate"]),
        ("uvicorn", "server", ["serve", "--demo"]),
    ],
)
def test_a_command_without_its_packages_says_how_to_install_them(missing, extra, arguments, tmp_path):
    done = started(PROGRAM.format(missing=missing, arguments=arguments), tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert {"sklearn": "scikit-learn"}.get(missing, missing) in done.stderr
    assert f"pip install 'wattune[{extra}]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "is_taken"),
    [
        ("2.3.0", False),
        ("1.10.2", False),
        ("2.4.0a0+3bcc3cddb5.nv24.07", True),  # NVIDIA's build for JetPack 6.0
        ("2.4.0", True),
        ("10.0", True),
    ],
)
def test_a_torch_that_is_too_old_is_one_line(release, is_taken, tmp_path):
    metadata = tmp_path / "packages" / f"torch-{release}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {release}\n")
    command = ["profile", "missing.toml", "--device", "sim:jetson-nano"]
    program = f"import sys; from wattune.cli import main; sys.exit(main({command!r}))"
    done = started(program, tmp_path, PYTHONPATH=str(metadata.parent.parent))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert ("torch is too old" not in done.stderr) == is_taken
    assert (release in done.stderr) != is_taken
