"""Checks of form on other hardware: phones by batch size, an A100 by clock. No figure of a board comes from them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.tx2_fit import voltages_v
from wattune.errors import InputError


def spread(errors: Sequence[float]) -> dict[str, float]:
    """Root mean square, mean, 95th percentile and worst of relative errors."""
    sizes = np.abs(errors)
    return {
        "cells": len(errors),
        "rms": round(float(np.sqrt(np.mean(np.square(errors)))), 4),
        "mean": round(float(np.mean(errors)), 4),
        "p95": round(float(np.quantile(sizes, 0.95)), 4),
        "worst": round(float(sizes.max()), 4),
    }


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def phones(folder: Path) -> dict[str, Any]:
    """Seconds of a step as fixed + per-sample x batch size, the form of ``half_speed_samples`` and of host times.

    Relative least squares, nothing negative; errors in percent of each recorded time.
    """
    tables = {}
    for path in sorted(folder.glob("*__time_table_*.csv")):
        pairs = [(float(row["batchsize"]), float(row["expr_train"]) / 1e3) for row in _rows(path)]
        size, step_s = (np.array(column) for column in zip(*pairs, strict=True))
        values, _ = nnls(np.stack([1 / step_s, size / step_s], axis=1), np.ones(len(size)))
        off = (values[0] + values[1] * size) / step_s - 1
        per_sample = step_s / size
        tables[path.stem.removeprefix("MEIZU_").replace("__time_table_", " ")] = {
            "sizes": len(size),
            "fixed_share_at_1": round(float(values[0] / (values[0] + values[1])), 3),
            "worst": round(float(np.abs(off).max()), 4),
            "largest_is_fastest_per_sample": bool(per_sample[-1] <= per_sample.min() * 1.001),
        }
    if not tables:
        raise InputError("no tables of phones", value=str(folder), hint="give the folder with *__time_table_*.csv")
    return tables


def a100(folder: Path) -> dict[str, Any]:
    """Time as (part that follows the clock) / f + rest; power as base + clocked V^2 f with a floor and a slope of V."""
    results = {}
    for path in sorted(folder.glob("GA100-dvfs-*-dcgm.csv")):
        rows = _rows(path)
        clock, seconds, watts = (
            np.array([float(r[k]) for r in rows]) for k in ("sm_app_clock", "run_time", "power_usage")
        )
        share = clock / clock.max()
        time_values, _ = nnls(np.stack([1 / share, np.ones_like(share)], axis=1) / seconds[:, None], np.ones(len(rows)))
        best: tuple[float, Any] | None = None
        for floor in range(400, 1300, 50):
            for slope in np.arange(0.0, 1.5, 0.05):
                volts = np.array(voltages_v(clock, float(floor), float(slope)))
                table = np.stack([np.ones_like(share), volts**2 * share], axis=1) / watts[:, None]
                values, rest = nnls(table, np.ones(len(rows)))
                if best is None or rest < best[0]:
                    best = rest, table @ values - 1
        assert best is not None
        times = (time_values[0] / share + time_values[1]) / seconds - 1
        results[path.stem.split("-")[2]] = {
            "clocks": len(rows),
            "clock_share_of_time": round(float(time_values[0] / time_values.sum()), 3),
            "time": spread(list(times)),
            "power": spread(list(best[1])),
        }
    if not results:
        raise InputError("no tables of an A100", value=str(folder), hint="give the folder with GA100-dvfs-*-dcgm.csv")
    return results
