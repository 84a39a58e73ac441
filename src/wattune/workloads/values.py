"""Checks of single values from the user, and the tables of a workload file; every error is one line."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from wattune import units
from wattune.errors import UnknownName, WorkloadError, did_you_mean
from wattune.extras import missing_package

AUTO_SHARE = 0.8
"""Share that the target "auto" stands for: the best one on some recorded runs, see docs/decisions/0015."""


def whole(what: str, value: object, *, least: int = 1) -> int:
    """Return ``value`` if it is a whole number. Raises: WorkloadError."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise WorkloadError(what, value=value, allowed=f"a whole number, {least} or more")
    return int(value)


def whole_numbers(what: str, values: Iterable[int]) -> tuple[int, ...]:
    """Return ``values`` as a tuple if they are whole numbers from 1. Raises: WorkloadError."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise WorkloadError(what, value=values, allowed="a list of whole numbers")
    return tuple(whole(what, value) for value in values)


def number(
    what: str, value: object, *, least: float = -math.inf, above: float = -math.inf, below: float = math.inf
) -> float:
    """Return ``value`` if it is a finite number within the bounds. Raises: WorkloadError."""
    fits = not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
    if not fits or not (value >= least and above < value < below):  # type: ignore[operator]
        bounds = [f"at least {least:g}"] * (least > -math.inf) + [f"above {above:g}"] * (above > -math.inf)
        raise WorkloadError(
            what, value=value, allowed=", ".join(["a number", *bounds, *[f"below {below:g}"] * (below < math.inf)])
        )
    return float(value)  # type: ignore[arg-type]


def plateau_share(value: str) -> float:
    """Read a target that is a share of the way to the plateau: "auto" or such as "90%". Raises: WorkloadError."""
    share = AUTO_SHARE if value == "auto" else units.read(value, "share") if value.endswith("%") else None
    if share is None or not 0 < share < 1:
        allowed = (
            'a number; of a proxy also "auto", or a share of the way to its plateau from 0% to 100%, such as "90%"'
        )
        raise WorkloadError("target", value=value, allowed=allowed)
    return share


def flag(what: str, value: object) -> bool:
    """Return ``value`` if it is a Boolean. Raises: WorkloadError."""
    if not isinstance(value, bool):
        raise WorkloadError(what, value=value, allowed="true or false")
    return value


def choice(kind: str, value: object, names: Iterable[str]) -> str:
    """Return ``value`` if it is one of the names. Raises: UnknownName."""
    if not isinstance(value, str) or value not in names:
        raise UnknownName(kind, value if isinstance(value, str) else repr(value), names)
    return value


def attempt(problem: str, function: Callable[[], Any]) -> Any:
    """Call a function that may raise anything.

    Raises: WorkloadError in place of its exception; InputError for a package of an extra that is not installed.
    """
    try:
        return function()
    except WorkloadError:
        raise
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is not None:
            raise missing from error
        raise WorkloadError(problem, value=f"{type(error).__name__}: {error}") from error
    except Exception as error:  # the user's code, or a library's
        raise WorkloadError(problem, value=f"{type(error).__name__}: {error}") from error


def known_keys(
    where: str, table: object, keys: Iterable[str] | None, *, required: Iterable[str] = ()
) -> dict[str, Any]:
    """Return ``table`` if it has no keys but these and all that are needed. Raises: WorkloadError."""
    if not isinstance(table, dict):
        raise WorkloadError(where, value=table, allowed="a table")
    if keys is not None and (unknown := [key for key in table if key not in keys]):
        hint = did_you_mean(str(unknown[0]), keys)
        raise WorkloadError(f"unknown key in {where}", value=unknown[0], allowed=", ".join(keys), hint=hint)
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
