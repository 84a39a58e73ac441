from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.board_records import unpack

from wattune.cli import main


@pytest.fixture
def wattune(capsys):
    """Call the command line in this process: (arguments) -> (exit code, stdout, lines of stderr)."""

    def call(*arguments: object) -> tuple[int, str, list[str]]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err.splitlines()

    return call


@pytest.fixture
def refused(wattune):
    """Call what is refused: (arguments) -> the one line that says why; with exit code 2, and nothing on stdout."""

    def call(*arguments: object) -> str:
        code, out, err = wattune(*arguments)
        assert (code, out, len(err)) == (2, "", 1), (out, err)
        return err[0]

    return call


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files of an Orin Nano, which do not move."""
    return unpack("orin-nano-jp6", tmp_path / "board")
