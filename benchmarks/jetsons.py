"""Profiles of a recorded Jetson TX2 with three clocks to set, under caps on its four recorded rails.

`python -m benchmarks jetsons FOLDER [--zeus DIR]` needs a folder with BoFL's recordings (`benchmarks.bofl`), which are
of every combination of 12 GPU, 6 memory and 12 CPU clocks. `python -m benchmarks jetsons --table T.csv` judges the
search on the table of any other board (in the form that `replay:` reads, of one batch size), and stores nothing.

A probe replays the recorded cell, with noise of 2 % on the mean over a second. The truth is a smoothed table: at each
memory clock the logarithms of time and power are fitted, around each cell, by a plane in the logarithms of the other
knobs, weighted by a tricube over two values on each side, or on one side alone where the times are nearer to that plane
(McDonald and Owen 1986, Smoothing with split linear fits): they have an edge where the host ceases to hide. Caps are
spread evenly, in their logarithm, from the least to the highest power of all settings. The workload CIFAR10 (`tune`)
was used to choose constants of the search, ImageNet and IMDB are judged.

Other parts of the result: `of_gpu_clock` has the caps that the search's design was judged by, all of which some GPU
clock keeps with the other clocks at their highest: spread evenly over the powers that the GPU's clock then spans, where
settings are near each other. `training`: a search within a training run of ten minutes, and of ten hours.
`power_limits`: batch sizes and power limits of Zeus' GPUs (`--zeus`), whose recorded table is the truth.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import bofl
from benchmarks.bofl import Figures
from benchmarks.decisions import sweeps
from benchmarks.decisions.traces import Task, powers, read_runs
from benchmarks.timing import keep, measured_at
from wattune.cap import PowerCap
from wattune.devices.replay import Noise, ReplayDevice
from wattune.devices.replay_table import read_profile
from wattune.errors import CapError
from wattune.point import BatchShape, OperatingPoint
from wattune.profiling import profile
from wattune.records import EfficiencyPoint, ProfileCell, ProfileTable, SampleEfficiency, provenance
from wattune.search.observation import Stretch
from wattune.search.search import Search
from wattune.search.surrogate import Array

LIMIT = "power_limit_w"
STEPPED = "memory_clock_mhz"
"""The knob that is not smoothed over: a memory's power has a step at nearly every clock."""

TUNE = ("CIFAR10",)
"""Recordings that constants of the search may be chosen by."""

CAPS, SEEDS = 20, 3
NOISE = Noise(relative=0.02, period_s=1.0)
ROOMS = (0.015, 0.01)
"""Shares of the cap that a pick may leave unused. The first is two standard errors of eight readings with that noise,
and some drift."""

REACH = 3
"""Half-width of the smoothing in values of a knob, at which a cell's weight is 0."""

STRAIGHT = 0.003
"""Relative deviation of the times from a plane below which cells on both sides are used."""

SPARE = 0.2
"""Least weight of a plane's cells beyond what its terms need, for a deviation to say anything."""

OVER = 0.005
"""Share of the cap by which a pick is surely above it: the smoothed table is not nearer to the truth."""

TRAININGS_S = {"10 minutes": 600.0, "10 hours": 36_000.0}
"""Training runs to search in -> their time at the fastest setting."""

SURE = 2.6
"""Standard errors of a probe's mean above the cap at which a training run's probe counts as above it."""

EPOCH = {"cifar100": 50_000, "imagenet": 1_281_167, "movielens-1m": 1_000_209}
"""Samples of an epoch of Zeus' data sets: with them an epoch's time gives a step's."""


