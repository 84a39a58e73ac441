"""Times to train at, chosen by a forecast of the grid's carbon intensity, against perfect foresight.

`python -m benchmarks carbon FOLDER`: on recorded marginal carbon of a grid (carbon.csv in the folder) and the exact
tables of three simulated boards. A job takes eight hours at its fastest point; the forecast is the recorded future with
an error that grows to 8 % in six hours. Carbon is that of the energy above rest: the board stays on anyway. Perfect
foresight is a linear programme over all points and the true future.

Source of the carbon: WattTime's sample of CAISO North, through github.com/dos-group/vessim (408ed48), MIT.
"""

from __future__ import annotations

import csv
import math
import random
import statistics
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog

from benchmarks.moving_caps import Case, simulated
from benchmarks.timing import folder_of, keep
from wattune.cap import NO_LIMIT, PowerCap
from wattune.devices.simulator.board_file import builtin_board
from wattune.devices.simulator.simulated import SimulatedDevice
from wattune.errors import InputError
from wattune.goal import Goal
from wattune.intensity import Intensity, Stretch
from wattune.planning import plan
from wattune.planning.grains import Accumulated, Work, cheapest
from wattune.planning.over_time import SPARE
from wattune.power.capped_run import CappedRun
from wattune.records import Plan

HOUR_S = 3600.0
STEP_S = 300.0
JOB_S = 8 * HOUR_S
SLACKS = (1.1, 2.0, 3.0)
EVERY_S = 15 * HOUR_S
BOARDS = ("jetson-nano", "jetson-tx2-nx", "jetson-agx-orin")
POUNDS = 0.45359237
ERROR, ERROR_S = 0.08, 6 * HOUR_S
"""Relative error of the forecast, and the time in which it grows to that and is forgotten."""

PEAK = PowerCap(window="peak")
REST_S = 600.0


class Job(NamedTuple):
    """A board's table scaled to the job, and its power at rest."""

    case: Case
    rest_w: float
    fastest: Plan


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, and store the results."""
    truth = recorded(folder_of("carbon", arguments, "the folder with carbon.csv") / "carbon.csv")
    length = int(max(SLACKS) * JOB_S / STEP_S) + 1
    starts = range(0, len(truth) - length, int(EVERY_S / STEP_S))
    rows = []
    for name in BOARDS:
        job = scaled(name)
        for slack in SLACKS:
            runs = [
                one_start(job, truth[start : start + length], slack, random.Random(f"{name}/{start}"))
                for start in starts
            ]
            rows.append({"device": f"sim:{name}", "slack": slack, **summed(runs)})
            print(rows[-1])
    keep("carbon", {"job_h": JOB_S / HOUR_S, "starts": len(starts), "rows": rows})


def recorded(path: Path) -> list[float]:
    """Grams of CO2 per kWh in steps of 300 s."""
    if not path.is_file():
        raise InputError("no such table", value=str(path), hint="give the folder with carbon.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    moments = [datetime.fromisoformat(row["datetime"]) for row in rows]
    if any((b - a).total_seconds() != STEP_S for a, b in pairwise(moments)):
        raise InputError(str(path), allowed="rows every 300 s")
    return [float(row["co2_lbs_per_mwh"]) * POUNDS for row in rows]


def scaled(name: str) -> Job:
    """The table of a board for a job that takes ``JOB_S`` at its fastest point."""
    case = simulated(name)
    device = SimulatedDevice(builtin_board(name))
    run = CappedRun(device, NO_LIMIT, device.safest)
    with run:
        run.start()
        device.wait(REST_S)
        assert run.truth is not None
        rest_w = run.truth.figures().energy_j / REST_S
    table = case.table.model_copy(update={"rest_w": rest_w})
    relative_s = plan(table, case.efficiency, cap=PEAK).relative_time
    assert relative_s is not None
    points = tuple(
        point.model_copy(update={"samples": (point.relative_samples or 0.0) * JOB_S / relative_s})
        for point in case.efficiency.points
    )
    case = Case(case.name, table, case.efficiency.model_copy(update={"points": points}))
    return Job(case, rest_w, plan(table, case.efficiency, cap=PEAK))


def one_start(job: Job, truth: list[float], slack: float, draw: random.Random) -> dict[str, float]:
    """Carbon of each policy over that of the fastest point at once."""
    real, forecast = _intensity(truth), _intensity(_forecast(truth, draw))
    deadline_s = slack * JOB_S
    goal = Goal("energy-above-rest", deadline_s=deadline_s)
    table, curve = job.case.table, job.case.efficiency
    rule = plan(table, curve, cap=PEAK, goal=goal, intensity=forecast)
    frugal = plan(table, curve, cap=PEAK, goal=goal)

    def carbon(one: Plan, stretches: tuple[Stretch, ...]) -> float:
        return _above_w(one, job.rest_w) * sum(real.integral(*stretch) for stretch in stretches)

    now = carbon(job.fastest, (Stretch(0.0, JOB_S),))
    amounts = {
        "least energy, at once": carbon(frugal, (Stretch(0.0, _seconds(frugal)),)),
        "fastest, at its times": carbon(job.fastest, _times(job.fastest, forecast, deadline_s)),
        "least energy, at its times": carbon(frugal, _times(frugal, forecast, deadline_s)),
        "point and times together": carbon(rule, _planned(rule)),
        "perfect foresight": _least(job, real, deadline_s),
    }
    return {
        **{name: amount / now for name, amount in amounts.items()},
        "above perfect foresight": amounts["point and times together"] / amounts["perfect foresight"] - 1,
    }


def summed(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Means over the starts."""
    return {name: statistics.mean(run[name] for run in runs) for name in runs[0]}


