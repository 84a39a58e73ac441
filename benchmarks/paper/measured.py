"""Tables 2 and 3, and the proxy studies of Figures 5, 6 and 8, with samples from real training runs of small networks.

    python -m benchmarks paper measured --data FOLDER [--processes N] [FAMILY ...]

The samples are measured; step times and power come from a simulated board. Small networks leave a board's GPU idle most
of the time, so that the largest batch nearly always wins. So each table is given twice: with the small network's own
step times, and with those of the paper's model of the same kind. The baselines use the highest clock at which wattune's
reference workloads stay under the limit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

import numpy as np
import torch

import wattune
from benchmarks.paper.families import FAMILIES, KINSHIP, WAYS, Family
from benchmarks.paper.models import at, profiled
from benchmarks.paper.models import workload as workload_of
from benchmarks.paper.published import NANO, Limit
from benchmarks.paper.sections import results
from benchmarks.paper.training import EVERY_SAMPLES, SEEDS, curves, cut, on_grid, smoothed, target_of, workload
from benchmarks.timing import RESULTS, keep, measured_at
from wattune import planning, training
from wattune.cap import SensorLimit
from wattune.devices import open_device
from wattune.point import OperatingPoint
from wattune.profiling.confirmation import confirm
from wattune.proxy import curve as curve_of
from wattune.records import LearningCurve, ProfileTable, SampleEfficiency

WORK = Path("build") / "paper"
METHODS = {
    "Baseline 1": "largest batch, fixed clock",
    "Baseline 2": "best batch, fixed clock",
    "Ours": "wattune",
}


class Measured:
    """One trained family: curves cut at their targets by data set, and the sample efficiency from them."""

    def __init__(self, family: Family, data: Path, processes: int | None):
        self.family, self.data = family, data
        self.curves: dict[str, list[LearningCurve]] = {}
        self.efficiency: dict[str, SampleEfficiency] = {}
        for name in family.sets:
            up = family.higher_is_better
            runs = [smoothed(one) for one in curves(family, name, data, WORK, processes)]
            target = target_of(runs, higher_is_better=up)
            self.curves[name] = [cut(one, target, higher_is_better=up) for one in runs]
            self.efficiency[name] = curve_of(self.curves[name], workload=f"{family.name} on {name}")

    def needed(self, name: str, batch_size: int) -> list[float]:
        """Samples to the target by seed; a run that missed it counts with its budget."""
        return [float(one.samples) for one in self.curves[name] if one.batch_size == batch_size]

    def profile(self, heavy: bool, caps_w: Sequence[float]) -> ProfileTable:
        """Step times and power on the board, of the paper's model if ``heavy``, else of the network itself.

        As in a run, the choice under each cap is measured again, for longer, until it no longer changes.
        """
        if heavy:
            assert self.family.stands_for is not None
            profiles, table = workload_of(self.family.stands_for), profiled(NANO, self.family.stands_for)
        else:
            profiles = self.family.workload(self.data, self.family.sets[0], None)
            table = wattune.profile(f"sim:{NANO}", profiles, strategy="full", reference=True)
        with closing(open_device(f"sim:{NANO}")) as board:
            # The fastest is the same rule with the target's own curve.
            for curve, cap_w in itertools.product(self.efficiency.values(), caps_w):
                while (point := _pick(METHODS["Ours"], table, curve, cap_w)) is not None:
                    again = confirm(board, profiles, table, point, SensorLimit(cap_w))
                    if again is table:
                        break
                    table = again
        return table


def table(measured: Measured, profile: ProfileTable, proxy: str, target: str, cap_w: float | None) -> dict[str, Any]:
    """Every method on ``target``, chosen by the samples of ``proxy``, and ours against the fastest."""
    rows = {}
    for method, rule in METHODS.items():
        rows[method] = _row(measured, profile, target, _pick(rule, profile, measured.efficiency[proxy], cap_w))
    rows["Fastest"] = _row(measured, profile, target, _pick("fastest", profile, measured.efficiency[target], cap_w))
    ours, fastest = rows["Ours"], rows["Fastest"]
    above = ours["time_s"] / fastest["time_s"] - 1 if ours and fastest else None
    return {"proxy": proxy, "target": target, "cap_w": cap_w, "rows": rows, "above_fastest": above}


def _pick(rule: str, profile: ProfileTable, efficiency: SampleEfficiency, cap_w: float | None) -> OperatingPoint | None:
    sizes = {point.batch_size for point in efficiency.points}
    cells = tuple(cell for cell in profile.cells if cell.batch_size in sizes)
    pick = planning.pick(rule, profile.model_copy(update={"cells": cells}), efficiency, SensorLimit(cap_w))
    return pick.point if pick is not None and pick.feasible else None


def _row(measured: Measured, profile: ProfileTable, target: str, point: OperatingPoint | None) -> dict[str, Any] | None:
    if point is None:
        return None
    clock_mhz = point.knobs["clock_mhz"]
    cell = at(profile, point.batch_size, clock_mhz)
    assert cell.step_s is not None
    assert cell.power_mean_w is not None
    times = [n * cell.step_s / cell.batch_size for n in measured.needed(target, point.batch_size)]
    return {
        "batch_size": point.batch_size,
        "clock_mhz": clock_mhz,
        "time_s": fmean(times),
        "std_s": stdev(times),
        "energy_j": fmean(times) * cell.power_mean_w,
    }


def trained_under(measured: Measured, table: dict[str, Any]) -> dict[str, Any]:
    """Readings above the cap in runs of the network at our point, step by step on the simulated board."""
    name, row = table["target"], table["rows"]["Ours"]
    target = measured.curves[name][0].target
    own = replace(workload(measured.family, name, measured.data, WORK), target=target)
    own = on_grid(own, (row["batch_size"],))
    above, peaks = 0.0, []
    for one in measured.curves[name]:
        if one.batch_size == row["batch_size"]:
            with closing(open_device(f"sim:{NANO}", seed=one.seed)) as board:
                point = OperatingPoint.of(one.batch_size, clock_mhz=row["clock_mhz"])
                record = training.price(one, board, own, point, cap_w=table["cap_w"])
            above += record.above_cap_s or 0.0
            peaks.append(record.power_peak_w)
    return {"target": name, "cap_w": table["cap_w"], "above_cap_s": above, "power_peak_w": max(peaks)}


def family_figures(measured: Measured, limits: dict[Limit, float | None]) -> dict[str, Any]:
    """All figures of one family."""
    family, names = measured.family, measured.family.sets
    figures: dict[str, Any] = {
        "family": family.name,
        "stands_for": family.stands_for,
        "targets": {name: measured.curves[name][0].target for name in names},
        "metric": measured.curves[names[0]][0].metric,
        "evaluate_every": EVERY_SAMPLES,
        "budget_samples": family.budget_samples,
        "samples": {
            name: {str(p.batch_size): [fmean(measured.needed(name, p.batch_size)), p.censored] for p in one.points}
            for name, one in measured.efficiency.items()
        },
        "ways": {},
        "off_diagonal": {},
    }
    for way in family.ways:
        profile = measured.profile(way == WAYS[True], [cap_w for cap_w in limits.values() if cap_w is not None])
        cells = {
            limit: [table(measured, profile, a, b, cap_w) for a, b in itertools.product(names, names)]
            for limit, cap_w in limits.items()
        }
        figures["ways"][way] = {
            limit: {"matrix": [_short(one, names[0]) for one in tables]} for limit, tables in cells.items()
        }
        figures["off_diagonal"][way] = interval(measured, [one for tables in cells.values() for one in tables])
        if way == family.ways[0]:
            figures["readings"] = [
                trained_under(measured, one)
                for limit, tables in cells.items()
                for one in tables
                if one["proxy"] == names[0] != one["target"] and one["rows"]["Ours"] and limits[limit] is not None
            ]
    return figures


def interval(measured: Measured, tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How much slower ours is than the fastest where proxy and target differ: the mean, and its 90 % interval.

    The interval is of the target's samples alone, whose logarithms have one spread over the seeds at all batch sizes.
    ``surely``: number of cells in which ours is slower in 95 % of the draws.
    """
    draws, errors = np.random.default_rng(0), {}
    for name, efficiency in measured.efficiency.items():
        logs = [np.log(measured.needed(name, point.batch_size)) for point in efficiency.points]
        error = math.sqrt(fmean(variance(own) for own in logs) / len(SEEDS))
        errors[name] = {point.batch_size: error * draws.standard_normal(4000) for point in efficiency.points}
    others = [one for one in tables if one["proxy"] != one["target"] and one["above_fastest"] is not None]
    shares = []
    for one in others:
        of_size = errors[one["target"]]
        ours, fastest = (of_size[one["rows"][method]["batch_size"]] for method in ("Ours", "Fastest"))
        shares.append((1 + one["above_fastest"]) * np.exp(ours - fastest) - 1)
    low, high = np.quantile(np.mean(shares, axis=0), (0.05, 0.95))
    return {
        "mean": fmean(one["above_fastest"] for one in others),
        "low": float(low),
        "high": float(high),
        "surely": sum(bool(np.quantile(share, 0.05) > 0) for share in shares),
        "cells": len(shares),
    }


