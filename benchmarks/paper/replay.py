"""Tables 2 to 4 replayed on the simulated boards, beside the paper's cells.

The samples that each batch size needs are in no copy of the paper. Here they are what the published times say when they
are divided by the simulated board's time for a sample: the geometric mean over all cells of a batch size. So the times
of the replay follow the published ones by construction, as far as the boards' times do; what is put to a test is
whether one set of power, time and sample figures leads to the paper's choices, and by how much each comparison then
differs. A batch size that the tables do not tell the samples of is left out.

Nor is the proxy's curve printed. For ResNet18 it is the one that gives the paper's choices with the widest margin on
these boards, if there is one (a linear program in ln samples); for the others the geometric mean of the two targets.
The baselines' clocks are the inferred ones: the workloads that the paper chose them by are not known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cache
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog

from benchmarks.paper.models import at, profiled
from benchmarks.paper.power_check import ENDS, our_limits_w
from benchmarks.paper.published import CELLS, LIMITS, NANO, RESNET18, SOUND, TX2_NX, Cell, Limit
from benchmarks.timing import keep
from wattune import planning
from wattune.records import EfficiencyCurve, EfficiencyPoint, ProfileCell

Samples = dict[int, float]
"""Batch size -> samples to the target."""

CHOICES = {
    "Ours": "wattune",
    "clock only": "largest batch, own clock",
    "sequential": "best batch, then clock",
    "Fastest": "fastest",
}
"""Method -> wattune's rule. The baselines, and "batch only", stand at the inferred clock."""

EPOCH = 12_500
"""Samples of a quarter of CIFAR-10 (arXiv 2502.18323, Figure 1)."""

AROUND_W = 0.3
"""How far from the middles of `power_check` a limit is looked for."""

METHODS = ("Baseline 1", "Baseline 2", "Ours", "Fastest")


class Case(NamedTuple):
    """One half of a table: a board, a model and a data set."""

    device: str
    model: str
    dataset: str

    @classmethod
    def of(cls, cell: Cell) -> Case:
        """The case that a cell belongs to."""
        return cls(cell.device, cell.model, cell.dataset)

    @property
    def curve(self) -> tuple[str, str]:
        """What the samples depend on: not on the board."""
        return self.model, self.dataset


CASES = tuple(dict.fromkeys(Case.of(cell) for cell in CELLS))


def sample_s(device: str, model: str, batch_size: int, clock_mhz: float) -> float:
    """Seconds for one sample."""
    step_s = at(profiled(device, model), batch_size, clock_mhz).step_s
    assert step_s is not None
    return step_s / batch_size


@cache
def samples() -> dict[tuple[str, str], Samples]:
    """(model, data set) -> samples by batch size, from the sound cells of both boards."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for cell in SOUND:
        needed = cell.mean_s / sample_s(cell.device, cell.model, cell.batch_size, cell.clock_mhz())
        found.setdefault(Case.of(cell).curve, {}).setdefault(cell.batch_size, []).append(needed)
    return {curve: {b: geometric_mean(n) for b, n in sorted(sizes.items())} for curve, sizes in found.items()}


def relative(needed: Samples) -> Samples:
    """The samples over those of the largest batch size."""
    return {b: n / needed[max(needed)] for b, n in needed.items()}


def efficiency(model: str, needed: Samples, sizes: Iterable[int]) -> EfficiencyCurve:
    """The samples as a curve over a profile's batch sizes; those that are not known are not chosen."""
    reference = max(needed)
    return EfficiencyCurve(
        workload=model,
        reference_batch_size=reference,
        points=tuple(
            EfficiencyPoint(
                batch_size=b,
                relative_samples=needed[b] / needed[reference] if b in needed else None,
                samples=needed.get(b),
            )
            for b in sizes
        ),
    )


def chosen(rule: str, case: Case, needed: Samples, cap_w: float | None) -> ProfileCell | None:
    """What a rule chooses on the case's board by these samples."""
    profile = profiled(case.device, case.model)
    sizes = sorted({cell.batch_size for cell in profile.cells if not cell.out_of_memory})
    found = planning.pick(rule, profile, efficiency(case.model, needed, sizes), cap_w=cap_w)
    if found is None or not found.feasible or found.clock_mhz is None:
        return None
    return at(profile, found.batch_size, found.clock_mhz)


def fastest_of(case: Case, batch_size: int, cap_w: float | None) -> float | None:
    """Seconds for a sample at the fastest clock at which this batch size keeps the cap."""
    times = [
        cell.step_s / batch_size
        for cell in profiled(case.device, case.model).cells
        if cell.batch_size == batch_size
        and cell.step_s is not None
        and cell.power_peak_w is not None
        and (cap_w is None or cell.power_peak_w <= cap_w)
    ]
    return min(times, default=None)


# ----------------------------------------------------------------------------------------------------------- the proxy


class Proxy(NamedTuple):
    """Relative samples of a model's proxy; ``margin``: by how much each published choice is the best (below 0: not)."""

    relative: Samples
    margin: float | None


