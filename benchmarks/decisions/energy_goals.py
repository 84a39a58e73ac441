"""Goals other than the time, on real GPUs: planned from some of Zeus' recorded runs and judged on the others.

The plan chooses batch size and power limit together, under no cap. It knows the profile, which is what was recorded at
every batch size and limit, and the curve of one half of the runs. The other half judges: energy is the mean power at
the planned limit, times the seconds of an epoch, times the median epochs to the target. A limit was measured once, so
a pick is judged by the measurement that it was chosen from, and a gain of a few percent is within its scatter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.decisions import estimators, traces
from benchmarks.decisions.estimators import Bank
from wattune.cap import PowerCap
from wattune.errors import NoFeasiblePoint
from wattune.goal import TIME, Goal
from wattune.planning import plan
from wattune.records import ProfileCell, ProfileTable, SampleEfficiency, provenance
from wattune.sample_efficiency.choice import pooled_curve

SLOWDOWN = 0.05
GOALS = {
    "time": TIME,
    "energy": Goal("energy"),
    "edp": Goal("edp"),
    "slowdown": Goal("energy", max_slowdown=SLOWDOWN),
}
"""What is planned for; the last one is `--max-slowdown 5%`."""

EXPONENTS = {"time": 0.0, "energy": 1.0, "edp": 0.5}
"""Aim -> exponent of the power in what it makes least; of the energy-delay product, that is the square root."""

DEFAULT = "default batch, top limit"
LIMIT_ALONE = "default batch, limit of least energy"
BEST = "best of all"
PLANNED = ("ours", "ours, no own batch size", BEST)
WAYS = (*PLANNED, LIMIT_ALONE)

EPOCH_SAMPLES = 50_000
"""Stands for the samples of an epoch, which the traces do not state: only ratios are compared."""

NO_CAP = PowerCap()

Cell = tuple[int, int]
"""Batch size and power limit in watts."""


@dataclass(frozen=True)
class Card:
    """What was recorded of a GPU with a task: seconds of an epoch and mean watts at each batch size and limit."""

    name: str
    epoch_s: dict[Cell, float]
    power_w: dict[Cell, float]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Those that were recorded, ascending."""
        return tuple(sorted({size for size, _ in self.epoch_s}))

    def only(self, sizes: Sequence[int]) -> Card:
        """The part with these batch sizes."""
        epoch_s = {cell: seconds for cell, seconds in self.epoch_s.items() if cell[0] in sizes}
        return Card(self.name, epoch_s, {cell: self.power_w[cell] for cell in epoch_s})

    def cost(self, aim: str, cell: Cell) -> float:
        """Of an epoch: seconds, joules, or for the energy-delay product its square root, as it is a product of two."""
        return self.epoch_s[cell] * self.power_w[cell] ** EXPONENTS[aim]

    def profile(self) -> ProfileTable:
        """The recording as a profile; its power is a mean over an epoch, the only one that is known."""
        cells = tuple(
            ProfileCell(
                batch_size=size,
                power_limit_w=limit_w,
                step_s=self.epoch_s[size, limit_w] * size / EPOCH_SAMPLES,
                power_mean_w=self.power_w[size, limit_w],
                power_peak_w=self.power_w[size, limit_w],
            )
            for size, limit_w in sorted(self.epoch_s)
        )
        return ProfileTable(device=self.name, workload=self.name, cells=cells, provenance=provenance("recorded"))


def read(folder: Path) -> dict[tuple[str, traces.Task], Card]:
    """Read all tables of the folder: (GPU, task) -> what was recorded."""
    columns = [traces.read_times(folder, column) for column in ("time_per_epoch", "average_power")]

    def by_cell(limits: dict[int, dict[int, float]]) -> dict[Cell, float]:
        return {(size, limit_w): one for limit_w, sizes in limits.items() for size, one in sizes.items()}

    return {key: Card(key[0], *(by_cell(column[key]) for column in columns)) for key in columns[0]}


def cases(folder: Path) -> list[dict[str, Any]]:
    """Every GPU, task, target and split of the runs; one row per way to choose, and per goal that it chooses for."""
    cards = read(folder)
    return [
        row | {"data": data}
        for data, runs in traces.by_recipe(folder).items()
        for split in traces.splits(runs)
        for (gpu, task), card in cards.items()
        if task == split.task
        for row in _case(gpu, card.only(list(split.true)), split)
    ]


def _case(gpu: str, card: Card, split: traces.Split) -> Iterator[dict[str, Any]]:
    if sum(math.isfinite(split.true[size]) for size in card.batch_sizes) < 2:
        return
    place = {"gpu": gpu, "dataset": split.task.dataset, "target": split.target, "split": split.number}
    for (way, goal), cell in _picks(card, split).items():
        size, limit_w = cell or (None, None)
        yield place | {
            "way": way,
            "goal": goal,
            "group": f"{gpu} {split.task.dataset}",
            "batch_size": size,
            "limit_w": limit_w,
            "error": 0.0 if size is None else split.error[size],
            **{aim: math.inf if cell is None else card.cost(aim, cell) * split.true[cell[0]] for aim in EXPONENTS},
        }