def _short(table: dict[str, Any], proxy: str) -> dict[str, Any]:
    """The part of a table to store: all of the first proxy's, of others only ours against the fastest."""
    return table if table["proxy"] == proxy else {k: v for k, v in table.items() if k not in ("rows", "cap_w")}


def _above_of_kin(families: Sequence[dict[str, Any]], way: str) -> dict[str, Any]:
    shares = [
        one["above_fastest"]
        for family in families
        for limit in family["ways"].get(way, {}).values()
        for one in limit["matrix"]
        if one["above_fastest"] is not None and one["proxy"] != one["target"] and are_kin(one["proxy"], one["target"])
    ]
    return {"mean": fmean(shares), "worst": max(shares), "cells": len(shares)}


def are_kin(one: str, other: str) -> bool:
    """Check if two data sets are of one family."""
    kin = next((names for names in KINSHIP if one in names), None)
    return other in kin if kin is not None else not any(other in names for names in KINSHIP)


def main(arguments: list[str]) -> None:
    """Train missing runs, then compute and store the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks paper measured", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of data, see families.py")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="processes of a core each")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="those to measure; others keep their figures")
    options = parser.parse_args(arguments)
    if unknown := set(options.families) - {family.name for family in FAMILIES}:
        parser.error(f"unknown family: {', '.join(unknown)}; allowed: {', '.join(one.name for one in FAMILIES)}")
    torch.set_num_threads(1)
    limits = results()["replay"]["caps_w"][NANO]
    path = RESULTS / "paper_measured.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if options.families else {"families": [], "measured_at": {}}
    figures, moments = {one["family"]: one for one in kept["families"]}, kept["measured_at"]
    for family in FAMILIES:
        if not options.families or family.name in options.families:
            figures[family.name] = family_figures(Measured(family, options.data, options.processes), limits)
            moments[family.name] = measured_at()
    families = list(figures.values())
    ways = [way for way in WAYS if any(way in family["ways"] for family in families)]
    keep(
        "paper_measured",
        {
            "measured_at": moments,
            "board": NANO,
            "limits_w": limits,
            "seeds": list(SEEDS),
            "torch": torch.__version__,
            "families": families,
            "above_fastest_of_one_family": {way: _above_of_kin(families, way) for way in ways},
            "above_cap_s": math.fsum(one["above_cap_s"] for family in families for one in family["readings"]),
        },
    )
