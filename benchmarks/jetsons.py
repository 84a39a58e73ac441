"""Profiles of a recorded Jetson TX2 with three clocks to set, under caps on its four recorded rails.

`python -m benchmarks jetsons FOLDER` needs a folder with BoFL's recordings (`benchmarks.bofl`), which are of every
combination of 12 GPU, 6 memory and 12 CPU clocks.

A probe replays the recorded cell, with noise of 2 % on the mean over a second. The truth is a smoothed table: at each
memory clock the logarithms of time and power are fitted, around each cell, by a plane in the logarithms of the other
two clocks, weighted by a tricube over two clocks on each side. Caps are spread evenly from what the lowest GPU clock
draws, with the other clocks at their highest, to what the highest draws.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import optuna

from benchmarks import bofl
from benchmarks.bofl import Figures
from benchmarks.decisions import optuna_way
from benchmarks.timing import keep
from wattune.cap import PowerCap
from wattune.devices.replay import Noise, ReplayDevice
from wattune.errors import InputError
from wattune.point import Knobs
from wattune.profiling import profile
from wattune.records import ProfileCell, ProfileTable, provenance

NAMES = ("clock_mhz", "memory_clock_mhz", "cpu_clock_mhz")
CAPS = 20
NOISE = Noise(relative=0.02, period_s=1.0)
ROOM = 0.015
"""Share of the cap that a pick leaves unused: two standard errors of eight readings with that noise, and some drift."""

PROBES = 15
REACH = 3
"""Half-width of the smoothing in clocks, at which a cell's weight is 0."""


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

    def highest(self, name: str) -> float:
        """The highest value of a knob."""
        return max(knobs[name] for knobs in self.truth)

    def caps_w(self, count: int) -> list[float]:
        """Caps over the range that the GPU's clock spans with the other clocks at their highest."""
        held = {name: self.highest(name) for name in NAMES[1:]}
        powers = [true.power_w for knobs, true in self.truth.items() if all(knobs[n] == v for n, v in held.items())]
        low, high = min(powers), max(powers)
        return [low + (high - low) * i / (count - 1) for i in range(count)]

    def table(self) -> ProfileTable:
        """The recording as a profile."""
        cells = tuple(
            ProfileCell(batch_size=self.batch_size, **knobs, step_s=step_s, power_mean_w=power_w, power_peak_w=power_w)
            for knobs, (step_s, power_w) in self.recorded.items()
        )
        return ProfileTable(
            device="Jetson TX2", workload=self.name, cells=cells, provenance=provenance("recorded", device="Jetson TX2")
        )


def load(folder: Path, file: str) -> Recording:
    """One of the recordings. Raises: InputError if its file does not exist."""
    recorded = {
        knobs: Figures(*(math.exp(fmean(map(math.log, values))) for values in zip(*figures, strict=True)))
        for knobs, figures in bofl.points(folder, file).items()
    }
    model, batch_size = bofl.WORKLOADS[file]
    return Recording(model, batch_size, recorded, smoothed(recorded))


def smoothed(recorded: dict[Knobs, Figures]) -> dict[Knobs, Figures]:
    """The recording without its noise, as the module says."""
    settings = list(recorded)
    values = np.log([[knobs[name] for name in NAMES] for knobs in settings])
    levels = np.stack([np.unique(column, return_inverse=True)[1] for column in values.T], axis=1)
    logs = np.log([recorded[knobs] for knobs in settings])
    truth = {}
    for index, knobs in enumerate(settings):
        apart = np.abs(levels - levels[index])
        near = (apart[:, 1] == 0) & (apart[:, 0] < REACH) & (apart[:, 2] < REACH)
        weights = np.sqrt(((1 - (apart[near][:, [0, 2]] / REACH) ** 3) ** 3).prod(axis=1))
        moved = (values - values[index])[near][:, [0, 2]]
        terms = np.concatenate([np.ones((len(moved), 1)), moved], axis=1)
        fitted = np.linalg.lstsq(terms * weights[:, None], logs[near] * weights[:, None], rcond=None)[0][0]
        truth[knobs] = Figures(*(float(value) for value in np.exp(fitted)))
    return truth


