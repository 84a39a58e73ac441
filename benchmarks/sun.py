"""Training from a panel and a battery with a reserve: the rule, over the real sun, against perfect foresight.

`python -m benchmarks sun FOLDER`: five cities, 29 days in steps of 5 minutes, of the panel of a Jetson Nano and of an
AGX Orin on their exact simulated tables. The rule is that of ``wattune.budgets.battery_rule``, asked once per step and
driven by nothing but charge, time and energy drawn, as in training. The clairvoyant is a linear programme over the
true sun: the least time in which the work can be done with the points of the same table, without falling below the
reserve until the end or, at rest, in the day after it.

Source of the sun: github.com/dos-group/vessim (MIT), its Solcast trace of 2022, as shares of the panel's peak. The file
has no dates; the length of its days is that of June and July.
"""

from __future__ import annotations

import csv
import math
import random
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from benchmarks.moving_caps import simulated
from benchmarks.timing import keep
from wattune.budgets.battery import ReserveMode
from wattune.budgets.battery_rule import CHARGING, BatteryRule, PowerPoint, SunMeter
from wattune.budgets.clear_sky import Place, clear_sky_share
from wattune.cap import PowerCap
from wattune.devices.base import SUSPENDED
from wattune.devices.simulator.board_file import builtin_board
from wattune.devices.simulator.simulated import SimulatedDevice
from wattune.errors import InputError
from wattune.planning import plan

STEP_S = 300.0
DAY = int(86400 / STEP_S)
WORK_H = 20.0
RESERVE = 0.2
START_EVERY = int(6 * 3600 / STEP_S)
BOARDS = (("jetson-nano", 80.0, 20.0), ("jetson-agx-orin", 500.0, 120.0))
CHARGES = ("full", "random")
"""Charge at the starts: full, or drawn evenly between 30 and 100 %."""
LEFT_DAYS = 7
"""Days of sun that a start needs after it, in which rest alone must hold the reserve."""

BEGIN = datetime(2022, 6, 9, tzinfo=timezone.utc)
PLACES = {
    "Berlin": Place(52.52, 13.40),
    "Lagos": Place(6.52, 3.38),
    "Mexico City": Place(19.43, -99.13),
    "San Francisco": Place(37.77, -122.42),
    "Stockholm": Place(59.33, 18.07),
}
WAKE_S, WAKE_EVERY_S = 10.0, 900.0
"""Seconds awake, at rest, of each look at the charge of a suspended board."""


class Board(NamedTuple):
    """A board with its battery and panel; ``points`` are those of the plan's batch size, ``fast`` the plan's."""

    name: str
    capacity_j: float
    panel_w: float
    rest_w: float
    points: tuple[PowerPoint, ...]
    fast: PowerPoint

    @property
    def suspended_w(self) -> float:
        """Mean power of the board while it is suspended, and awake for each look at the charge."""
        return self.rest_w * (SUSPENDED + (1 - SUSPENDED) * WAKE_S / WAKE_EVERY_S)


class Start(NamedTuple):
    """A beginning: a city, the step of its trace, and the charge in joules."""

    city: str
    step: int
    charge_j: float


class Course(NamedTuple):
    """What became of a start: hours to the end of the work, hours under the reserve until a day after it."""

    hours: float
    under_h: float
    crosses: bool
    finished: bool


def board(name: str, capacity_wh: float, panel_w: float) -> Board:
    """A simulated board, at the batch size that is planned without a cap."""
    case = simulated(name)
    chosen = plan(case.table, case.efficiency, cap=PowerCap())
    points = {
        cell.knobs: PowerPoint(cell.batch_size / cell.step_s, cell.power_mean_w)
        for cell in case.table.measured
        if cell.shape == chosen.shape and cell.step_s and cell.power_mean_w
    }
    device = SimulatedDevice(builtin_board(name))
    with device.at(device.safest):
        device.wait(3600.0)
        rest_w = device.power_w()
    return Board(name, capacity_wh * 3600, panel_w, rest_w, tuple(points.values()), points[chosen.knobs])