@dataclass(frozen=True)
class Recording:
    """One workload: what was recorded at each point, and the truth, in which times are those of the same progress.

    ``samples``: batch size -> samples to the target, up to a factor. ``of_first``: caps are over the range of the first
    knob. A power limit is one of watts: caps are then over the range of the limits.
    """

    name: str
    recorded: dict[OperatingPoint, Figures]
    truth: dict[OperatingPoint, Figures]
    samples: dict[int, float]
    of_first: bool = False

    def best_s(self, cap_w: float, among: Sequence[OperatingPoint] | None = None) -> float:
        """The shortest time under the cap, of all points or of these."""
        points = [self.truth[point] for point in (self.truth if among is None else among)]
        return min((true.step_s for true in points if true.power_w <= cap_w), default=math.inf)

    @property
    def first_alone(self) -> list[OperatingPoint]:
        """The points with all knobs but the first at their highest values."""
        names = list(next(iter(self.truth)).knobs)[1:]
        top = {name: max(point.knobs[name] for point in self.truth) for name in names}
        return [point for point in self.truth if all(point.knobs[name] == top[name] for name in names)]

    def caps_w(self, count: int) -> list[float]:
        """Caps from the least power of all points to the highest, each as many percent above the one before it; or
        over the range of the first knob, as many watts above it."""
        powers = [self.truth[point].power_w for point in (self.first_alone if self.of_first else self.truth)]
        limits_w = [point.knobs[LIMIT] for point in self.truth if LIMIT in point.knobs]
        low, high = max([min(powers), *sorted(limits_w)[:1]]), max(limits_w or powers)
        if self.of_first or limits_w:
            return [low + (high - low) * i / (count - 1) for i in range(count)]
        return [low * (high / low) ** (i / (count - 1)) for i in range(count)]

    def table(self) -> ProfileTable:
        """The recording as a profile."""
        cells = tuple(
            ProfileCell(**point.fields(), step_s=step_s, power_mean_w=power_w, power_peak_w=power_w)
            for point, (step_s, power_w) in self.recorded.items()
        )
        return ProfileTable(
            device="recorded", workload=self.name, cells=cells, provenance=provenance("recorded", device="recorded")
        )

    def curve(self) -> SampleEfficiency | None:
        """The samples of each batch size, exactly known; None with one batch size."""
        largest = max(self.samples)
        points = tuple(
            EfficiencyPoint(batch_size=size, relative_samples=ratio, low=ratio, high=ratio)
            for size, need in sorted(self.samples.items())
            if (ratio := need / self.samples[largest])
        )
        many = len(points) > 1
        return SampleEfficiency(workload=self.name, reference_batch_size=largest, points=points) if many else None


@cache
def load(folder: Path, file: str) -> Recording:
    """A recording of BoFL's, or the table of another board. Raises: InputError if it does not exist; RecordError."""
    if file in bofl.WORKLOADS:
        name, batch_size = bofl.WORKLOADS[file]
        shape, recorded = BatchShape.of(batch_size), {}
        for knobs, figures in bofl.points(folder, file).items():
            means = (math.exp(fmean(map(math.log, values))) for values in zip(*figures, strict=True))
            recorded[OperatingPoint(shape, knobs)] = Figures(*means)
    else:
        table = read_profile(folder / file)
        name = table.workload
        recorded = {cell.point: Figures(cell.step_s, cell.power_mean_w) for cell in table.measured}
    return Recording(name, recorded, smoothed(recorded), {next(iter(recorded)).batch_size: 1.0})


