"""Caps that change: one batch size whose clocks follow, against a new choice under each cap, and the best single point.

`python -m benchmarks moving_caps [FOLDER]`: 50 days from a seeded generator, on the exact tables of three simulated
boards and, with the folder of the Zeus traces, on a recorded GPU. Progress is arithmetic on those tables. The time
above the cap is that of the real limiter and follower on a simulated board, whose exact power is known.

Samples to target are assumed to grow as 1 + b / 30 on the simulated boards; the GPU has its own recorded epochs.

Source of the GPU's table: You, Chung, Chowdhury (NSDI 2023), github.com/ml-energy/zeus, its NSDI '23 trace, Apache-2.0.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.decisions.traces import rows_of
from benchmarks.groups import exact_cells
from benchmarks.session_worlds import TASKS, work_of
from benchmarks.timing import folder_of, keep
from wattune.cap import PowerCap, SensorLimit
from wattune.cap_source import CalledCap, CapSource, CapTrace
from wattune.devices.simulator.board_file import builtin_board
from wattune.devices.simulator.simulated import SimulatedDevice
from wattune.errors import NoFeasiblePoint
from wattune.planning import plan
from wattune.point import BatchShape, Knobs
from wattune.power.cap_follower import CapFollower
from wattune.power.capped_run import CappedRun
from wattune.records import EfficiencyPoint, Plan, ProfileCell, ProfileTable, SampleEfficiency

DAYS = 50
HOUR_S = 3600.0
BOARDS = ("jetson-nano", "jetson-tx2-nx", "jetson-tx2")
TASK = next(task for task in TASKS if task.name == "resnet8")
SIZES = (4, 8, 16, 32, 64, 128, 256, 512)
HALF_SAMPLES = 30
"""Batch size at which twice the samples are needed."""

DATASET, NETWORK, OPTIMIZER, TARGET, SAMPLES = "cifar100", "shufflenetv2", "adadelta", 0.6, 50_000
"""The recorded GPU's workload, and the samples of one of its epochs. Source: Zeus, NSDI 2023, table 1."""

CAP_S = 120.0
"""Seconds that each of the caps lasts through which the limiter is measured."""

CAPS = 24
PEAK = PowerCap(window="peak")
MARGIN = 0.02
"""Share of the highest power that stays unused on a board that warms up: the exact tables are of a cold chip."""


class Case(NamedTuple):
    """A device's table, with the samples that each batch size needs."""

    name: str
    table: ProfileTable
    efficiency: SampleEfficiency

    @property
    def powers_w(self) -> tuple[float, float]:
        """Lowest and highest power of all points."""
        powers_w = [cell.power_peak_w for cell in self.table.measured if cell.power_peak_w is not None]
        return min(powers_w), max(powers_w)


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, and store the results."""
    cases = [simulated(name) for name in BOARDS]
    if arguments:
        cases.append(recorded(folder_of("moving_caps", arguments, "the folder of the Zeus traces")))
    keep(
        "moving_caps",
        {
            "days": DAYS,
            "boards": [progress(case) for case in cases],
            "limiter": [above_the_cap(name) for name in BOARDS],
        },
    )


def simulated(name: str) -> Case:
    """The exact table of a simulated board's GPU, at every clock that it begins with."""
    device = SimulatedDevice(builtin_board(name))
    shapes = [BatchShape.of(size) for size in SIZES]
    cells = [cell for shape in shapes for cell in exact_cells(device, shape, work_of(TASK, shape))]
    relative = {size: (1 + size / HALF_SAMPLES) / (1 + SIZES[-1] / HALF_SAMPLES) for size in SIZES}
    return _case(f"sim:{name}", cells, relative)


def recorded(folder: Path) -> Case:
    """An A40 with its power limits, from the Zeus traces. Raises: InputError."""
    rows = [row for row in _rows(folder / "summary_power_a40.csv") if row["optimizer"] == OPTIMIZER]
    epochs: dict[int, list[float]] = {}
    for row in _rows(folder / "summary_train.csv"):
        if row["optimizer"] == OPTIMIZER and float(row["target_metric"]) == TARGET:
            epochs.setdefault(int(row["batch_size"]), []).append(float(row["target_epoch"]))
    # A run that missed the target has no number of epochs.
    epochs = {size: values for size, values in epochs.items() if not any(math.isnan(value) for value in values)}
    cells = [
        ProfileCell(
            batch_size=int(row["batch_size"]),
            power_limit_w=float(row["power_limit"]),
            step_s=float(row["time_per_epoch"]) / SAMPLES * int(row["batch_size"]),
            power_mean_w=float(row["average_power"]),
            power_peak_w=float(row["power_limit"]),  # the card holds it
            steps=1,
        )
        for row in rows
        if int(row["batch_size"]) in epochs
    ]
    mean = {size: statistics.mean(epochs[size]) for size in sorted({cell.batch_size for cell in cells})}
    return _case("A40, CIFAR-100", cells, {size: value / mean[max(mean)] for size, value in mean.items()})


