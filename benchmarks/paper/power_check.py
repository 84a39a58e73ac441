"""Consistency of the published choices with the simulated power, although no copy of the paper states its limits.

A method takes the highest clock under the limit, so a printed choice is two inequalities: the power at its clock is at
most the limit, and one clock higher it is above. At Baseline 1's clock every model and batch size is under the limit,
and one clock higher some model is not. It is arithmetic to find limits for which all of that holds on the simulated
board; these limits are this simulation's, not the paper's.

The Nano's powers were fitted with these choices in view: their agreement is not a test.
The TX2 NX's are those of recordings, made by others, of the same chip. Only ResNet18 is published on it: that all three
models set its baseline's clocks, as on the Nano, is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.paper.models import work
from benchmarks.paper.published import (
    CELLS,
    CLOCKS,
    MOBILENET_V2,
    RESNET18,
    TRANSFORMER,
    Limit,
    Rung,
)
from wattune.devices import SimulatedBoard, builtin_board
from wattune.devices.simulator.exact_steps import exact

BATCH_SIZES = {
    RESNET18: (4, 8, 16, 32, 64, 128),
    MOBILENET_V2: (4, 8, 16, 32, 64),
    TRANSFORMER: (4, 8, 16, 32, 64, 128),
}
"""Model -> batch sizes that fit on a Nano: Baseline 1 has to stay under the limit with all of them."""

TIE_W, TIE_SHARE = 0.040, 0.03
"""Resolution of the board's sensor, and the relative difference between repetitions of a time in the paper."""

ENDS: tuple[Limit, ...] = ("P1", "P2")


@dataclass(frozen=True)
class Inequality:
    """A bound on a limit: ``watts`` is at most the limit, or more than it if ``above``; ``said``: the text."""

    limit: Limit
    watts: float
    above: bool
    said: str

    def slack_w(self, limit_w: float) -> float:
        """Margin by which it holds in watts; negative if it does not."""
        return self.watts - limit_w if self.above else limit_w - self.watts


class Powers:
    """Highest reading of a board in training, by model, batch size and clock; ``batch_sizes``: by model."""

    def __init__(self, board: SimulatedBoard, batch_sizes: Mapping[str, Sequence[int]] = BATCH_SIZES):
        self.board = board
        self.clocks = board.gpu.clocks_mhz
        self._peaks = {
            (name, size): {
                knobs["clock_mhz"]: figures.power_peak_w
                for knobs, figures in exact(board, "gpu", work(name, size)).items()
            }
            for name, sizes in batch_sizes.items()
            for size in sizes
        }

    def peak_w(self, name: str, batch_size: int, clock: float) -> float:
        """Peak power of one model at one point."""
        return self._peaks[name, batch_size][clock]

    def worst_w(self, clock: float) -> tuple[float, str]:
        """Peak power of the worst model and batch size, and its name."""
        name, size = max(self._peaks, key=lambda point: self._peaks[point][clock])
        return self._peaks[name, size][clock], f"{name} b={size}"

    def higher(self, clock: float) -> float | None:
        """The next higher clock, None at the highest."""
        above = [other for other in self.clocks if other > clock]
        return above[0] if above else None


def inequalities(powers: Powers) -> list[Inequality]:
    """Inequalities that the choices under both limits imply on this board."""
    by_text: dict[tuple[object, ...], Inequality] = {}
    for cell in CELLS:
        if cell.device == powers.board.name and cell.method in ("Ours", "Fastest") and cell.limit in ENDS:
            point = cell.model, cell.batch_size
            for clock, above in _both(powers, cell.clock_mhz):
                text = f"P({cell.model}, {cell.batch_size}, {clock:g}) {'>' if above else '<='} {cell.limit}"
                by_text[text,] = Inequality(cell.limit, powers.peak_w(*point, clock), above, text)
    rungs: dict[Limit, Rung] = {"P1": "baseline P1", "P2": "baseline P2"}
    for limit, rung in rungs.items():
        for clock, above in _both(powers, CLOCKS[powers.board.name][rung]):
            watts, who = powers.worst_w(clock)
            text = f"worst case at {clock:g} ({who}) {'>' if above else '<='} {limit}"
            by_text[text,] = Inequality(limit, watts, above, text)
    return list(by_text.values())


def _both(powers: Powers, clock: float) -> Iterator[tuple[float, bool]]:
    yield clock, False
    if (higher := powers.higher(clock)) is not None:
        yield higher, True


@dataclass(frozen=True)
class Interval:
    """Range of limits, from ``low_w`` to ``high_w``, for which most inequalities hold, ties included."""

    low_w: float
    high_w: float

    @property
    def middle_w(self) -> float:
        """Middle of the range."""
        return (self.low_w + self.high_w) / 2


def interval(conditions: list[Inequality], limit: Limit) -> Interval:
    """The range of limits for which most inequalities hold within ``TIE_W``; the widest of several such ranges."""
    mine = [one for one in conditions if one.limit == limit]
    ends = sorted({one.watts + (TIE_W if one.above else -TIE_W) for one in mine})
    stretches = [Interval(low, high) for low, high in pairwise(ends)]

    def satisfied(stretch: Interval) -> tuple[int, float]:
        return sum(o.slack_w(stretch.middle_w) >= -TIE_W for o in mine), stretch.high_w - stretch.low_w

    return max(stretches, key=satisfied)


def our_limits_w(name: str) -> dict[Limit, float]:
    """P1 and P2 of a board in this simulation: the middles of the intervals."""
    powers = Powers(builtin_board(name))
    conditions = inequalities(powers)
    return {limit: interval(conditions, limit).middle_w for limit in ENDS}