@cache
def zeus(folder: Path) -> dict[str, Recording]:
    """Zeus' GPUs, at batch sizes and power limits; the samples are those to the target that most batch sizes reach."""
    epochs: dict[Task, dict[int, float]] = {}
    for (task, _), runs in sorted(read_runs(folder).items()):
        reached = {size: need for size, need in sweeps.truth(runs).items() if math.isfinite(need)}
        if len(reached) >= len(epochs.get(task, ())):
            epochs[task] = reached
    tables: dict[tuple[str, Task], dict[OperatingPoint, Figures]] = {}
    for gpu, task, row in powers(folder):
        if (size := int(row["batch_size"])) in epochs.get(task, ()):
            step_s = float(row["time_per_epoch"]) * size / EPOCH[task.dataset]
            point = OperatingPoint.of(size, power_limit_w=float(row["power_limit"]))
            tables.setdefault((gpu, task), {})[point] = Figures(step_s, float(row["average_power"]))
    recordings = {}
    for (gpu, task), table in tables.items():
        samples = {size: epochs[task][size] for size in sorted({point.batch_size for point in table})}
        truth = {
            point: Figures(one.step_s / point.batch_size * samples[point.batch_size], one.power_w)
            for point, one in table.items()
        }
        if len(samples) > 1:
            name = f"{gpu} {task.dataset} {task.optimizer}"
            recordings[name] = Recording(name, table, truth, samples)
    return recordings


def smoothed(recorded: dict[OperatingPoint, Figures]) -> dict[OperatingPoint, Figures]:
    """The recording without its noise, as the module says."""
    points = list(recorded)
    values = np.log([list(point.knobs.values()) for point in points])
    levels = np.stack([np.unique(column, return_inverse=True)[1] for column in values.T], axis=1)
    logs = np.log([recorded[point] for point in points])
    smooth = [index for index, name in enumerate(points[0].knobs) if name != STEPPED]
    reach = np.array([1 if name == STEPPED else REACH for name in points[0].knobs])
    truth = {}
    for index, point in enumerate(points):
        moved = levels - levels[index]
        near = (np.abs(moved) < reach).all(axis=1)
        planes = []
        for sides in product((0, -1, 1), repeat=len(smooth)):  # both sides come first
            cells = near & (moved[:, smooth] * sides >= 0).all(axis=1)
            planes.append(_plane((values[cells] - values[index])[:, smooth], moved[cells] / reach, logs[cells]))
        fitted = min(planes, key=lambda plane: max(plane[0], STRAIGHT))[1]
        truth[point] = Figures(*(float(value) for value in np.exp(fitted)))
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
    """Points that were probed, the one picked, and the number of probes: a point may be probed again."""

    probed: list[OperatingPoint]
    pick: OperatingPoint | None
    probes: int


def ours(recording: Recording, cap_w: float, seed: int) -> Outcome:
    """A guided profile of all knobs, as `wattune profile --device replay:` makes it."""
    device = ReplayDevice(recording.table(), Noise(NOISE.relative, NOISE.period_s, seed))
    limit = PowerCap(cap_w).at_sensor(None, device.sensor.window_s)
    try:
        table = profile(device, None, limit=limit, strategy="guided", efficiency=recording.curve())
    except CapError:
        return Outcome([], None, 0)
    assert table.guided is not None
    assert table.cost is not None
    probed = [cell.point for cell in table.cells] + [probe.point for probe in table.aborted]
    pick = None if table.guided.pick is None else table.guided.pick.point
    return Outcome(probed, pick, table.cost.probes)


def _read(recording: Recording, draw: random.Random, point: OperatingPoint, windows: int = 1) -> Figures:
    step_s, power_w = recording.recorded[point]
    return Figures(step_s, power_w * (1 + NOISE.relative / math.sqrt(windows) * draw.gauss(0, 1)))


# -------------------------------------------------------------------------------------------------------------- figures


def score(recording: Recording, cap_w: float, outcome: Outcome) -> dict[str, Any]:
    """One case by the truth. A pick above the cap counts as the next lower value of its first knob: the guard's."""
    truth, pick = recording.truth, outcome.pick
    best_s, runs_s = recording.best_s(cap_w), math.inf if pick is None else guarded_s(recording, cap_w, pick)
    over = [truth[point].power_w / cap_w - 1 for point in outcome.probed]
    rooms = {f"regret_with_room_{room}": recording.best_s((1 - room) * cap_w) / best_s - 1 for room in ROOMS}
    return {
        "regret": runs_s / best_s - 1,
        "step_s": runs_s,
        "probes": outcome.probes,
        "over": sum(share > 0.01 for share in over),
        "worst_over": max([0.0, *over]),
        "pick_over": pick is not None and truth[pick].power_w > (1 + OVER) * cap_w,
        "regret_with_room": rooms[f"regret_with_room_{ROOMS[0]}"],
        **rooms,
    }


