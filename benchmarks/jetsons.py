"""Profiles of a recorded Jetson TX2 with three clocks to set, under caps on its four recorded rails.

`python -m benchmarks jetsons FOLDER [tune]` needs a folder with BoFL's recordings (`benchmarks.bofl`), which are of
every combination of 12 GPU, 6 memory and 12 CPU clocks. `python -m benchmarks jetsons --table T.csv` judges the search
on the table of any other board (in the form that `replay:` reads, of one batch size), and stores nothing.

A probe replays the recorded cell, with noise of 2 % on the mean over a second. The truth is a smoothed table: at each
memory clock the logarithms of time and power are fitted, around each cell, by a plane in the logarithms of the other
knobs, weighted by a tricube over two values on each side, or on one side alone where the times are nearer to that plane
(McDonald and Owen 1986, Smoothing with split linear fits): they have an edge where the host ceases to hide. Caps are
spread evenly, in their logarithm, from the least to the highest power of all settings. The workload CIFAR10 (`tune`)
was used to choose constants of the search, ImageNet and IMDB are judged.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import optuna

from benchmarks import bofl
from benchmarks.bofl import Figures
from benchmarks.decisions import optuna_way
from benchmarks.decisions.scoring import spread_of_mean
from benchmarks.timing import keep, measured_at
from wattune.cap import PowerCap
from wattune.devices.replay import Noise, ReplayDevice
from wattune.devices.replay_table import read_profile
from wattune.errors import CapError
from wattune.point import Knobs
from wattune.profiling import profile
from wattune.records import ProfileCell, ProfileTable, provenance
from wattune.search.surrogate import Array

NAMES = ("clock_mhz", "memory_clock_mhz", "cpu_clock_mhz")
STEPPED = "memory_clock_mhz"
"""The knob that is not smoothed over: a memory's power has a step at nearly every clock."""

TUNE = ("CIFAR10",)
"""Recordings that constants of the search may be chosen by."""

CAPS, SEEDS = 20, 3
NOISE = Noise(relative=0.02, period_s=1.0)
ROOM = 0.015
"""Share of the cap that a pick leaves unused: two standard errors of eight readings with that noise, and some drift."""

PROBES = 15
REACH = 3
"""Half-width of the smoothing in values of a knob, at which a cell's weight is 0."""

STRAIGHT = 0.003
"""Relative deviation of the times from a plane below which cells on both sides are used."""

SPARE = 0.2
"""Least weight of a plane's cells beyond what its terms need, for a deviation to say anything."""

OVER = 0.005
"""Share of the cap by which a pick is surely above it: the smoothed table is not nearer to the truth."""


@dataclass(frozen=True)
class Recording:
    """One workload: what was recorded at each setting, and the smoothed truth."""

    name: str
    batch_size: int
    recorded: dict[Knobs, Figures]
    truth: dict[Knobs, Figures]

    def best_s(self, cap_w: float, **held: float) -> float:
        """The shortest step under the cap with these knobs held."""
        return min(
            (
                true.step_s
                for knobs, true in self.truth.items()
                if true.power_w <= cap_w and all(knobs[name] == value for name, value in held.items())
            ),
            default=math.inf,
        )

    @property
    def top_of_others(self) -> dict[str, float]:
        """The highest value of each knob but the first."""
        return {name: max(knobs[name] for knobs in self.truth) for name in list(next(iter(self.truth)))[1:]}

    def caps_w(self, count: int) -> list[float]:
        """Caps from the least power of all settings to the highest, each as many percent above the one before it."""
        powers = [true.power_w for true in self.truth.values()]
        low, high = min(powers), max(powers)
        return [low * (high / low) ** (i / (count - 1)) for i in range(count)]

    def table(self) -> ProfileTable:
        """The recording as a profile."""
        cells = tuple(
            ProfileCell(batch_size=self.batch_size, **knobs, step_s=step_s, power_mean_w=power_w, power_peak_w=power_w)
            for knobs, (step_s, power_w) in self.recorded.items()
        )
        return ProfileTable(
            device="recorded", workload=self.name, cells=cells, provenance=provenance("recorded", device="recorded")
        )


