"""The commands of a server: packages that are not installed, and stores that are not there, are one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from wattune.cli.store import opened_store
from wattune.errors import InputError

PROGRAM = """
import sys
sys.modules[{missing!r}] = None  # as if it were not installed
from wattune.cli import main
sys.exit(main({arguments!r}))
"""


@pytest.mark.slow
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


def test_a_store_whose_database_is_elsewhere_gets_no_second_one(tmp_path):
    (tmp_path / "lock").touch()  # a server was here
    for makes in (False, True):
        with pytest.raises(InputError, match="WATTUNE_DATABASE"):
            opened_store(tmp_path, None, makes=makes)
    assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]
    opened_store(tmp_path / "new", None, makes=True).close()
    with pytest.raises(InputError, match="--store"):
        opened_store(tmp_path / "none", None)
