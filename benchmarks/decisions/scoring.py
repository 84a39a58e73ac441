"""Means with clustered standard errors, and shares."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

GOOD = 0.02


def spread_of_mean(values: Sequence[float], groups: Sequence[Hashable]) -> float:
    """Standard error of the mean of ``values`` that are correlated within groups; nan if there is only one group.

    Source: the sandwich estimator of Liang and Zeger 1986 (Biometrika 73, 13-22) for a mean, with the factor
    G / (G - 1) for few groups.
    """
    off = np.asarray(values, dtype=float) - float(np.mean(values))
    sums: dict[Hashable, float] = {}
    for value, group in zip(off, groups, strict=True):
        sums[group] = sums.get(group, 0.0) + float(value)
    count = len(sums)
    if count < 2:
        return math.nan
    return math.sqrt(count / (count - 1) * sum(one**2 for one in sums.values())) / len(off)


def regrets(values: Sequence[float], groups: Sequence[Hashable]) -> dict[str, Any]:
    """Mean and its standard error, median, ninth decile, worst, and share under 2 %; in shares, not in percent."""
    if not values:
        return {"cases": 0}
    return {
        "cases": len(values),
        "mean": round(float(np.mean(values)), 5),
        "se": rounded(spread_of_mean(values, groups)),
        "median": round(float(np.median(values)), 5),
        "p90": round(float(np.quantile(values, 0.9)), 5),
        "worst": round(float(np.max(values)), 4),
        "under_2_percent": round(float(np.mean(np.asarray(values) < GOOD)), 4),
    }


def rounded(value: float, digits: int = 5) -> float | None:
    """Round a figure for JSON; nan and infinity become None."""
    return round(value, digits) if math.isfinite(value) else None
