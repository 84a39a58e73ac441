"""Methods to probe a board and pick a cell, given the samples to the target (or their estimates) per batch size.

Each returns the cells that it measured, the most careful reading of each, and its pick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.decisions.boards import Cell, Reading, Rig
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.profiling import strategies
from wattune.records import AbortedProbe, ProfileCell
from wattune.search.observation import capped_power

Samples = Mapping[int, float]
"""Batch size -> samples to the target, up to a factor."""


@dataclass
class ProbeOutcome:
    """Outcome of a method."""

    pick: Cell | None = None
    measured: dict[Cell, Reading] = field(default_factory=dict)


def full_grid(rig: Rig, samples: Samples) -> ProbeOutcome:
    """Probe every cell once; pick the fastest of those whose highest reading is under the cap."""
    outcome = ProbeOutcome()
    strategies.full(_rows(rig), _climbs(rig), _measure(rig, outcome, abort=False))
    return _picked(rig, outcome, samples)


def staircase(rig: Rig, samples: Samples) -> ProbeOutcome:
    """Probe by the paper's method under a known cap, as `wattune profile --strategy staircase` does."""
    outcome = ProbeOutcome()

    def is_kept(probe: ProfileCell | AbortedProbe) -> bool:
        return isinstance(probe, ProfileCell) and capped_w(rig, probe) <= rig.cap_w

    strategies.staircase(_rows(rig), _climbs(rig), _measure(rig, outcome), is_kept=is_kept)
    return _picked(rig, outcome, samples)


def _rows(rig: Rig) -> list[BatchShape]:
    return [BatchShape.of(size) for size in rig.board.batch_sizes]


def _climbs(rig: Rig) -> list[list[Knobs]]:
    return [[Knobs(clock_mhz=clock) for clock in rig.board.clocks_mhz]]


def _picked(rig: Rig, outcome: ProbeOutcome, samples: Samples) -> ProbeOutcome:
    """Pick the cell with the least time to the target, of those that stay under the cap by what was read."""
    measured = outcome.measured
    cells = [cell for cell, reading in measured.items() if capped_w(rig, _cell(cell, reading)) <= rig.cap_w]
    cells = [cell for cell in cells if math.isfinite(samples.get(cell.batch_size, math.inf))]
    outcome.pick = min(cells, key=lambda c: measured[c].step_s / c.batch_size * samples[c.batch_size], default=None)
    return outcome


def _measure(rig: Rig, outcome: ProbeOutcome, *, abort: bool = True) -> Callable[..., ProfileCell | AbortedProbe]:
    def measure(point: OperatingPoint) -> ProfileCell | AbortedProbe:
        cell = Cell(point.batch_size, point.knobs["clock_mhz"])
        reading = rig.probe(cell, abort=abort)
        if isinstance(reading, Reading):
            outcome.measured[cell] = reading
        return result(rig, cell, reading)

    return measure


def capped_w(rig: Rig, cell: ProfileCell) -> float:
    """The power of a measured cell that is compared with the cap, as a plan does."""
    return capped_power(cell, rig.sensor.window_s, rig.limit.window_s, rig.limit.window_s)


def _cell(cell: Cell, reading: Reading) -> ProfileCell:
    return ProfileCell(batch_size=cell.batch_size, clock_mhz=cell.clock_mhz, **reading._asdict())


def result(rig: Rig, cell: Cell, reading: Reading | float) -> ProfileCell | AbortedProbe:
    """A reading in the form of a profile's cell or aborted probe."""
    if isinstance(reading, Reading):
        return _cell(cell, reading)
    return AbortedProbe(**cell._asdict(), cap_w=rig.cap_w, power_w=reading)
