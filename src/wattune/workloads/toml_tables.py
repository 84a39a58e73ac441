"""Tables of a workload file: their keys, and values that are paths, names or objects."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from wattune.errors import WorkloadError


def known_keys(
    where: str, table: object, keys: Iterable[str] | None, *, required: Iterable[str] = ()
) -> dict[str, Any]:
    """Return ``table`` if it has no keys but these and all that are needed. Raises: WorkloadError."""
    if not isinstance(table, dict):
        raise WorkloadError(where, value=table, allowed="a table")
    if keys is not None and (unknown := [key for key in table if key not in keys]):
        raise WorkloadError(f"unknown key in {where}", value=unknown[0], allowed=", ".join(keys))
    for key in required:
        if key not in table:
            raise WorkloadError(f"{key} is missing in {where}", hint="see docs/workload-file.md")
    return table


def path_value(what: str, value: object, folder: Path) -> Path:
    """Return a path relative to the workload file's folder. Raises: WorkloadError."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise WorkloadError(what, value=value, allowed="a path")
    return folder / Path(value).expanduser()


def names_value(what: str, value: object) -> tuple[str, ...]:
    """Return a list of names as a tuple. Raises: WorkloadError."""
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise WorkloadError(what, value=value, allowed='a list of names, such as ["fc"]')
    return tuple(value)


def find(text: object, what: str) -> Callable[..., Any]:
    """Import the object named "package.module:name". Raises: WorkloadError."""
    if not isinstance(text, str) or text.count(":") != 1:
        raise WorkloadError(what, value=text, allowed='"package.module:name"')
    module, _, name = text.partition(":")
    try:
        target = getattr(importlib.import_module(module), name)
    except Exception as error:  # the user's module may raise anything
        raise WorkloadError(f"{what}: cannot import {text}", value=f"{type(error).__name__}: {error}") from error
    if not callable(target):
        raise WorkloadError(f"{what}: {text}", value=type(target).__name__, allowed="a callable")
    return target  # type: ignore[no-any-return]