def _intensity(values: list[float]) -> Intensity:
    return Intensity(tuple(STEP_S * index for index in range(len(values))), tuple(values))


def _forecast(truth: list[float], draw: random.Random) -> list[float]:
    keep_share = math.exp(-STEP_S / ERROR_S)
    error, values = draw.gauss(0, 1), []
    for index, value in enumerate(truth):
        size = ERROR * min(1.0, index * STEP_S / ERROR_S)
        values.append(max(0.0, value * (1 + size * error)))
        error = keep_share * error + math.sqrt(1 - keep_share**2) * draw.gauss(0, 1)
    return values


def _times(one: Plan, forecast: Intensity, deadline_s: float) -> tuple[Stretch, ...]:
    need_s = _seconds(one)
    edges_s, values = np.array(forecast.times_s), np.array(forecast.values)
    even, free = Accumulated(edges_s, np.ones(len(values))), Accumulated(edges_s, np.zeros(len(values)))
    work = Work(even, free, Accumulated(edges_s, values))
    return cheapest(work, need_s, min(deadline_s - SPARE * need_s, forecast.end_s))


def _planned(one: Plan) -> tuple[Stretch, ...]:
    schedule = one.schedule
    assert schedule is not None
    return tuple(Stretch(time.from_s, time.until_s or schedule.finish_s) for time in schedule.times)


def _least(job: Job, real: Intensity, deadline_s: float) -> float:
    """Carbon of the best mixture of points over the true future; each time is used by one point, or in part by more."""
    pieces = list(real.pieces(0.0, deadline_s))
    points = [
        (one.predicted_s, one.predicted_j / one.predicted_s - job.rest_w)
        for one in job.fastest.candidates
        if one.feasible and one.predicted_s and one.predicted_j
    ]
    front = [
        one for one in points if not any(b[0] <= one[0] and b[0] * b[1] <= one[0] * one[1] and b != one for b in points)
    ]
    count = len(pieces)
    cost = np.array([watts * value for _, watts in front for _, value in pieces])
    rates = np.repeat([1.0 / seconds for seconds, _ in front], count)
    lengths = np.array([stretch.length_s for stretch, _ in pieces])
    each_time = np.hstack([np.eye(count)] * len(front))
    result = linprog(cost, A_ub=each_time, b_ub=lengths, A_eq=rates[None, :], b_eq=[1.0], bounds=(0, None))
    assert result.success, result.message
    return float(result.fun)


def _above_w(one: Plan, rest_w: float) -> float:
    assert one.power_mean_w is not None
    return one.power_mean_w - rest_w


def _seconds(one: Plan) -> float:
    assert one.predicted_s is not None
    return one.predicted_s
