"""Commands whose packages are not installed: one line that says how to install them."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules[{missing!r}] = None  # as if it were not installed
from wattune.cli import main
sys.exit(main({arguments!r}))
"""


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("uvicorn", ["serve"]),
        ("sqlalchemy", ["token", "make", "lab", "--scope", "read"]),
        ("sqlalchemy", ["token", "list"]),
        ("alembic", ["store", "add", "workload.toml"]),
        ("alembic", ["store", "restore", "backup.tar", "folder"]),
    ],
)
def test_a_server_without_its_packages_says_how_to_install_them(missing, arguments, tmp_path):
    program = PROGRAM.format(missing=missing, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert missing in done.stderr
    assert "pip install 'wattune[server]'" in done.stderr
    assert list(tmp_path.iterdir()) == []
