"""One table of a workload file: its keys, and the values that are paths, files on the web, names or objects."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from wattune.errors import WorkloadError
from wattune.workloads.downloads import Download, File


def known_keys(where: str, table: object, keys: Iterable[str] | None, *, needed: Iterable[str] = ()) -> dict[str, Any]:
    """``table``, if it is one and has these keys and no other. Raises: WorkloadError."""
    if not isinstance(table, dict):
        raise WorkloadError(where, value=table, allowed="a table")
    if keys is not None and (unknown := [key for key in table if key not in keys]):
        raise WorkloadError(f"unknown key in {where}", value=unknown[0], allowed=", ".join(keys))
    for key in needed:
        if key not in table:
            raise WorkloadError(f"{key} is missing in {where}", hint="see docs/workload-file.md")
    return table


def path_value(what: str, value: object, folder: Path) -> Path:
    """A path, relative to the workload file's folder. Raises: WorkloadError."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise WorkloadError(what, value=value, allowed="a path")
    return folder / Path(value).expanduser()


def file_value(what: str, value: object, folder: Path) -> File:
    """A path, or ``{ url = "...", checksum = "..." }``. Raises: WorkloadError."""
    if isinstance(value, dict):
        return Download(**known_keys(what, value, ("url", "checksum"), needed=("url", "checksum")))
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        raise WorkloadError(
            f"{what}: an address without a checksum",
            value=value,
            allowed='a path, or { url = "...", checksum = "sha256:..." }',
        )
    return path_value(what, value, folder)


def names_value(what: str, value: object) -> tuple[str, ...]:
    """A list of names. Raises: WorkloadError."""
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise WorkloadError(what, value=value, allowed='a list of names, such as ["fc"]')
    return tuple(value)


def find(text: object, what: str) -> Callable[..., Any]:
    """The object that "package.module:name" stands for. Raises: WorkloadError."""
    if not isinstance(text, str) or text.count(":") != 1:
        raise WorkloadError(what, value=text, allowed='"package.module:name"')
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # the user's module may raise anything
        raise WorkloadError(f"{what}: cannot import {text}", value=f"{type(error).__name__}: {error}") from error
    if not callable(found):
        raise WorkloadError(f"{what}: {text}", value=type(found).__name__, allowed="something that can be called")
    return found  # type: ignore[no-any-return]
