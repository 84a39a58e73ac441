"""Regret of a run that searches for the best point while it trains: random boards, five workloads, several caps.

Every run trains on a simulated board, under wattune's meter and limiter: probes and training are steps of counted work.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from benchmarks.session_worlds import TASKS, World, work_of, world
from benchmarks.timing import keep
from wattune.cap import PowerCap
from wattune.devices import Meter
from wattune.devices.meter import sensor_window
from wattune.devices.simulator.simulated import SimulatedDevice
from wattune.errors import OutOfDeviceMemory
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.power.limiter import PowerLimiter
from wattune.sample_efficiency.prior import relative_samples
from wattune.search.observation import Stretch
from wattune.search.policy import SESSION, SESSION_BY_CURVE
from wattune.search.search import Search

FRESH = range(1000, 1020)
"""Seeds of the boards of the published figures: the search was tuned on those from 0 to 19."""

CAPS = (0.3, 0.6, 0.9)
"""Caps as shares of the range from the least to the most that any point draws."""

TRAINING_S = 3600.0
"""Time of a run at its best point."""

MOMENTS_S = {"60 s": 60.0, "5 min": 300.0, "10 %": 0.1 * TRAINING_S}
KNOWLEDGE = ("recipe", "curve", "noise scale", "prior")
ASK_EVERY_S = 15.0


@dataclass
class Run:
    """First tenth of a run: its regret at each moment, and its cost."""

    in_force: dict[str, float] = field(default_factory=dict)
    probing_s: float = 0.0
    above_probing: int = 0
    above_training: int = 0


class Trainer:
    """Training on a simulated board, at points that the search chooses."""

    def __init__(self, place: World, cap_w: float, seed: int, *, knows_curve: bool):
        self.place, self.cap_w, self.knows_curve = place, cap_w, knows_curve
        self.device = SimulatedDevice(place.board, seed=seed)
        self.limit = PowerCap(cap_w).at_sensor(None, self.device.sensor.window_s)
        self._window = sensor_window(self.device.sensor, self.limit)
        self.run = Run()
        self.is_probing = False
        self.above: list[float] = []
        self.point: OperatingPoint | None = None
        self.force: OperatingPoint | None = None
        self.moments = dict(MOMENTS_S)
        self.best_cost = math.inf
        best = place.best(cap_w - place.allowance_w())
        assert best is not None
        self.best_cost = place.cost(best)
        self.begun_s = self.device.now_s()
        self._setting: Any = None
        self._limiter: PowerLimiter | None = None
        self.probed_s = self.changed_s = -math.inf

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Context of the whole session: the board at its lowest clock, the meter and a limiter."""
        with self.device.at(self.device.safest) as self._setting:
            self.device.wait(self.device.sensor.settle_s)
            self.begun_s = self.device.now_s()
            self._limiter = None
            with Meter(self.device, limit=self.limit, on_reading=self._read):
                yield

    @property
    def time_s(self) -> float:
        """Time of the run so far."""
        return self.device.now_s() - self.begun_s

    @property
    def over(self) -> bool:
        """True once the last moment has passed."""
        return not self.moments

    def go(self, point: OperatingPoint) -> None:
        """Set the board to a point; the limiter restarts at its clock."""
        if point.knobs != self._setting.knobs:
            self._setting.change(point.knobs)
        self.point = point
        self.changed_s = self.device.now_s()
        self._limiter = PowerLimiter(self.device, self._setting, self.limit)
        self._window.restart(self.device.sensor.settle_s)

    def step(self) -> float:
        """Run one optimizer step; return its time."""
        assert self.point is not None
        row = self.point.shape
        before_s = self.device.now_s()
        with self.device.step(work_of(self.place.task, row)):
            pass
        while self.moments and self.time_s >= next(iter(self.moments.values())):
            name = next(iter(self.moments))
            del self.moments[name]
            force = self.force if self.force is not None else self.point
            self.run.in_force[name] = self.place.cost(force) / self.best_cost - 1
        return self.device.now_s() - before_s

    def probe(self, point: OperatingPoint, *, brief: bool = False) -> tuple[float, float, float, float] | float | None:
        """Probe a point: step time, mean power, highest mean over the cap's window, and seconds.

        If the power exceeds the cap, a mean above it; None if the point does not fit in memory.
        """
        sensor = self.device.sensor
        self.go(point)
        self.is_probing, self.above = True, []
        begun_s = self.device.now_s()
        try:
            while not self.above and self.device.now_s() - begun_s < sensor.settle_s:
                self.step()
            times: list[float] = []
            if not self.above:
                with Meter(self.device, limit=self.limit) as meter:
                    count = 1 if brief else 3
                    least_s = max(count * max(sensor.window_s, sensor.period_s), self.limit.window_s or 0.0)
                    while not self.above and (sum(times) < least_s or len(times) < count):
                        times.append(self.step())
                figures = meter.figures()
        except OutOfDeviceMemory:
            return None
        finally:
            self.is_probing = False
            self.probed_s = self.device.now_s()
            self.run.probing_s += self.device.now_s() - begun_s
        if self.above:
            self._calm()
            return self.above[0]
        return mean(times), figures.power_mean_w, figures.power_window_w or 0.0, figures.time_s

    def _calm(self) -> None:
        """Train at the lowest clock until the sensor's average no longer includes the probe."""
        assert self.point is not None
        power_w = self.above
        self.go(OperatingPoint(self.point.shape, self.device.safest))
        self.is_probing = True
        while self.device.now_s() - self.changed_s < self.device.sensor.settle_s:
            self.step()
        self.is_probing, self.above = False, power_w
        self.probed_s = self.device.now_s()

    def train(self, point: OperatingPoint, seconds: float) -> tuple[float, float, float, float] | float:
        """Train at a point for ``seconds``; the result is that of ``probe``."""
        self.go(point)
        self.force, self.above = point, []
        begun_s, times = self.device.now_s(), []
        while self.device.now_s() - begun_s < self.device.sensor.settle_s:
            self.step()
        with Meter(self.device, limit=self.limit) as meter:
            while not self.over and not self.above and (not times or self.device.now_s() - begun_s < seconds):
                times.append(self.step())
        figures = meter.figures()
        if self.above:
            return self.above[0]
        return mean(times) if times else 1.0, figures.power_mean_w, figures.power_window_w or 0.0, figures.time_s

    def _read(self, time_s: float, power_w: float) -> None:
        if self._limiter is None:
            return
        self._limiter(time_s, power_w)
        self._window.add(self.device.now_s(), power_w)
        if not self._window.is_above:
            return
        if self.is_probing or self.device.now_s() - self.probed_s < self.device.sensor.settle_s:
            self.run.above_probing += 1  # also while the sensor's average still includes the probe
        else:
            self.run.above_training += 1
        if self.device.now_s() - self.changed_s >= self.device.sensor.settle_s or self.is_probing:
            self.above.append(self._window.mean_w)


