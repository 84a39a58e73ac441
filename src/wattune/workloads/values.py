"""Checks of single values from the user; every error is one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from wattune.errors import UnknownName, WorkloadError


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
    """Call a function that may raise anything. Raises: WorkloadError in place of its exception."""
    try:
        return function()
    except WorkloadError:
        raise
    except Exception as error:  # the user's code, or a library's
        raise WorkloadError(problem, value=f"{type(error).__name__}: {error}") from error