def read_sun(folder: Path) -> dict[str, Any]:
    """City -> shares of the panel's peak. Raises: InputError."""
    path = folder / "solar.csv"
    if not path.is_file():
        raise InputError("no such file", value=str(path), hint="give the folder of solar.csv")
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    if unknown := [city for city in header[1:] if city not in PLACES]:
        raise InputError("cities whose place is not known", value=", ".join(unknown), allowed=", ".join(PLACES))
    return {city: np.array([float(row[index]) for row in rows]) for index, city in enumerate(header[1:], 1)}


# --------------------------------------------------------------------------------------------------------------- starts


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, and store the results."""
    if len(arguments) != 1:
        raise InputError("arguments of sun", value=" ".join(arguments), allowed="the folder of solar.csv")
    suns = read_sun(Path(arguments[0]))
    boards = [board(*one) for one in BOARDS]
    jobs = [(one, city, sun, charge) for one in boards for city, sun in suns.items() for charge in CHARGES]
    with ProcessPoolExecutor() as pool:
        rows = list(pool.map(all_starts, *zip(*jobs, strict=True)))
    cases = []
    for one in boards:
        for charge in CHARGES:
            of_case = [row for job, row in zip(jobs, rows, strict=True) if job[0] == one and job[3] == charge]
            cases.append(
                {
                    "device": f"sim:{one.name}",
                    "battery_wh": one.capacity_j / 3600,
                    "panel_w": one.panel_w,
                    "rest_w": one.rest_w,
                    "suspended_w": one.suspended_w,
                    "charge": charge,
                    "starts": sum(row["starts"] for row in of_case),
                    "left_out": sum(row["left_out"] for row in of_case),
                    "policies": summary([row["courses"] for row in of_case]),
                }
            )
    keep("sun", {"work_h": WORK_H, "reserve": RESERVE, "cities": list(suns), "cases": cases})


def all_starts(one: Board, city: str, sun: Any, charge: str) -> dict[str, Any]:
    """All policies from all starts in one city."""
    needed = {waiting_w: needed_j(one, sun, waiting_w) for waiting_w in (one.rest_w, one.suspended_w)}
    courses: dict[str, list[dict[str, Any]]] = {}
    starts = left_out = 0
    for step in range(0, len(sun) - LEFT_DAYS * DAY, START_EVERY):
        share = 1.0 if charge == "full" else random.Random(f"{city}/{step}").uniform(0.3, 1.0)
        start = Start(city, step, share * one.capacity_j)
        if not can_be_held(one, start, sun):
            left_out += 1
            continue
        starts += 1
        chosen = policies(one, start)
        ended = {name: follow(one, start, sun, policy, waiting_w) for name, (policy, waiting_w) in chosen.items()}
        enough_h = min(
            (
                course.hours
                for name, course in ended.items()
                if not course.crosses and course.finished and chosen[name][1] == one.rest_w
            ),
            default=(len(sun) - step) * STEP_S / 3600 - 24,
        )
        best_h = {
            waiting_w: clairvoyant_h(one, start, sun, waiting_w, needed[waiting_w], enough_h)
            for waiting_w in (one.rest_w, one.suspended_w)
        }
        for name, course in ended.items():
            over = {"over": course.hours / best_h[chosen[name][1]], "over_resting": course.hours / best_h[one.rest_w]}
            courses.setdefault(name, []).append({**course._asdict(), **over})
    return {"starts": starts, "left_out": left_out, "courses": courses}


def can_be_held(one: Board, start: Start, sun: Any) -> bool:
    """True if the resting board stays above the reserve for all of the days that a start has."""
    charge_j = start.charge_j
    for share in sun[start.step : start.step + LEFT_DAYS * DAY]:
        charge_j = min(one.capacity_j, charge_j + STEP_S * _gain_w(share * one.panel_w - one.rest_w))
        if charge_j < RESERVE * one.capacity_j:
            return False
    return True


def summary(cities: Sequence[dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Each policy over all starts."""
    names = dict.fromkeys(name for courses in cities for name in courses)
    result = {}
    for name in names:
        courses = [course for city in cities for course in city.get(name, [])]
        result[name] = {
            "hours": statistics.mean(course["hours"] for course in courses),
            "over": statistics.geometric_mean(course["over"] for course in courses),
            "over_worst": max(course["over"] for course in courses),
            "over_resting": statistics.geometric_mean(course["over_resting"] for course in courses),
            "cross": sum(course["crosses"] for course in courses),
            "under_h": math.fsum(course["under_h"] for course in courses),
            "unfinished": sum(not course["finished"] for course in courses),
        }
    return result


