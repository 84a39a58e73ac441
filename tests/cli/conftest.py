from __future__ import annotations

import pytest

from wattune.cli import main


@pytest.fixture
def wattune(capsys):
    """Call the command line in this process: (arguments) -> (exit code, stdout, lines of stderr)."""

    def call(*arguments: object) -> tuple[int, str, list[str]]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err.splitlines()

    return call