# ---------------------------------------------------------------------------------------------------------- strategies


@dataclass
class Outcome:
    """Settings that were probed, and the one picked; ``step_s``: computing time of each decision."""

    probed: list[Knobs]
    pick: Knobs | None
    step_s: Sequence[float] = ()


Strategy = Callable[[Recording, float, int], Outcome]


def ours(recording: Recording, cap_w: float, seed: int) -> Outcome:
    """A guided profile of the three clocks, as `wattune profile --device replay:` makes it."""
    device = ReplayDevice(recording.table(), Noise(NOISE.relative, NOISE.period_s, seed))
    moments = [time.process_time()]
    table = profile(
        device,
        None,
        limit=PowerCap(cap_w).at_sensor(None, device.sensor.window_s),
        strategy="guided",
        progress=lambda *_: moments.append(time.process_time()),
    )
    assert table.guided is not None
    probed = [cell.knobs for cell in table.cells] + [probe.knobs for probe in table.aborted]
    steps = [(moments[-1] - moments[0]) / max(1, len(moments) - 1)]
    return Outcome(probed, None if table.guided.pick is None else table.guided.pick.point.knobs, steps)


def _read(recording: Recording, draw: random.Random, knobs: Knobs) -> Figures:
    step_s, power_w = recording.recorded[knobs]
    return Figures(step_s, power_w * (1 + NOISE.relative * draw.gauss(0, 1)))


def _picked(probed: dict[Knobs, Figures], cap_w: float) -> Outcome:
    allowed = [knobs for knobs, read in probed.items() if read.power_w <= cap_w]
    return Outcome(list(probed), min(allowed, key=lambda knobs: probed[knobs].step_s, default=None))


def at_random(recording: Recording, cap_w: float, seed: int) -> Outcome:
    """Probe fifty settings at random; pick the fastest that was read below the cap."""
    draw = random.Random(f"{recording.name} {cap_w:.4f} {seed}")
    settings = draw.sample(sorted(recording.recorded), 50)
    return _picked({knobs: _read(recording, draw, knobs) for knobs in settings}, cap_w)


def with_optuna(recording: Recording, cap_w: float, seed: int) -> Outcome:
    """Probe as Optuna's Gaussian process says, under the cap as a constraint, from the lowest clocks on."""
    draw = random.Random(f"{recording.name} {cap_w:.4f} {seed}")
    values = {name: sorted({knobs[name] for knobs in recording.recorded}) for name in NAMES}
    probed: dict[Knobs, Figures] = {}

    def objective(trial: optuna.Trial) -> float:
        knobs = Knobs({name: values[name][trial.suggest_int(name, 0, len(values[name]) - 1)] for name in NAMES})
        probed[knobs] = read = _read(recording, draw, knobs)
        trial.set_constraint("cap", read.power_w / cap_w - 1)
        return math.log(read.step_s)

    optuna_way.optimize(objective, optuna_way.gaussian, seed, first=dict.fromkeys(NAMES, 0), trials=PROBES)
    return _picked(probed, cap_w)


STRATEGIES: dict[str, Strategy] = {
    "wattune, three clocks": ours,
    "50 settings at random": at_random,
    "Optuna GP, 15": with_optuna,
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
        "pick_over": pick is not None and truth[pick].power_w > cap_w,
        "decision_s": fmean(outcome.step_s) if outcome.step_s else None,
    }


def guarded(recording: Recording, cap_w: float, pick: Knobs) -> Figures | None:
    """The truth at the fastest setting under the cap with at most the pick's GPU clock, the other clocks held."""
    below = [
        true
        for knobs, true in recording.truth.items()
        if knobs["clock_mhz"] <= pick["clock_mhz"]
        and all(knobs[name] == pick[name] for name in NAMES[1:])
        and true.power_w <= cap_w
    ]
    return min(below, default=None)