def _picks(card: Card, split: traces.Split) -> dict[tuple[str, str], Cell | None]:
    """(way, goal) -> batch size and limit; None where there is no choice."""
    default = traces.default_size(card.batch_sizes, split.task.dataset)
    at_default = [cell for cell in card.epoch_s if cell[0] == default]
    profile, picks = card.profile(), _best(card, split.true)
    for name in GOALS:
        picks[DEFAULT, name] = max(at_default, key=lambda cell: cell[1])
        picks[LIMIT_ALONE, name] = min(at_default, key=lambda cell: card.cost("energy", cell))
    for way, own in (("ours", default), ("ours, no own batch size", None)):
        curve = _estimated(card, split, own)
        picks |= {(way, name): _planned(profile, curve, goal) for name, goal in GOALS.items()}
    return picks


def _best(card: Card, true: dict[int, float]) -> dict[tuple[str, str], Cell | None]:
    """The picks of someone who knows the true epochs."""

    def cost(aim: str, cell: Cell) -> float:
        return card.cost(aim, cell) * true[cell[0]]

    best = {aim: min(card.epoch_s, key=partial(cost, aim)) for aim in EXPONENTS}
    within = [cell for cell in card.epoch_s if cost("time", cell) <= (1 + SLOWDOWN) * cost("time", best["time"])]
    return {(BEST, name): cell for name, cell in best.items()} | {
        (BEST, "slowdown"): min(within, key=partial(cost, "energy"))
    }


def _estimated(card: Card, split: traces.Split, own: int | None) -> SampleEfficiency:
    """Make runs of our half, as `wattune estimate` does for a device with these times."""
    times = {size: min(one for cell, one in card.epoch_s.items() if cell[0] == size) for size in card.batch_sizes}
    bank = Bank({size: split.ours[size] for size in card.batch_sizes})
    decision = estimators.ours(bank, times, spacing=traces.EPOCH, own=own, whole=True)
    assert decision.curve is not None  # as there are two batch sizes or more
    return pooled_curve(decision.curve, decision.seen, own=own, workload="recorded", algorithm="backprop")


def _planned(profile: ProfileTable, curve: SampleEfficiency, goal: Goal) -> Cell | None:
    try:
        chosen = plan(profile, curve, cap=NO_CAP, goal=goal)
    except NoFeasiblePoint:
        return None  # no run reached the target
    assert chosen.power_limit_w is not None
    return chosen.batch_size, int(chosen.power_limit_w)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of all cases as recorded, and in "clean" of those without marked runs."""
    return {
        **_figures([row for row in rows if row["data"] != "clean"]),
        "clean": _figures([row for row in rows if row["data"] != "recorded"]),
    }


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What each goal saves over the default, and a bounded slowdown over the fastest point."""
    picked: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        picked.setdefault((row["way"], row["goal"]), []).append(row)
    default = picked[DEFAULT, "time"]
    return {
        "cases": len(default),
        "over default": {
            goal: {
                way: {
                    **traces.gain(_priced(picked[way, goal], goal), _priced(default, goal)),
                    "energy": _over(default, picked[way, goal], "energy"),
                    "time": _over(default, picked[way, goal], "time"),
                    "failed": sum(math.isinf(row["time"]) for row in picked[way, goal]),
                }
                for way in WAYS
            }
            for goal in EXPONENTS
        },
        "slowdown": {
            way: {
                "over the fastest": _slowdown(picked[way, "slowdown"], picked[BEST, "time"]),
                "over its own for time": _slowdown(picked[way, "slowdown"], picked[way, "time"]),
            }
            for way in PLANNED
        },
    }


def _priced(rows: Sequence[dict[str, Any]], aim: str) -> list[dict[str, Any]]:
    """The rows with what the aim makes least as their cost."""
    return [row | {"cost": row[aim] ** (2 if aim == "edp" else 1)} for row in rows]


def _over(theirs: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]], what: str) -> float:
    """Geometric mean of theirs relative to ours, over the cases where both reach the target."""
    logs = [
        math.log(other[what] / own[what])
        for own, other in zip(ours, theirs, strict=True)
        if math.isfinite(own[what]) and math.isfinite(other[what])
    ]
    return round(math.exp(float(np.mean(logs))), 4)


def _slowdown(rows: Sequence[dict[str, Any]], beside: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Energy and time relative to those beside, less 1: geometric means by group, and the means of the groups."""
    both = [
        (row, other)
        for row, other in zip(rows, beside, strict=True)
        if math.isfinite(row["time"]) and math.isfinite(other["time"])
    ]
    by_group: dict[str, dict[str, float]] = {}
    for group in sorted({row["group"] for row, _ in both}):
        own, others = zip(*((row, other) for row, other in both if row["group"] == group), strict=True)
        by_group[group] = {what: round(1 / _over(others, own, what) - 1, 4) for what in ("energy", "time")}
    slower = [row["time"] / other["time"] - 1 for row, other in both]
    return {
        **{what: round(float(np.mean([one[what] for one in by_group.values()])), 4) for what in ("energy", "time")},
        "by_group": by_group,
        "slower_than_allowed": round(float(np.mean([share > SLOWDOWN + 1e-9 for share in slower])), 4),
        "worst_time": round(max(slower), 4),
        "failed": len(rows) - len(both),
    }