@cache
def load(folder: Path, file: str) -> Recording:
    """One of the recordings. Raises: InputError if its file does not exist."""
    recorded = {
        knobs: Figures(*(math.exp(fmean(map(math.log, values))) for values in zip(*figures, strict=True)))
        for knobs, figures in bofl.points(folder, file).items()
    }
    model, batch_size = bofl.WORKLOADS[file]
    return Recording(model, batch_size, recorded, smoothed(recorded))


@cache
def load_table(path: Path) -> Recording:
    """The table of another board. Raises: RecordError."""
    table = read_profile(path)
    recorded = {cell.knobs: Figures(cell.step_s, cell.power_mean_w) for cell in table.measured}
    return Recording(table.workload, table.batch_sizes[0], recorded, smoothed(recorded))


def smoothed(recorded: dict[Knobs, Figures]) -> dict[Knobs, Figures]:
    """The recording without its noise, as the module says."""
    settings = list(recorded)
    values = np.log([list(knobs.values()) for knobs in settings])
    levels = np.stack([np.unique(column, return_inverse=True)[1] for column in values.T], axis=1)
    logs = np.log([recorded[knobs] for knobs in settings])
    smooth = [index for index, name in enumerate(settings[0]) if name != STEPPED]
    reach = np.array([1 if name == STEPPED else REACH for name in settings[0]])
    truth = {}
    for index, knobs in enumerate(settings):
        moved = levels - levels[index]
        near = (np.abs(moved) < reach).all(axis=1)
        planes = []
        for sides in product((0, -1, 1), repeat=len(smooth)):  # both sides come first
            cells = near & (moved[:, smooth] * sides >= 0).all(axis=1)
            planes.append(_plane((values[cells] - values[index])[:, smooth], moved[cells] / reach, logs[cells]))
        fitted = min(planes, key=lambda plane: max(plane[0], STRAIGHT))[1]
        truth[knobs] = Figures(*(float(value) for value in np.exp(fitted)))
    return truth


def _plane(moved: Array, apart: Array, logs: Array) -> tuple[float, Array]:
    """Fit a plane to ``logs`` (cells, 2) at ``moved`` (cells, knobs): how far off the times are, and where it passes
    0."""
    weights = ((1 - np.abs(apart) ** 3) ** 3).prod(axis=1)[:, None]
    terms = np.insert(moved, 0, 1.0, axis=1)
    fitted = np.linalg.lstsq(terms * np.sqrt(weights), logs * np.sqrt(weights), rcond=None)[0]
    spare = float(weights.sum() - terms.shape[1] * (weights**2).sum() / weights.sum())
    misfit = float((weights * (logs - terms @ fitted) ** 2).sum(axis=0)[0])
    return math.sqrt(misfit / spare) if spare > SPARE else math.inf, fitted[0]


# ---------------------------------------------------------------------------------------------------------- strategies


@dataclass
class Outcome:
    """Settings that were probed, and the one picked."""

    probed: list[Knobs]
    pick: Knobs | None


Strategy = Callable[[Recording, float, int], Outcome]


def ours(recording: Recording, cap_w: float, seed: int) -> Outcome:
    """A guided profile of all clocks, as `wattune profile --device replay:` makes it."""
    device = ReplayDevice(recording.table(), Noise(NOISE.relative, NOISE.period_s, seed))
    limit = PowerCap(cap_w).at_sensor(None, device.sensor.window_s)
    try:
        table = profile(device, None, limit=limit, strategy="guided")
    except CapError:
        return Outcome([], None)
    assert table.guided is not None
    probed = [cell.knobs for cell in table.cells] + [probe.knobs for probe in table.aborted]
    return Outcome(probed, None if table.guided.pick is None else table.guided.pick.point.knobs)


def _read(recording: Recording, draw: random.Random, knobs: Knobs) -> Figures:
    step_s, power_w = recording.recorded[knobs]
    return Figures(step_s, power_w * (1 + NOISE.relative * draw.gauss(0, 1)))


def _picked(probed: dict[Knobs, Figures], cap_w: float) -> Outcome:
    allowed = [knobs for knobs, read in probed.items() if read.power_w <= cap_w]
    return Outcome(list(probed), min(allowed, key=lambda knobs: probed[knobs].step_s, default=None))