def best_constant(recordings: Sequence[Recording], caps: int) -> dict[str, float]:
    """The memory and CPU clocks that do best over all cases with the best GPU clock for each."""
    pairs = sorted({tuple(knobs[name] for name in NAMES[1:]) for knobs in recordings[0].truth})
    held_at = [dict(zip(NAMES[1:], pair, strict=True)) for pair in pairs]

    def cost(held: dict[str, float]) -> float:
        return fmean(
            math.log(min(1e9, one.best_s(cap_w, **held)) / one.best_s(cap_w))
            for one in recordings
            for cap_w in one.caps_w(caps)
        )

    return min(held_at, key=cost)


def regret_with_room(recordings: Sequence[Recording], caps: int) -> float:
    """Mean regret of the fastest setting that leaves ``ROOM`` below the cap: settings are few and far between."""
    return fmean(
        one.best_s((1 - ROOM) * cap_w) / one.best_s(cap_w) - 1 for one in recordings for cap_w in one.caps_w(caps)
    )


def main(arguments: list[str], caps: int = CAPS) -> None:
    """Run every strategy on every case and store the figures. Raises: InputError without the recordings."""
    if len(arguments) != 1:
        raise InputError("jetsons", value=" ".join(arguments) or "no folder", allowed="the folder of BoFL's recordings")
    recordings = [load(Path(arguments[0]), file) for file in bofl.WORKLOADS]
    constant = best_constant(recordings, caps)
    figures: dict[str, Any] = {}
    for name, strategy in STRATEGIES.items():
        rows, over_gpu, over_constant = [], [], []
        for recording in recordings:
            top = {knob: recording.highest(knob) for knob in NAMES[1:]}
            for seed, cap_w in enumerate(recording.caps_w(caps)):
                row = score(recording, cap_w, strategy(recording, cap_w, seed))
                rows.append(row)
                over_gpu.append(recording.best_s(cap_w, **top) / row["step_s"])
                over_constant.append(recording.best_s(cap_w, **constant) / row["step_s"])
        figures[name] = summary(rows, over_gpu, over_constant)
        print(name, figures[name], flush=True)
    oracle = [
        (
            one.best_s(cap_w, **{knob: one.highest(knob) for knob in NAMES[1:]}) / one.best_s(cap_w),
            one.best_s(cap_w, **constant) / one.best_s(cap_w),
        )
        for one in recordings
        for cap_w in one.caps_w(caps)
    ]
    figures["oracle"] = {
        "over_gpu_clock_alone": round(fmean(ratio for ratio, _ in oracle), 3),
        "over_best_constant": round(fmean(min(9.0, ratio) for _, ratio in oracle), 3),
        "regret_with_room": round(regret_with_room(recordings, caps), 4),
    }
    keep("jetsons", {"cases": len(oracle), "caps": caps, "constant": constant, "strategies": figures})


def summary(
    rows: Sequence[dict[str, Any]], over_gpu: Sequence[float], over_constant: Sequence[float]
) -> dict[str, Any]:
    """Means and quantiles over the cases; a case without a usable pick counts as a regret of ten."""
    regrets = sorted(min(10.0, row["regret"]) for row in rows)
    decisions = [row["decision_s"] for row in rows if row["decision_s"] is not None]
    return {
        "regret_mean": round(fmean(regrets), 4),
        "regret_p90": round(regrets[math.ceil(0.9 * len(regrets)) - 1], 4),
        "regret_worst": round(regrets[-1], 4),
        "without_a_pick": sum(row["regret"] > 10 for row in rows),
        "probes": round(fmean(row["probes"] for row in rows), 1),
        "probes_most": max(row["probes"] for row in rows),
        "probes_over_a_case": round(fmean(row["over"] for row in rows), 2),
        "worst_over": round(max(row["worst_over"] for row in rows), 4),
        "picks_over": sum(row["pick_over"] for row in rows),
        "over_gpu_clock_alone": round(fmean(over_gpu), 3),
        "over_best_constant": round(fmean(min(9.0, ratio) for ratio in over_constant), 3),
        "decision_ms": round(1e3 * fmean(decisions), 1) if decisions else None,
    }