# ------------------------------------------------------------------------------------------------------------- policies

Policy = Callable[[float, float, float, float], "PowerPoint | None"]
"""(time, charge, joules drawn so far, samples left) -> point, None for a pause."""


def fastest_until(floor_j: Callable[[float], float], one: Board) -> Policy:
    """The fastest point above a floor."""
    return lambda time_s, charge_j, drawn_j, left: one.fast if charge_j >= floor_j(time_s) else None


def by_rule(rule: BatteryRule) -> Policy:
    """wattune's rule, with what training knows."""
    meter = SunMeter()

    def decide(time_s: float, charge_j: float, drawn_j: float, left: float) -> PowerPoint | None:
        meter.add(time_s, charge_j, drawn_j)
        return rule.decide(time_s, charge_j, sun_w=meter.watts, samples_left=left).point

    return decide


def rule_of(one: Board, start: Start, mode: ReserveMode, waiting_w: float) -> BatteryRule:
    """The rule for a start, whose time begins at it."""
    begin = BEGIN + timedelta(seconds=start.step * STEP_S)
    place = PLACES[start.city]

    def sky_w(time_s: float) -> float:
        return one.panel_w * _clear(place, begin + timedelta(seconds=time_s))

    return BatteryRule(
        one.points,
        waiting_w=waiting_w,
        capacity_j=one.capacity_j,
        reserve_j=RESERVE * one.capacity_j,
        sky_w=sky_w,
        mode=mode,
    )


_known: dict[tuple[Place, datetime], float] = {}


def _clear(place: Place, moment: datetime) -> float:
    key = place, moment
    if key not in _known:
        _known[key] = clear_sky_share(place, moment)
    return _known[key]


def policies(one: Board, start: Start) -> dict[str, tuple[Policy, float]]:
    """Name -> policy, and what the board draws while it waits."""
    reserve_j = RESERVE * one.capacity_j
    rules = {
        (mode, is_suspended): rule_of(one, start, mode, one.suspended_w if is_suspended else one.rest_w)
        for mode in ("strict", "soon")
        for is_suspended in (False, True)
    }
    result: dict[str, tuple[Policy, float]] = {
        "fastest, stops at the reserve": (fastest_until(lambda time_s: reserve_j, one), one.rest_w),
        "fastest, night budget (strict)": (fastest_until(rules["strict", False].floor_j, one), one.rest_w),
    }
    for (mode, is_suspended), rule in rules.items():
        name = f"rule, {mode}" + (", suspends" if is_suspended else "")
        result[name] = by_rule(rule), one.suspended_w if is_suspended else one.rest_w
    return result


def follow(one: Board, start: Start, sun: Any, policy: Policy, waiting_w: float) -> Course:
    """One start, until the work is done and a day after it, in which the board waits."""
    reserve_j, charge_j, drawn_j = RESERVE * one.capacity_j, start.charge_j, 0.0
    left = WORK_H * 3600 * one.fast.rate
    hours, under_s = math.nan, 0.0
    end = len(sun) - start.step
    index = 0
    while index < end:
        point = policy(index * STEP_S, charge_j, drawn_j, left) if left > 0 else None
        work_s = 0.0 if point is None else min(STEP_S, left / point.rate)
        power_w = waiting_w if point is None else (work_s * point.power_w + (STEP_S - work_s) * waiting_w) / STEP_S
        if point is not None:
            left -= work_s * point.rate
            if left <= 1e-6:
                left, hours, end = 0.0, (index * STEP_S + work_s) / 3600, min(end, index + DAY)
        charge_j = min(one.capacity_j, charge_j + STEP_S * _gain_w(sun[start.step + index] * one.panel_w - power_w))
        drawn_j += power_w * STEP_S
        under_s += STEP_S if charge_j < reserve_j - 1e-6 else 0.0
        index += 1
    finished = not math.isnan(hours)
    return Course(float(hours) if finished else end * STEP_S / 3600, float(under_s / 3600), bool(under_s > 0), finished)


