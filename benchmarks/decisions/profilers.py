"""Ways to probe a board and to pick a cell, with the samples to the target known (or believed) per batch size.

Each returns the cells that it measured, the most careful reading of each, and its pick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.decisions.boards import Cell, Reading, Rig
from wattune.profiling import grid
from wattune.records import AbortedProbe, ProfileCell

Samples = Mapping[int, float]
"""Batch size -> samples to the target, up to a factor."""


@dataclass
class Found:
    """What a way to probe came to; ``stated`` is the pick's probability to be over the cap, where it says one."""

    pick: Cell | None = None
    measured: dict[Cell, Reading] = field(default_factory=dict)
    reason: str = ""
    step_s: list[float] = field(default_factory=list)
    stated: float | None = None


def full_grid(rig: Rig, samples: Samples) -> Found:
    """Every cell once; the fastest of those whose highest reading keeps the cap."""
    found = Found()
    grid.full(_rows(rig), rig.board.clocks_mhz, _measure(rig, found, abort=False))
    return _picked(rig, found, samples)


def staircase(rig: Rig, samples: Samples) -> Found:
    """The paper's way under a known cap, as `wattune profile --strategy staircase` walks it."""
    found = Found()
    grid.staircase(_rows(rig), rig.board.clocks_mhz, _measure(rig, found))
    return _picked(rig, found, samples)


def batch_first(rig: Rig, samples: Samples) -> Found:
    """The batch size with the fewest samples, and then its highest clock that keeps the cap, found upwards."""
    return _one_row(rig, samples, sorted(rig.board.batch_sizes, key=lambda size: samples[size]))


def largest_batch(rig: Rig, samples: Samples) -> Found:
    """The same with the largest batch size."""
    return _one_row(rig, samples, sorted(rig.board.batch_sizes, reverse=True))


def fastest_sample(rig: Rig, samples: Samples) -> Found:
    """The full grid, as if all batch sizes needed the same number of samples."""
    return full_grid(rig, dict.fromkeys(samples, 1.0))


def pick(rig: Rig, measured: Mapping[Cell, Reading], samples: Samples) -> Cell | None:
    """The fastest to the target of what was measured and was not read above the cap."""
    kept = [cell for cell, reading in measured.items() if reading.power_peak_w <= rig.cap_w]
    kept = [cell for cell in kept if math.isfinite(samples.get(cell.batch_size, math.inf))]
    return min(kept, key=lambda c: measured[c].step_s / c.batch_size * samples[c.batch_size], default=None)


def _one_row(rig: Rig, samples: Samples, order: list[int]) -> Found:
    found = Found()
    measure = _measure(rig, found)
    for size in order:
        for clock in rig.board.clocks_mhz:
            if isinstance(measure((size, size), clock), AbortedProbe):
                break
        if found.measured:
            break
    return _picked(rig, found, samples)


def _rows(rig: Rig) -> list[grid.Shape]:
    return [(size, size) for size in rig.board.batch_sizes]


def _picked(rig: Rig, found: Found, samples: Samples) -> Found:
    found.pick = pick(rig, found.measured, samples)
    return found


def _measure(rig: Rig, found: Found, *, abort: bool = True) -> Callable[..., ProfileCell | AbortedProbe]:
    def measure(shape: grid.Shape, clock_mhz: float | None) -> ProfileCell | AbortedProbe:
        assert clock_mhz is not None
        cell = Cell(shape[0], clock_mhz)
        reading = rig.probe(cell, abort=abort)
        if isinstance(reading, Reading):
            found.measured[cell] = reading
        return result(rig, cell, reading)

    return measure


def result(rig: Rig, cell: Cell, reading: Reading | float) -> ProfileCell | AbortedProbe:
    """What was read, as a profile writes it."""
    place = {"batch_size": cell.batch_size, "clock_mhz": cell.clock_mhz}
    if isinstance(reading, Reading):
        return ProfileCell(**place, **reading._asdict())
    return AbortedProbe(**place, cap_w=rig.cap_w, power_w=reading)