def at_random(recording: Recording, cap_w: float, seed: int) -> Outcome:
    """Probe fifty settings at random; pick the fastest that was read below the cap."""
    draw = random.Random(f"{recording.name} {cap_w:.4f} {seed}")
    settings = draw.sample(sorted(recording.recorded), min(50, len(recording.recorded)))
    return _picked({knobs: _read(recording, draw, knobs) for knobs in settings}, cap_w)


def as_recorded(recording: Recording, cap_w: float, seed: int) -> Outcome:
    """Pick the fastest of all settings, as recorded, with ``ROOM``: the recording's own noise is all that is missed."""
    return Outcome([], _picked(recording.recorded, (1 - ROOM) * cap_w).pick)


def with_optuna(recording: Recording, cap_w: float, seed: int) -> Outcome:
    """Probe as Optuna's Gaussian process says, under the cap as a constraint, from the lowest clocks on."""
    draw = random.Random(f"{recording.name} {cap_w:.4f} {seed}")
    names = list(next(iter(recording.recorded)))
    values = {name: sorted({knobs[name] for knobs in recording.recorded}) for name in names}
    probed: dict[Knobs, Figures] = {}

    def objective(trial: optuna.Trial) -> float:
        knobs = Knobs({name: values[name][trial.suggest_int(name, 0, len(values[name]) - 1)] for name in names})
        probed[knobs] = read = _read(recording, draw, knobs)
        trial.set_constraint("cap", read.power_w / cap_w - 1)
        return math.log(read.step_s)

    optuna_way.optimize(objective, optuna_way.gaussian, seed, first=dict.fromkeys(names, 0), trials=PROBES)
    return _picked(probed, cap_w)


STRATEGIES: dict[str, Strategy] = {
    "wattune": ours,
    "50 settings at random": at_random,
    "Optuna GP, 15": with_optuna,
    "every recorded cell known": as_recorded,
}


# -------------------------------------------------------------------------------------------------------------- figures


def score(recording: Recording, cap_w: float, outcome: Outcome) -> dict[str, Any]:
    """One case by the truth. A pick above the cap counts as the next lower GPU clock that is not: the guard's."""
    truth, pick = recording.truth, outcome.pick
    runs_at = None if pick is None else guarded(recording, cap_w, pick)
    runnable = math.inf if runs_at is None else runs_at.step_s
    over = [truth[knobs].power_w / cap_w - 1 for knobs in outcome.probed]
    return {
        "regret": runnable / recording.best_s(cap_w) - 1,
        "step_s": runnable,
        "probes": len(outcome.probed),
        "over": sum(share > 0.01 for share in over),
        "worst_over": max([0.0, *over]),
        "pick_over": pick is not None and truth[pick].power_w > (1 + OVER) * cap_w,
    }


def guarded(recording: Recording, cap_w: float, pick: Knobs) -> Figures | None:
    """The truth at the fastest setting under the cap with at most the pick's first clock, the other clocks held."""
    below = [
        true
        for knobs, true in recording.truth.items()
        if knobs.first <= pick.first
        and all(knobs[name] == pick[name] for name in list(pick)[1:])
        and true.power_w <= cap_w
    ]
    return min(below, default=None)


Job = tuple[str, Path, str, int, int]
"""Strategy, folder and file of a recording, number of the cap, and seed."""


def case(job: Job) -> dict[str, Any]:
    """Figures of one strategy on one case."""
    strategy, folder, file, number, seed = job
    recording = load(folder, file) if file in bofl.WORKLOADS else load_table(folder / file)
    cap_w = recording.caps_w(CAPS)[number]
    row = score(recording, cap_w, STRATEGIES[strategy](recording, cap_w, seed))
    best_s, alone_s = recording.best_s(cap_w), recording.best_s(cap_w, **recording.top_of_others)
    return {
        **row,
        "strategy": strategy,
        "case": (file, number),
        "seed": seed,
        "over_gpu_clock_alone": alone_s / row["step_s"],
        "oracle_over_gpu_clock_alone": alone_s / best_s,
        "regret_with_room": recording.best_s((1 - ROOM) * cap_w) / best_s - 1,
    }