def proxy(model: str, known: Sequence[Samples], caps_w: dict[str, dict[Limit, float | None]]) -> Proxy:
    """The proxy's curve of a model; ``caps_w``: board -> limit -> watts."""
    if model != RESNET18:
        sizes = sorted(set.intersection(*(set(one) for one in known)))
        curves = [relative({b: one[b] for b in sizes}) for one in known]
        return Proxy({b: geometric_mean([one[b] for one in curves]) for b in sizes}, None)
    chosen_cells = [c for c in CELLS if c.model == model and c.method in ("Ours", "Baseline 2")]
    # A size that is never chosen has a lower bound only, and nothing says where it is.
    sizes = sorted({c.batch_size for c in CELLS if c.model == model and c.method != "Fastest"})
    rows, bounds = [], []
    for cell, other in itertools.product(chosen_cells, sizes):
        if other == cell.batch_size:
            continue
        row = np.zeros(len(sizes) + 1)
        row[sizes.index(cell.batch_size)], row[sizes.index(other)], row[-1] = 1.0, -1.0, 1.0
        apart = 0.0  # Baseline 2 takes the fewest samples, whatever the time
        if cell.method == "Ours":
            case, cap_w = Case.of(cell), caps_w[cell.device][cell.limit]
            own, rival = (fastest_of(case, b, cap_w) for b in (cell.batch_size, other))
            if own is None or rival is None:
                continue
            apart = math.log(rival / own)
        rows.append(row)
        bounds.append(apart)
    fixed = np.zeros((1, len(sizes) + 1))
    fixed[0, len(sizes) - 1] = 1.0  # ln 1 for the largest
    found = linprog(
        [0.0] * len(sizes) + [-1.0],
        A_ub=np.array(rows),
        b_ub=np.array(bounds),
        A_eq=fixed,
        b_eq=[0.0],
        bounds=[(None, None)] * (len(sizes) + 1),
    )
    if not found.success:
        raise RuntimeError(f"no curve for the proxy of {model}: {found.message}")
    return Proxy({b: math.exp(x) for b, x in zip(sizes, found.x[:-1], strict=True)}, float(found.x[-1]))


# ---------------------------------------------------------------------------------------------------------- the tables


def point(cell: ProfileCell | None, needed: Samples) -> dict[str, Any] | None:
    """Where a training stands, and what it takes."""
    if cell is None or cell.step_s is None or cell.power_mean_w is None or cell.batch_size not in needed:
        return None
    time_s = needed[cell.batch_size] * cell.step_s / cell.batch_size
    return {
        "batch_size": cell.batch_size,
        "clock_mhz": cell.clock_mhz,
        "time_s": time_s,
        "energy_j": time_s * cell.power_mean_w,
        "power_peak_w": cell.power_peak_w,
    }


def replayed(case: Case, target: Samples, guess: Samples, caps_w: dict[Limit, float | None]) -> list[dict[str, Any]]:
    """Every method under every limit, beside the published cell."""
    rows = []
    for limit in LIMITS:
        for method in (*METHODS, "clock only", "batch only", "sequential"):
            cell = next((c for c in CELLS if Case.of(c) == case and (c.method, c.limit) == (method, limit)), None)
            if method in CHOICES:
                by = target if method == "Fastest" else guess
                found = chosen(CHOICES[method], case, by, caps_w[limit])
            else:
                baseline = next(c for c in CELLS if Case.of(c) == case and (c.method, c.limit) == ("Baseline 1", limit))
                size = max(target) if method == "Baseline 1" else min(guess, key=lambda b: (guess[b], -b))
                found = at(profiled(case.device, case.model), size, baseline.clock_mhz())
            rows.append(
                {
                    "method": method,
                    "limit": limit,
                    "cap_w": caps_w[limit],
                    **(point(found, target) or {"batch_size": None, "time_s": None}),
                    "published": None
                    if cell is None
                    else {
                        "mean_s": cell.mean_s,
                        "std_s": cell.std_s,
                        "batch_size": cell.batch_size,
                        "clock_mhz": cell.clock_mhz(),
                        "doubt": cell.doubt,
                    },
                }
            )
    return rows


def replay(caps_w: dict[str, dict[Limit, float | None]]) -> dict[str, Any]:
    """All tables; ``caps_w``: board -> limit -> watts, None without a limit."""
    needed = samples()
    models = dict.fromkeys(case.model for case in CASES)
    proxies = {m: proxy(m, [needed[c] for c in needed if c[0] == m], caps_w) for m in models}
    tables = [
        {
            **case._asdict(),
            "samples": needed[case.curve],
            "rows": replayed(case, needed[case.curve], proxies[case.model].relative, caps_w[case.device]),
        }
        for case in CASES
    ]
    return {
        "caps_w": caps_w,
        "proxies": {m: {"relative": one.relative, "margin": one.margin} for m, one in proxies.items()},
        "tables": tables,
        "summary": summary(tables),
    }