# ----------------------------------------------------------------------------------------------------------- search


def guided(trainer: Trainer, relative: Mapping[int, tuple[float, float]]) -> None:
    """Search as a session does."""
    place, device = trainer.place, trainer.device
    user = place.task.user
    search = Search(
        place.rows,
        device.combinations(),
        cap_w=trainer.cap_w,
        start=BatchShape(user, user),
        samples_left=TRAINING_S / trainer.best_cost,
        **device.sensor.searched,
        cap_window_s=trainer.limit.window_s,
        manner=SESSION_BY_CURVE if trainer.knows_curve else SESSION,
    )
    search.relative(relative)
    while not trainer.over:
        point = search.next()
        trainer.force = search.best()
        if point is not None:
            _tell(search, point, trainer.probe(point, brief=search.is_brief(point)))
        else:
            best = search.best()
            assert best is not None, search.reason
            _tell(search, best, trainer.train(best, ASK_EVERY_S))


def _tell(search: Search, point: OperatingPoint, figures: tuple[float, float, float, float] | float | None) -> None:
    if figures is None:
        search.unfit(point.shape)
    elif isinstance(figures, float):
        search.above(point, figures)
    else:
        search.tell(point, Stretch(*figures))


# -------------------------------------------------------------------------------------------------------------- figures


def knowledge(place: World, kind: str, draw: random.Random) -> dict[int, tuple[float, float]]:
    """Estimates of the relative samples: from a measured curve, from a noise scale, or the prior."""
    user = place.task.user
    sizes = sorted(place.relative)
    if kind == "curve":
        return {b: (place.relative[b] * math.exp(0.03 * draw.gauss(0, 1) * (b != user)), 0.03) for b in sizes}
    scale = math.exp(math.log(place.critical) - 0.3 + 0.9 * draw.gauss(0, 1)) if kind == "noise scale" else None
    return relative_samples(sizes, scale, reference=user)


def cases(seed: int) -> list[dict[str, Any]]:
    """Search on one board, with each task, knowledge and cap."""
    runs = []
    for task in TASKS:
        for kind in KNOWLEDGE:
            place = world(seed, task, keep_recipe=kind == "recipe")
            lowest_w, highest_w = min(place.peak_w.values()), max(place.peak_w.values())
            relative = knowledge(place, kind, random.Random(f"{seed} {task.name} {kind}"))
            for share in CAPS:
                cap_w = lowest_w + place.allowance_w() + share * (highest_w - lowest_w)
                least = place.peak_w.get(
                    OperatingPoint(BatchShape(task.user, task.user), Knobs(clock_mhz=place.board.gpu.clocks_mhz[0]))
                )
                if least is None or least + place.allowance_w() > cap_w:
                    continue  # the user's own row cannot be trained at all
                free, capped = place.best(cap_w), place.best(cap_w - place.allowance_w())
                assert free is not None
                assert capped is not None
                trainer = Trainer(place, cap_w, seed, knows_curve=kind == "curve")
                with trainer.training():
                    guided(trainer, relative)
                noise_price = place.cost(capped) / place.cost(free) - 1
                runs.append({"kind": kind, "noise_price": noise_price, **vars(trainer.run)})
    return runs


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over runs."""
    result: dict[str, Any] = {"runs": len(runs)}
    for moment in MOMENTS_S:
        values = [run["in_force"][moment] for run in runs]
        below = mean(value < 0.01 for value in values)
        result[f"in_force {moment}"] = {"mean": round(mean(values), 4), "below 1 %": round(below, 3)}
    result["probing_s"] = round(mean(run["probing_s"] for run in runs), 1)
    for what in ("above_probing", "above_training"):
        result[f"runs_{what}"] = sum(run[what] > 0 for run in runs)
    # Cost of the fastest point under the cap with noise on top, relative to the fastest whose true power is under it.
    result["noise_price"] = round(mean(run["noise_price"] for run in runs), 4)
    return result


def main(seeds: Sequence[int] = FRESH) -> None:
    """Run all boards, in as many processes as there are cores, and store the results."""
    with ProcessPoolExecutor() as pool:
        runs = [run for part in pool.map(cases, seeds) for run in part]
    figures = {kind: summary([run for run in runs if run["kind"] == kind]) for kind in KNOWLEDGE}
    keep("session", {"boards": len(seeds), "workloads": len(TASKS), "caps": list(CAPS), "regret": figures})
