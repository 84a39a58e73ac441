"""The board's own sensor against an external meter: what the supply gives for what the module draws.

    supply_w = (module_w + other_w) / efficiency

``other_w`` is what the carrier board, the fan and what is plugged in draw beside the module; ``efficiency`` is that of
the converter between the supply's terminals and the board.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattune.devices import Device
from wattune.devices.local import mapped
from wattune.doctor.load import Busy, cores
from wattune.doctor.sensing import watch
from wattune.doctor.software import torch_here
from wattune.errors import DeviceError, InputError, SensorError
from wattune_agent.supply import save_supply
from wattune_agent.tree import Tree

SETTLE_S, WATCH_S = 5.0, 10.0
"""Time that a load is left to settle, and that it is measured for."""
LEAST_SPREAD = 0.15
"""The loads have to differ by so much of their mean, or a line through them says nothing."""
SAME = 0.97
"""A meter that shows this share of the module's power and more may be as exact as meters are."""
MOST_RESIDUAL = 0.05
"""Of the mean supply power; with more than that the two meters do not follow each other."""


@dataclass(frozen=True)
class Pair:
    """One load: what the board's sensor and the external meter showed, in watts."""

    words: str
    module_w: float
    supply_w: float


@dataclass(frozen=True)
class Calibration:
    """``supply_w = (module_w + other_w) / efficiency``, its largest and its root mean square residual in watts, and
    the pairs that it was fitted to."""

    other_w: float
    efficiency: float
    residual_w: float
    largest_w: float
    pairs: tuple[Pair, ...]


def fit(pairs: Sequence[Pair]) -> Calibration:
    """Least squares over the pairs, with an efficiency of at most 1 and nothing negative beside the module.

    Raises: InputError where the loads do not differ enough, or the meter does not follow the board.
    """
    module, supply = [p.module_w for p in pairs], [p.supply_w for p in pairs]
    if len(pairs) < 3 or max(module) - min(module) < LEAST_SPREAD * statistics.fmean(module):
        raise InputError(
            "the loads do not differ enough to calibrate",
            value=", ".join(f"{m:.3g} W" for m in module),
            allowed=f"three or more, {LEAST_SPREAD:.0%} of their mean apart",
            hint="end what else runs on the board; on a board with a GPU install a torch that can use it",
        )
    slope, base_w = statistics.linear_regression(module, supply)
    if slope <= 0:
        raise InputError(
            "the meter does not follow the board", hint="see that it measures this board, and its field and unit"
        )
    if slope < 1:  # an efficiency above 1 is no more than noise: there is no loss then
        slope, base_w = 1.0, statistics.fmean(s - m for m, s in zip(module, supply, strict=True))
    if base_w < 0:
        slope, base_w = sum(m * s for m, s in zip(module, supply, strict=True)) / sum(m * m for m in module), 0.0
        if SAME < slope < 1:
            slope = 1.0
    residuals = [s - (slope * m + base_w) for m, s in zip(module, supply, strict=True)]
    residual_w = math.sqrt(statistics.fmean(r * r for r in residuals))
    if slope < 1 or residual_w > MOST_RESIDUAL * statistics.fmean(supply):
        raise InputError(
            "the meter does not follow the board",
            value="; ".join(f"{p.words}: module {p.module_w:.3g} W, meter {p.supply_w:.3g} W" for p in pairs),
            allowed=f"a straight line within {MOST_RESIDUAL:.0%}, with the meter never below the module",
            hint="see that the meter measures this board alone, and its field and unit",
        )
    return Calibration(base_w / slope, 1 / slope, residual_w, max(map(abs, residuals)), tuple(pairs))


def calibrate(device: Device, meter: Device, say: Callable[[str], None]) -> Calibration:
    """Read both under several loads, and fit. Raises: InputError, SensorError, DeviceError."""
    pairs = []
    on_gpu = device.trains_on == "gpu" and torch_here().gpu is not None
    for words, load in _loads(on_gpu=on_gpu):
        say(f"calibrating: {words}, {SETTLE_S + WATCH_S:g} s")
        if load is None:
            pairs.append(_pair(device, meter, words))
            continue
        with load:
            load.begin()
            pairs.append(_pair(device, meter, words))
    return fit(pairs)


def keep(device: Device, calibration: Calibration, tree: Tree) -> str:
    """Keep it for this board, for the system where this user may, else for the user; the file's path.

    Raises: BoardUnusable where it cannot be kept.
    """
    with mapped():
        return save_supply(tree, device.name, calibration.other_w, calibration.efficiency)


def _loads(*, on_gpu: bool) -> list[tuple[str, Busy | None]]:
    most = cores()
    counts = sorted({max(1, round(most * share)) for share in (1 / 3, 2 / 3, 1)})
    loads: list[tuple[str, Busy | None]] = [("at rest", None)]
    loads += [(load.words, load) for load in (Busy(count) for count in counts)]
    if on_gpu:
        loads.append(("the GPU busy", Busy(1, on_gpu=True)))
    return loads


def _pair(device: Device, meter: Device, words: str) -> Pair:
    device.wait(SETTLE_S)
    supply: list[float] = []

    def read() -> None:
        supply.append(meter.power_w())

    # The meter at its own pace and from its own thread: an answer over the network may take long.
    with meter.every(max(0.5, meter.sensor.period_s), read):
        module = watch(device, WATCH_S, poll_s=0.1)
    if not supply:
        raise SensorError(f"{meter.name}: no reading in {WATCH_S:g} s")
    if not all(map(math.isfinite, supply)):
        raise DeviceError(f"{meter.name}: a reading is no number")
    return Pair(words, module.mean_w, statistics.fmean(supply))
