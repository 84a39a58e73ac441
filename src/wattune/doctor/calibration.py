"""Calibration of the board's sensor against an external meter: power at the supply by power of the module.

    supply_w = (module_w + other_w) / efficiency

``other_w`` is the power of the carrier board, the fan and attached devices; ``efficiency`` is that of the converter
between the supply's terminals and the board.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattune.devices import Device
from wattune.devices.real_time import mapped
from wattune.doctor.interpreter import own_interpreter
from wattune.doctor.load import BusyProcess, cores
from wattune.doctor.sensor_checks import record_trace
from wattune.errors import DeviceError, InputError, SensorError
from wattune_agent.supply import save_supply
from wattune_agent.tree import Tree

SETTLE_S, MEASURE_S = 5.0, 10.0
"""Time that a load settles for, and that it is measured for."""
MIN_SPREAD = 0.15
"""Least difference between the largest and the smallest load, relative to their mean, for a line through them."""
METER_TOLERANCE = 0.03
"""A meter may read less than the module's sensor by this share of its power: both have errors."""
MAX_RESIDUAL = 0.05
"""Largest root mean square residual, relative to the mean supply power, of two meters that follow each other."""


@dataclass(frozen=True)
class Pair:
    """Readings of the board's sensor and of the external meter under one load, in watts."""

    words: str
    module_w: float
    supply_w: float


@dataclass(frozen=True)
class Calibration:
    """Fit of ``supply_w = (module_w + other_w) / efficiency`` to pairs of readings.

    ``residual_w`` and ``largest_w`` are the root mean square and the largest residual, in watts.
    """

    other_w: float
    efficiency: float
    residual_w: float
    largest_w: float
    pairs: tuple[Pair, ...]


def fit(pairs: Sequence[Pair]) -> Calibration:
    """Fit the pairs by least squares, with an efficiency of at most 1 and no negative ``other_w``.

    Raises: InputError if the loads do not differ enough, or the meter does not follow the board.
    """
    module, supply = [p.module_w for p in pairs], [p.supply_w for p in pairs]
    if len(pairs) < 3 or max(module) - min(module) < MIN_SPREAD * statistics.fmean(module):
        raise InputError(
            "the loads do not differ enough to calibrate",
            value=", ".join(f"{m:.3g} W" for m in module),
            allowed=f"three or more loads, with a spread of at least {MIN_SPREAD:.0%} of their mean",
            hint="end other programs on the board; if it has a GPU, install a torch that can use it",
        )
    slope, base_w = statistics.linear_regression(module, supply)
    if slope <= 0:
        raise InputError(
            "the meter does not follow the board",
            hint="check that it measures this board, and that its field and unit are right",
        )
    if slope < 1:  # an efficiency above 1 is noise: assume a converter without loss
        slope, base_w = 1.0, statistics.fmean(s - m for m, s in zip(module, supply, strict=True))
    if base_w < 0:
        slope, base_w = sum(m * s for m, s in zip(module, supply, strict=True)) / sum(m * m for m in module), 0.0
        if 1 - METER_TOLERANCE < slope < 1:
            slope = 1.0
    residuals = [s - (slope * m + base_w) for m, s in zip(module, supply, strict=True)]
    residual_w = math.sqrt(statistics.fmean(r * r for r in residuals))
    if slope < 1 or residual_w > MAX_RESIDUAL * statistics.fmean(supply):
        raise InputError(
            "the meter does not follow the board",
            value="; ".join(f"{p.words}: module {p.module_w:.3g} W, meter {p.supply_w:.3g} W" for p in pairs),
            allowed=f"a straight line within {MAX_RESIDUAL:.0%}, with the meter never below the module",
            hint="check that it measures this board alone, and that its field and unit are right",
        )
    return Calibration(base_w / slope, 1 / slope, residual_w, max(map(abs, residuals)), tuple(pairs))


def calibrate(device: Device, meter: Device, say: Callable[[str], None]) -> Calibration:
    """Read the board's sensor and the meter under several loads, and fit. Raises: InputError, DeviceError."""
    pairs = []
    on_gpu = device.trains_on == "gpu" and own_interpreter().gpu is not None
    for words, load in _loads(on_gpu=on_gpu):
        say(f"calibrating: {words}, {SETTLE_S + MEASURE_S:g} s")
        if load is None:
            pairs.append(_pair(device, meter, words))
            continue
        with load:
            load.begin()
            pairs.append(_pair(device, meter, words))
    return fit(pairs)


def save_calibration(device: Device, calibration: Calibration, tree: Tree) -> str:
    """Save the calibration of this board, for the whole system if permitted, else for this user; return the path.

    Raises: DeviceUnavailable if it cannot be saved.
    """
    with mapped():
        return save_supply(tree, device.name, calibration.other_w, calibration.efficiency)


def _loads(*, on_gpu: bool) -> list[tuple[str, BusyProcess | None]]:
    total = cores()
    counts = sorted({max(1, round(total * share)) for share in (1 / 3, 2 / 3, 1)})
    loads: list[tuple[str, BusyProcess | None]] = [("at rest", None)]
    loads += [(load.words, load) for load in (BusyProcess(count) for count in counts)]
    if on_gpu:
        loads.append(("the GPU busy", BusyProcess(1, on_gpu=True)))
    return loads


def _pair(device: Device, meter: Device, words: str) -> Pair:
    device.wait(SETTLE_S)
    supply: list[float] = []

    def read() -> None:
        supply.append(meter.power_w())

    # The meter is read at its own rate and in its own thread: an answer over the network may take long.
    with meter.every(max(0.5, meter.sensor.period_s), read):
        module = record_trace(device, MEASURE_S, poll_s=0.1)
    if not supply:
        raise SensorError(f"{meter.name}: no reading in {MEASURE_S:g} s")
    if not all(map(math.isfinite, supply)):
        raise DeviceError(f"{meter.name}: a reading is not a number")
    return Pair(words, module.mean_w, statistics.fmean(supply))
