"""Packages that only some commands need: where one is missing, a line that says how it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wattune.errors import InputError


@contextmanager
def server_extra() -> Iterator[None]:
    """Around the imports of a server's parts. Raises: InputError where a package that they need is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "wattune":
            raise
        raise InputError("a server needs more", value=error.name, hint="pip install 'wattune[server]'") from error