def guarded_s(recording: Recording, cap_w: float, pick: OperatingPoint) -> float:
    """The shortest time under the cap with at most the pick's first knob, and all else held."""
    (first, highest), *others = pick.knobs.items()
    held = [
        point
        for point in recording.truth
        if point.shape == pick.shape
        and point.knobs[first] <= highest
        and all(point.knobs[name] == value for name, value in others)
    ]
    return recording.best_s(cap_w, held)


def cases(recordings: Sequence[Recording]) -> list[dict[str, Any]]:
    """Every case of these recordings, with every seed of the noise."""
    rows = []
    for recording, seed in product(recordings, range(SEEDS)):
        for cap_w in recording.caps_w(CAPS):
            row = score(recording, cap_w, ours(recording, cap_w, seed))
            alone_s = recording.best_s(cap_w, recording.first_alone)
            row |= {"recording": recording.name, "over_gpu_clock_alone": alone_s / row["step_s"]}
            row["oracle_over_gpu_clock_alone"] = alone_s / recording.best_s(cap_w)
            rows.append(row)
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means and quantiles over the cases; a case without a usable pick has a regret of 1.

    ``beyond_room``: regret beyond that of the fastest setting with the first of ``ROOMS``, in cases in which there is
    one; ``with_room``: regret and probes above the cap in those cases.
    """
    roomy = [row for row in rows if math.isfinite(row["regret_with_room"])]
    return {
        "cases": len(rows),
        **spread([row["regret"] for row in rows], "regret_"),
        "beyond_room": round(fmean(min(1.0, row["regret"]) - row["regret_with_room"] for row in roomy), 4),
        "with_room": {
            "cases": len(roomy),
            **spread([row["regret"] for row in roomy], "regret_"),
            "probes_over_a_case": round(fmean(row["over"] for row in roomy), 2),
        },
        "without_a_pick": sum(math.isinf(row["regret"]) for row in rows),
        "probes": round(fmean(row["probes"] for row in rows), 1),
        "probes_over_a_case": round(fmean(row["over"] for row in rows), 2),
        "worst_over": round(max(row["worst_over"] for row in rows), 4),
        "picks_over": sum(row["pick_over"] for row in rows),
        "over_gpu_clock_alone": _over_alone(rows, "over_gpu_clock_alone"),
    }


def spread(regrets: Sequence[float], name: str = "") -> dict[str, float]:
    """Mean, 9th decile and worst; a case without a setting counts as 1."""
    ordered = sorted(min(1.0, regret) for regret in regrets)
    figures = {"mean": fmean(ordered), "p90": ordered[math.ceil(0.9 * len(ordered)) - 1], "worst": ordered[-1]}
    return {name + key: round(value, 4) for key, value in figures.items()}


def _over_alone(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Mean over the cases in which some value of the first clock alone keeps the cap."""
    return round(fmean(row[name] for row in rows if math.isfinite(row["oracle_over_gpu_clock_alone"])), 3)