def _case(name: str, cells: list[ProfileCell], relative: dict[int, float]) -> Case:
    points = tuple(EfficiencyPoint(batch_size=size, relative_samples=value) for size, value in relative.items())
    curve = SampleEfficiency(workload=TASK.name, reference_batch_size=max(relative), points=points)
    return Case(name, ProfileTable(device=name, workload=TASK.name, cells=tuple(cells)), curve)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    return (row for row in rows_of(path) if (row["dataset"], row["network"]) == (DATASET, NETWORK))


# --------------------------------------------------------------------------------------------------------------- days


def new_caps(draw: random.Random, low_w: float, high_w: float) -> CapTrace:
    """A day with a new cap each hour, from just below the lowest power to the highest."""
    caps_w = tuple(draw.uniform(0.95 * low_w, high_w) for _ in range(CAPS))
    return CapTrace(PEAK, tuple(HOUR_S * hour for hour in range(CAPS)), caps_w)


def other_load(draw: random.Random, low_w: float, high_w: float) -> CapTrace:
    """A day of a constant supply, enough for every point, that another load shares: on and off for an hour on average,
    it leaves anything from all of the powers of the points to none."""
    times_s, caps_w, is_on = [0.0], [high_w], False
    while True:
        following_s = times_s[-1] + draw.expovariate(1 / HOUR_S) + 60.0
        if following_s >= CAPS * HOUR_S:
            return CapTrace(PEAK, tuple(times_s), tuple(caps_w))
        is_on = not is_on
        times_s.append(following_s)
        caps_w.append(draw.uniform(0.95 * low_w, high_w) if is_on else high_w)


GENERATORS = {"a new cap each hour": new_caps, "another load": other_load}


def progress(case: Case) -> dict[str, Any]:
    """Progress over all days, of each kind of day."""
    kinds = {}
    for kind, generate in GENERATORS.items():
        days = []
        for day in range(DAYS):
            trace = generate(random.Random(f"{case.name}/{kind}/{day}"), *case.powers_w)
            try:
                days.append(plan(case.table, case.efficiency, cap=trace))
            except NoFeasiblePoint:
                continue
        of_clairvoyant = [one.of_clairvoyant or 0.0 for one in days]
        over_constant = [one.over_constant or 0.0 for one in days]
        kinds[kind] = {
            "days": len(days),
            "of_clairvoyant": statistics.mean(of_clairvoyant),
            "of_clairvoyant_worst": min(of_clairvoyant),
            "over_constant": statistics.mean(over_constant),
            "over_constant_worst": min(over_constant),
        }
    return {"device": case.name, "of": kinds}


# ------------------------------------------------------------------------------------------------------------- limiter


def above_the_cap(name: str) -> dict[str, Any]:
    """Exact seconds with the windowed mean above the cap on a board: under announced caps, and the same unannounced."""
    case = simulated(name)
    low_w, high_w = case.powers_w
    form = PowerCap(margin_w=MARGIN * high_w)
    draw = random.Random(f"{name}/limiter")
    caps_w = tuple(draw.uniform(1.1 * low_w, 1.05 * high_w) for _ in range(CAPS))
    trace = CapTrace(form, tuple(CAP_S * index for index in range(CAPS)), caps_w)
    chosen = plan(case.table, case.efficiency, cap=CapTrace(PowerCap(window="peak"), trace.times_s, caps_w))
    lowerings = sum(later < earlier for earlier, later in pairwise(caps_w))
    return {
        "device": case.name,
        "caps": CAPS,
        "seconds": CAPS * CAP_S,
        "lowerings": lowerings,
        "announced": _follow(name, chosen, trace, trace),
        "unannounced": _follow(name, chosen, trace, CalledCap(form, cap_w=trace.watts)),
    }


def _follow(name: str, plan: Plan, trace: CapTrace, cap: CapSource) -> dict[str, Any]:
    """Train steps under the caps."""
    device = SimulatedDevice(builtin_board(name), seed=1)
    work = work_of(TASK, plan.shape)
    known = {knobs: step for knobs, step in device.exact_steps(work).items() if knobs}

    def setting(limit: SensorLimit) -> Knobs | None:
        allowed = [knobs for knobs, step in known.items() if limit.allows(step.power_peak_w)]
        return min(allowed, key=lambda knobs: known[knobs].step_s, default=None)

    first = cap.limit(trace.caps_w[0], None, device.sensor.window_s)
    assert first is not None  # none of these caps is a pause
    run = CappedRun(device, first, device.safest)
    run.follow(CapFollower(run, cap, setting, averaging_s=device.sensor.window_s))
    above_s = [0.0] * len(trace.times_s)
    with run:
        run.start()
        assert run.truth is not None
        with run.following():
            while run.meter.elapsed_s < len(above_s) * CAP_S:
                run.check()
                run.hold(min(step.step_s for step in known.values()))
                with device.step(work):
                    pass
                index = min(len(above_s) - 1, int(run.meter.elapsed_s / CAP_S))
                above_s[index] = run.truth.figures().above_cap_s - sum(above_s[:index])
        assert first.window_s is not None
        return {
            "above_s": run.truth.figures().above_cap_s,
            "most_above_s": max(above_s),
            "window_s": first.window_s,
        }