def _gain_w(net_w: float) -> float:
    return CHARGING * net_w if net_w > 0 else net_w


# ---------------------------------------------------------------------------------------------------------- clairvoyant


def needed_j(one: Board, sun: Any, waiting_w: float) -> Any:
    """The least charge at each step from which the waiting board holds the reserve, for a day; ``(steps + 1,)``."""
    count = len(sun)
    gains_j = [STEP_S * _gain_w(share * one.panel_w - waiting_w) for share in sun]
    needed = np.full(count + 1, RESERVE * one.capacity_j)
    for first in range(count, -1, -1):
        need, until = RESERVE * one.capacity_j, min(count, first + DAY)
        for index in range(until - 1, first - 1, -1):
            need = max(RESERVE * one.capacity_j, need - gains_j[index])
        needed[first] = need
    return needed


def clairvoyant_h(one: Board, start: Start, sun: Any, waiting_w: float, needed: Any, at_most_h: float) -> float:
    """Hours of the fastest course that is possible with the true sun; ``at_most_h`` are enough for some course."""
    work = WORK_H * 3600 * one.fast.rate
    low, high = math.ceil(WORK_H * 3600 / STEP_S) - 1, math.ceil(at_most_h * 3600 / STEP_S)
    samples = math.nan  # in ``high`` steps
    while high - low > 1:
        middle = (low + high) // 2
        done = most_progress(one, start, sun[start.step : start.step + middle], waiting_w, needed[start.step + middle])
        if done is None or done < work * (1 - 1e-9):
            low = middle
        else:
            high, samples = middle, done
    # The last step is used only in part.
    unused = 0.0 if math.isnan(samples) else min(1.0, (samples - work) / (one.fast.rate * STEP_S))
    return (high - unused) * STEP_S / 3600


def most_progress(one: Board, start: Start, sun: Any, waiting_w: float, end_j: float) -> float | None:
    """The most samples in these steps, if the charge ends at ``end_j`` or more; None if that is not possible."""
    steps, points = (
        len(sun),
        BatteryRule(one.points, waiting_w=waiting_w, capacity_j=one.capacity_j, reserve_j=0.0).points,
    )
    count = len(points)
    # Variables: the share of each step at each point, (steps, count); then the charge after each step, (steps,).
    size, base = steps * (count + 1), steps * count
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    bounds: list[float] = []

    def add(row: int, column: int, value: float) -> None:
        rows.append(row)
        columns.append(column)
        values.append(value)

    row = 0
    for step in range(steps):
        net_w = sun[step] * one.panel_w - waiting_w
        for share in (CHARGING, 1.0):  # a charge rises by the smaller of the two
            add(row, base + step, 1.0)
            if step:
                add(row, base + step - 1, -1.0)
            for index, point in enumerate(points):
                add(row, step * count + index, share * STEP_S * (point.power_w - waiting_w))
            bounds.append(share * STEP_S * net_w + (0.0 if step else start.charge_j))
            row += 1
        for index in range(count):
            add(row, step * count + index, 1.0)
        bounds.append(1.0)
        row += 1
    matrix = coo_matrix((values, (rows, columns)), shape=(row, size)).tocsr()
    cost = np.concatenate([np.tile([-point.rate * STEP_S for point in points], steps), np.zeros(steps)])
    limits = [(0.0, 1.0)] * base + [(RESERVE * one.capacity_j, one.capacity_j)] * steps
    limits[-1] = (end_j, one.capacity_j)
    result = linprog(cost, A_ub=matrix, b_ub=bounds, bounds=limits, method="highs")
    return -float(result.fun) if result.status == 0 else None


if __name__ == "__main__":
    main()