def figures(first: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of these cases, and what no search can exceed."""
    roomy = [row for row in first if math.isfinite(row["regret_with_room"])]
    return {
        "cases": len(first),
        "caps": CAPS,
        "seeds": SEEDS,
        "oracle": {
            "over_gpu_clock_alone": _over_alone(first, "oracle_over_gpu_clock_alone"),
            "without_gpu_clock_alone": sum(math.isinf(row["oracle_over_gpu_clock_alone"]) for row in first),
            "regret_with_room": round(fmean(row["regret_with_room"] for row in roomy), 4),
            "without_room": len(first) - len(roomy),
            "room": {str(room): spread([row[f"regret_with_room_{room}"] for row in first]) for room in ROOMS},
        },
        "wattune": summary(first),
    }


def trainings(recordings: Sequence[Recording]) -> dict[str, Any]:
    """A search within training runs of each length: probes, regret, and the time of the run beyond the best one's."""
    found = {}
    for name, training_s in TRAININGS_S.items():
        rows = [
            one
            for recording in recordings
            for cap_w in recording.caps_w(CAPS)
            if (one := training(recording, cap_w, training_s)) is not None
        ]
        means = {key: round(fmean(row[key] for row in rows), 4) for key in ("probes", "regret", "loss")}
        found[name] = {"cases": len(rows), "without_a_pick": len(recordings) * CAPS - len(rows), **means}
    return found


def training(recording: Recording, cap_w: float, training_s: float) -> dict[str, float] | None:
    """Search while training; None if no setting is chosen. The time beyond the best one's is a share of that."""
    draw, best_s = random.Random(f"{recording.name} {cap_w:.4f}"), recording.best_s(cap_w)
    sensor = ReplayDevice(recording.table(), NOISE).sensor
    shape, settings = next(iter(recording.truth)).shape, [point.knobs for point in recording.truth]
    samples = shape.batch * training_s / best_s
    search = Search(
        [shape], settings, cap_w=cap_w, start=shape, samples_left=samples, cap_window_s=1.0, **sensor.searched
    )
    probes, spent_s = 0, 0.0
    while (point := search.next()) is not None:
        windows = 1 if search.is_brief(point) else 3
        step_s, power_w = _read(recording, draw, point, windows)
        seconds = max(windows * NOISE.period_s, windows * step_s)
        if power_w * (1 - SURE * NOISE.relative / math.sqrt(windows)) > cap_w:
            search.above(point, power_w)
        else:
            search.tell(point, Stretch(step_s, power_w, power_w, seconds))
        probes, spent_s = probes + 1, spent_s + seconds + sensor.settle_s
        samples -= shape.batch * (seconds + sensor.settle_s) / step_s
    if (pick := search.best()) is None or math.isinf(runs_s := guarded_s(recording, cap_w, pick)):
        return None
    loss = (spent_s + max(0.0, samples) / shape.batch * runs_s) / training_s - 1
    return {"probes": probes, "regret": runs_s / best_s - 1, "loss": loss}


def main(arguments: list[str]) -> None:
    """Search on every case, and store the figures of those that are judged.

    Raises: InputError without the recordings.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks jetsons", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="of BoFL's recordings")
    parser.add_argument("tune", choices=["tune"], nargs="?", help="run the search alone, on what it was tuned on")
    parser.add_argument("--zeus", type=Path, help="folder of Zeus' traces")
    parser.add_argument("--table", type=Path, help="judge the search on this table")
    options = parser.parse_args(arguments)
    if (options.folder is None) == (options.table is None):
        parser.error("either the folder of BoFL's recordings or --table is needed")
    measured = measured_at()
    if options.table is not None or options.tune:
        files = TUNE if options.table is None else [options.table.name]
        folder = options.folder if options.table is None else options.table.parent
        print(json.dumps(figures(cases([load(folder, file) for file in files])), indent=1))
        return
    judged = [load(options.folder, file) for file in bofl.WORKLOADS if file not in TUNE]
    every = cases([replace(load(options.folder, file), of_first=True) for file in bofl.WORKLOADS])
    names = {one.name for one in judged}
    of_judged = [row for row in every if row["recording"] in names]
    found = {
        **figures(cases(judged)),
        "of_gpu_clock": {"all": figures(every), "judged": figures(of_judged)},
        "training": trainings(judged),
    }
    if options.zeus is not None:
        found["power_limits"] = figures(cases(list(zeus(options.zeus).values())))
    keep("jetsons", {"measured_at": measured, **found})
