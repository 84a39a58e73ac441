"""Tables 2 to 4 replayed on the simulated boards, compared with the paper's cells.

No copy of the paper has the samples to target of each batch size. Here they are derived from the published times
divided by the simulated board's time per sample: the geometric mean over all cells of a batch size. So the replayed
times follow the published ones by construction, as far as the boards' times do. The test is if one set of power, time
and sample figures leads to the paper's choices, and by how much each comparison then differs. Batch sizes whose samples
do not follow from the tables are left out.

The proxy's curve is not printed either. For ResNet18 it is the one that gives the paper's choices with the widest
margin on these boards, if there is one (a linear program in ln samples); for the others the geometric mean of the two
targets. The baselines' clocks are the inferred ones: the workloads by which the paper chose them are not known.
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
from benchmarks.paper.published import CELLS, LIMITS, NANO, RESNET18, SOUND, TX2_NX, Cell, Limit
from benchmarks.timing import keep
from wattune import planning
from wattune.cap import SensorLimit
from wattune.records import EfficiencyPoint, ProfileCell, SampleEfficiency

Samples = dict[int, float]
"""Batch size -> samples to the target."""

CHOICES = {
    "Ours": "wattune",
    "clock only": "largest batch, own clock",
    "sequential": "best batch, then clock",
    "Fastest": "fastest",
}
"""Method -> wattune's rule. The baselines, and "batch only", use the inferred clock."""

AROUND_W = 0.3
"""Largest distance in watts from the powers of the published choices at which limits are searched."""

ENDS: tuple[Limit, ...] = ("P1", "P2")

METHODS = ("Baseline 1", "Baseline 2", "Ours", "Fastest")

PRINTED = ("replayed", "published")

HIGHER_CLOCK = "a higher clock keeps our limit"


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
        """Key of the samples, which do not depend on the board."""
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
    by_curve: dict[tuple[str, str], dict[int, list[float]]] = {}
    for cell in SOUND:
        needed = cell.mean_s / sample_s(cell.device, cell.model, cell.batch_size, cell.clock_mhz)
        by_curve.setdefault(Case.of(cell).curve, {}).setdefault(cell.batch_size, []).append(needed)
    return {curve: {b: geometric_mean(n) for b, n in sorted(sizes.items())} for curve, sizes in by_curve.items()}


def relative(needed: Samples) -> Samples:
    """The samples over those of the largest batch size."""
    return {b: n / needed[max(needed)] for b, n in needed.items()}


