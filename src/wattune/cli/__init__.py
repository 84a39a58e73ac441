"""The command line: options in, records out, errors to one line and an exit code."""

from __future__ import annotations

from wattune.cli.main import main

__all__ = ["main"]