def summary(rows: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means and quantiles over the cases, and the regret less ours; a case without a usable pick has a regret of 1.

    ``beyond_room``: regret beyond that of the fastest setting with ``ROOM``, in cases in which there is one.
    """
    same = {(*row["case"], row["seed"]): row for row in ours}
    roomy = [row for row in rows if _has_room(row)]
    regrets = [min(1.0, row["regret"]) for row in rows]
    groups = [row["case"] for row in rows]
    less = [min(1.0, row["regret"]) - min(1.0, same[(*row["case"], row["seed"])]["regret"]) for row in rows]
    return {
        "cases": len(rows),
        "regret_mean": round(fmean(regrets), 4),
        "regret_p90": round(sorted(regrets)[math.ceil(0.9 * len(regrets)) - 1], 4),
        "regret_worst": round(max(regrets), 4),
        "beyond_room": round(fmean(min(1.0, row["regret"]) - row["regret_with_room"] for row in roomy), 4),
        "more_than_ours": round(fmean(less), 4),
        "more_than_ours_se": round(spread_of_mean(less, groups), 4),
        "without_a_pick": sum(math.isinf(row["regret"]) for row in rows),
        "probes": round(fmean(row["probes"] for row in rows), 1),
        "probes_over_a_case": round(fmean(row["over"] for row in rows), 2),
        "worst_over": round(max(row["worst_over"] for row in rows), 4),
        "picks_over": sum(row["pick_over"] for row in rows),
        "over_gpu_clock_alone": _over_alone(rows, "over_gpu_clock_alone"),
    }


def _over_alone(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Mean over the cases in which some value of the first clock alone keeps the cap."""
    return round(fmean(row[name] for row in rows if math.isfinite(row["oracle_over_gpu_clock_alone"])), 3)


def _has_room(row: dict[str, Any]) -> bool:
    return math.isfinite(row["regret_with_room"])


def figures(folder: Path, files: Sequence[str], strategies: Sequence[str]) -> dict[str, Any]:
    """Every strategy on every case of these recordings."""
    jobs = [
        (strategy, folder, file, number, seed)
        for strategy in strategies
        for file in files
        for seed in range(SEEDS if strategy == strategies[0] else 1)
        for number in range(CAPS)
    ]
    with ProcessPoolExecutor(2) as pool:
        rows = list(pool.map(case, jobs, chunksize=4))

    of = {name: [row for row in rows if row["strategy"] == name] for name in strategies}
    first = of[strategies[0]]
    return {
        "cases": len(first),
        "caps": CAPS,
        "seeds": SEEDS,
        "oracle": {
            "over_gpu_clock_alone": _over_alone(first, "oracle_over_gpu_clock_alone"),
            "without_gpu_clock_alone": sum(math.isinf(row["oracle_over_gpu_clock_alone"]) for row in first),
            "regret_with_room": round(fmean(row["regret_with_room"] for row in first if _has_room(row)), 4),
            "without_room": sum(not _has_room(row) for row in first),
        },
        "strategies": {name: summary(some, first) for name, some in of.items()},
    }


def main(arguments: list[str]) -> None:
    """Run every strategy on every case, and store the figures of those that are judged.

    Raises: InputError without the recordings.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks jetsons", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="of BoFL's recordings")
    parser.add_argument("tune", choices=["tune"], nargs="?", help="run the search alone, on what it was tuned on")
    parser.add_argument("--table", type=Path, help="judge the search on this table")
    options = parser.parse_args(arguments)
    if (options.folder is None) == (options.table is None):
        parser.error("either the folder of BoFL's recordings or --table is needed")
    measured = measured_at()
    if options.table is not None:
        print(json.dumps(figures(options.table.parent, [options.table.name], list(STRATEGIES)[:1]), indent=1))
    elif options.tune:
        print(json.dumps(figures(options.folder, TUNE, list(STRATEGIES)[:1]), indent=1))
    else:
        found = figures(options.folder, [file for file in bofl.WORKLOADS if file not in TUNE], list(STRATEGIES))
        print(json.dumps(found, indent=1))
        keep("jetsons", {"measured_at": measured, **found})