def efficiency(model: str, needed: Samples, sizes: Iterable[int]) -> SampleEfficiency:
    """The samples as a curve over a profile's batch sizes; batch sizes without samples are never chosen."""
    reference = max(needed)
    return SampleEfficiency(
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
    """The choice of a rule on the case's board by these samples."""
    profile = profiled(case.device, case.model)
    sizes = sorted({cell.batch_size for cell in profile.cells if not cell.out_of_memory})
    pick = planning.pick(rule, profile, efficiency(case.model, needed, sizes), SensorLimit(cap_w))
    if pick is None or not pick.feasible or pick.clock_mhz is None:
        return None
    return at(profile, pick.batch_size, pick.clock_mhz)


def fastest_of(case: Case, batch_size: int, cap_w: float | None) -> float | None:
    """Seconds per sample at the fastest clock at which this batch size is under the cap; None if there is none."""
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


def proxy(model: str, targets: Sequence[Samples], caps_w: dict[str, dict[Limit, float | None]]) -> Proxy:
    """The proxy's curve of a model; ``caps_w``: board -> limit -> watts."""
    if model != RESNET18:
        sizes = sorted(set.intersection(*(set(one) for one in targets)))
        curves = [relative({b: one[b] for b in sizes}) for one in targets]
        return Proxy({b: geometric_mean([one[b] for one in curves]) for b in sizes}, None)
    chosen_cells = [c for c in CELLS if c.model == model and c.method in ("Ours", "Baseline 2")]
    # A size that is never chosen has only a lower bound, so its samples are undetermined.
    sizes = sorted({c.batch_size for c in CELLS if c.model == model and c.method != "Fastest"})
    rows, bounds = [], []
    for cell, other in itertools.product(chosen_cells, sizes):
        if other == cell.batch_size:
            continue
        row = np.zeros(len(sizes) + 1)
        row[sizes.index(cell.batch_size)], row[sizes.index(other)], row[-1] = 1.0, -1.0, 1.0
        apart = 0.0  # Baseline 2 takes the fewest samples, regardless of time
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
    solution = linprog(
        [0.0] * len(sizes) + [-1.0],
        A_ub=np.array(rows),
        b_ub=np.array(bounds),
        A_eq=fixed,
        b_eq=[0.0],
        bounds=[(None, None)] * (len(sizes) + 1),
    )
    if not solution.success:
        raise RuntimeError(f"no curve for the proxy of {model}: {solution.message}")
    return Proxy({b: math.exp(x) for b, x in zip(sizes, solution.x[:-1], strict=True)}, float(solution.x[-1]))


# ---------------------------------------------------------------------------------------------------------- the tables


def point(cell: ProfileCell | None, needed: Samples) -> dict[str, Any] | None:
    """Operating point of a run, its time, energy and peak power."""
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
    """Every method under every limit, with the published cell."""
    rows = []
    for limit in LIMITS:
        for method in (*METHODS, "clock only", "batch only", "sequential"):
            cell = next((c for c in CELLS if Case.of(c) == case and (c.method, c.limit) == (method, limit)), None)
            if method in CHOICES:
                by = target if method == "Fastest" else guess
                choice = chosen(CHOICES[method], case, by, caps_w[limit])
            else:
                baseline = next(c for c in CELLS if Case.of(c) == case and (c.method, c.limit) == ("Baseline 1", limit))
                size = max(target) if method == "Baseline 1" else min(guess, key=lambda b: (guess[b], -b))
                choice = at(profiled(case.device, case.model), size, baseline.clock_mhz)
            rows.append(
                {
                    "method": method,
                    "limit": limit,
                    "cap_w": caps_w[limit],
                    **(point(choice, target) or {"batch_size": None, "time_s": None}),
                    "published": None
                    if cell is None
                    else {
                        "mean_s": cell.mean_s,
                        "std_s": cell.std_s,
                        "batch_size": cell.batch_size,
                        "clock_mhz": cell.clock_mhz,
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
    """Difference between a replayed choice and the published one, with the reason on the simulated board."""
    cell, cap_w = row["published"], row["cap_w"]
    there = at(profiled(table["device"], table["model"]), cell["batch_size"], cell["clock_mhz"])
    own = point(there, table["samples"])
    above_w = None if cap_w is None or there.power_peak_w is None else there.power_peak_w - cap_w
    if above_w is not None and above_w > 0:
        why = f"the published point reads {above_w:.2f} W above our limit"
    elif row["batch_size"] == cell["batch_size"]:
        why = HIGHER_CLOCK
    elif own is not None:
        why = f"the published point takes {own['time_s'] / row['time_s'] - 1:.1%} longer here"
    else:
        why = "the samples of the published point are not known"
    return {
        "replayed": [row["batch_size"], row.get("clock_mhz")],
        "published": [cell["batch_size"], cell["clock_mhz"]],
        "time": row["time_s"] and row["time_s"] / cell["mean_s"] - 1,
        "why": why,
    }


def summary(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Speed-ups over Baseline 1, points that differ from the published ones, the gain of each half of the choice."""
    ups, differences, errors, ablation, behind = [], [], [], [], []
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
            fastest = by["Fastest", limit]
            printed = ours["published"]["mean_s"] / fastest["published"]["mean_s"]
            behind.append(
                {"where": where, "replayed": ours["time_s"] / fastest["time_s"] - 1, "published": printed - 1}
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
    higher = [one["where"] for one in differences if one["method"] == "Ours" and one["why"] == HIGHER_CLOCK]
    return {
        "speed_ups": ups,
        "largest": most,
        "mean_speed_up": {
            **{key: fmean(one[key] for one in ups) for key in PRINTED},
            "without": fmean(one["replayed"] for one in ups if one["where"] not in higher),
        },
        "at_a_higher_clock": higher,
        "behind_the_fastest": {
            key: {"mean": fmean(one[key] for one in behind), "worst": max(one[key] for one in behind)}
            for key in PRINTED
        },
        "same_points": len(errors),
        "different_points": differences,
        "time_errors": {"rms": math.sqrt(fmean(e * e for e in errors)), "most": max(map(abs, errors))},
        "ablation": {
            m: geometric_mean([one[m] for one in ablation if one[m]])
            for m in ("clock only", "batch only", "sequential")
        },
    }


def fitted_limits() -> dict[str, dict[Limit, float | None]]:
    """The limits that reproduce the most published points, searched one by one from ``chosen_w`` on.

    Candidates are the simulated sensor's readings around them, since nothing changes between two readings. Four numbers
    are fitted to some eighty cells, so the agreement of many cells is weak evidence for them.
    """
    begins = {device: chosen_w(device) for device in (NANO, TX2_NX)}
    caps_w: dict[str, dict[Limit, float | None]] = {
        device: {limit: round(limits_w[limit] + 0.005, 2) if limit in limits_w else None for limit in LIMITS}
        for device, limits_w in begins.items()
    }
    best = _agreement(caps_w)
    for _, device, limit in itertools.product(range(2), begins, ENDS):
        for reading in _readings_w(device, begins[device][limit]):
            other = {**caps_w, device: {**caps_w[device], limit: round(reading + 0.005, 2)}}
            if (agreement := _agreement(other)) > best:
                caps_w, best = other, agreement
    return caps_w


def chosen_w(device: str) -> dict[Limit, float]:
    """The highest power of the published choices under each limit: each keeps its limit."""
    chosen_cells = [c for c in SOUND if c.device == device and c.method in ("Ours", "Fastest")]
    powers = [(c.limit, at(profiled(device, c.model), c.batch_size, c.clock_mhz).power_peak_w) for c in chosen_cells]
    return {limit: max(watts for own, watts in powers if own == limit and watts is not None) for limit in ENDS}


def window_w(caps_w: dict[str, dict[Limit, float | None]], device: str, limit: Limit) -> tuple[float, float]:
    """The range of this limit within which as many cells agree: its lowest reading, and the next one above it."""
    own_w, agreement = caps_w[device][limit], _agreement(caps_w)
    assert own_w is not None
    readings = _readings_w(device, own_w)
    agreeing = [
        watts for watts in readings if _agreement({**caps_w, device: {**caps_w[device], limit: watts}}) == agreement
    ]
    return agreeing[0], next(watts for watts in readings if watts > agreeing[-1])


def _readings_w(device: str, around_w: float) -> list[float]:
    """All readings of a board within ``AROUND_W`` of this power, ascending."""
    models = {case.model for case in CASES if case.device == device}
    readings = {c.power_peak_w for model in models for c in profiled(device, model).cells if c.power_peak_w}
    return sorted(watts for watts in readings if abs(watts - around_w) < AROUND_W)


def _agreement(caps_w: dict[str, dict[Limit, float | None]]) -> tuple[int, float]:
    result = replay(caps_w)
    return result["summary"]["same_points"], result["proxies"][RESNET18]["margin"]


def main(_: list[str]) -> None:
    """Replay the tables, and store the results."""
    caps_w = fitted_limits()
    keep("paper_replay", {**replay(caps_w), "window_w": window_w(caps_w, TX2_NX, "P1")})