def difference(table: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """How a replayed choice differs from the published one, and what the simulated board says of that one."""
    cell, cap_w = row["published"], row["cap_w"]
    there = at(profiled(table["device"], table["model"]), cell["batch_size"], cell["clock_mhz"])
    found = point(there, table["samples"])
    above_w = None if cap_w is None or there.power_peak_w is None else there.power_peak_w - cap_w
    if above_w is not None and above_w > 0:
        why = f"the published point reads {above_w:.2f} W above our limit"
    elif row["batch_size"] == cell["batch_size"]:
        why = "a higher clock keeps our limit"
    elif found is not None:
        why = f"the published point takes {found['time_s'] / row['time_s'] - 1:.1%} longer here"
    else:
        why = "the samples of the published point are not known"
    return {
        "replayed": [row["batch_size"], row.get("clock_mhz")],
        "published": [cell["batch_size"], cell["clock_mhz"]],
        "time": row["time_s"] and row["time_s"] / cell["mean_s"] - 1,
        "why": why,
    }


def figures() -> dict[str, Any]:
    """What Figures 1 and 2 show, on the simulated Nano: an epoch at every batch size and clock."""
    cells = [c for c in profiled(NANO, RESNET18).cells if c.step_s is not None]
    return {
        "epoch_samples": EPOCH,
        "epochs": [
            {
                "batch_size": c.batch_size,
                "clock_mhz": c.clock_mhz,
                "time_s": EPOCH * (c.step_s or 0.0) / c.batch_size,
                "power_peak_w": c.power_peak_w,
            }
            for c in cells
        ],
    }


def summary(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Speed-ups over Baseline 1, points that differ from the published ones, and what each half of the choice is worth.

    That ours is not slower than the baselines where the proxy's curve is near the target's is a sanity check.
    """
    ups, differences, errors, ablation = [], [], [], []
    for table in tables:
        by = {(row["method"], row["limit"]): row for row in table["rows"]}
        name = f"{table['device']}, {table['model']}, {table['dataset']}"
        for limit in LIMITS:
            ours = by["Ours", limit]
            where = f"{name}, {limit}"
            printed = by["Baseline 1", limit]["published"]["mean_s"] / ours["published"]["mean_s"]
            ups.append(
                {"where": where, "replayed": by["Baseline 1", limit]["time_s"] / ours["time_s"], "published": printed}
            )
            parts = {m: by[m, limit]["time_s"] for m in ("clock only", "batch only", "sequential")}
            ablation.append({"where": where, **{m: s and s / ours["time_s"] for m, s in parts.items()}})
            for method in METHODS:
                row = by[method, limit]
                cell = row["published"]
                if cell["doubt"]:
                    continue
                if (row["batch_size"], row.get("clock_mhz")) != (cell["batch_size"], cell["clock_mhz"]):
                    differences.append({"where": where, "method": method, **difference(table, row)})
                elif row["time_s"]:
                    errors.append(row["time_s"] / cell["mean_s"] - 1)
    most = max(ups, key=lambda one: one["published"])
    return {
        "speed_ups": ups,
        "largest": most,
        "mean_speed_up": {key: fmean(one[key] for one in ups) for key in ("replayed", "published")},
        "same_points": len(errors),
        "different_points": differences,
        "time_errors": {"rms": math.sqrt(fmean(e * e for e in errors)), "most": max(map(abs, errors))},
        "ablation": {
            m: geometric_mean([one[m] for one in ablation if one[m]])
            for m in ("clock only", "batch only", "sequential")
        },
        "ablation_cells": ablation,
        "slower_than_a_baseline": [
            f"{one['where']}: {one['replayed']:.3f}" for one in ups if one["replayed"] < 1 - 1e-9
        ],
    }


def fitted_limits() -> dict[str, dict[Limit, float | None]]:
    """The limits that reproduce the most published points, one after the other, from the middles of `power_check`.

    Tried are the simulated sensor's readings around them: between two readings nothing changes. Four numbers are
    chosen here by some eighty cells, so that many cells agree is no evidence for them.
    """
    middles = {device: our_limits_w(device) for device in (NANO, TX2_NX)}
    caps_w: dict[str, dict[Limit, float | None]] = {
        device: {limit: round(found[limit], 2) if limit in found else None for limit in LIMITS}
        for device, found in middles.items()
    }
    best = _agreement(caps_w)
    for _, device, limit in itertools.product(range(2), middles, ENDS):
        models = {case.model for case in CASES if case.device == device}
        readings = {c.power_peak_w for model in models for c in profiled(device, model).cells if c.power_peak_w}
        for reading in sorted(watts for watts in readings if abs(watts - middles[device][limit]) < AROUND_W):
            other = {**caps_w, device: {**caps_w[device], limit: round(reading + 0.005, 2)}}
            if (found := _agreement(other)) > best:
                caps_w, best = other, found
    return caps_w


def _agreement(caps_w: dict[str, dict[Limit, float | None]]) -> tuple[int, float]:
    found = replay(caps_w)
    return found["summary"]["same_points"], found["proxies"][RESNET18]["margin"]


def main(_: list[str]) -> None:
    """Replay and keep."""
    keep("paper_replay", {**replay(fitted_limits()), **figures()})
