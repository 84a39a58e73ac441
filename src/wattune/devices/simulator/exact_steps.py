"""Exact figures of training on a simulated board, without a sensor."""

from __future__ import annotations

from itertools import accumulate

from wattune.devices.base import ExactStep, combinations
from wattune.devices.simulator.board_file import ProcessorName, SimulatedBoard
from wattune.devices.simulator.roofline import REFERENCE_C, Segment, segments
from wattune.point import Knobs
from wattune.records import StepWork


def exact(board: SimulatedBoard, processor: ProcessorName, work: StepWork) -> dict[Knobs, ExactStep]:
    """Setting -> exact figures of a step of this work, with a chip at 25 degrees."""
    chip = board.chip(processor)
    steps: dict[Knobs, ExactStep] = {}
    for knobs in combinations(chip.knobs):
        parts = segments(work, chip, knobs)
        powers = [part.power_w(chip.power.leakage_per_degree, REFERENCE_C) for part in parts]
        step_s = sum(part.seconds for part in parts)
        mean_w = sum(part.seconds * power for part, power in zip(parts, powers, strict=True)) / step_s
        steps[knobs] = ExactStep(step_s, mean_w, _highest_w(parts, powers, board.sensor.window_s))
    return steps


def _highest_w(parts: tuple[Segment, ...], powers: list[float], window_s: float) -> float:
    """The highest mean power over any window: it is reached by one that begins or ends where a part does."""
    if window_s == 0:
        return max(powers)
    ends_s = list(accumulate((part.seconds for part in parts), initial=0.0))
    ends_j = list(accumulate((part.seconds * power for part, power in zip(parts, powers, strict=True)), initial=0.0))

    def joules(time_s: float) -> float:
        steps, within_s = divmod(time_s, ends_s[-1])
        index = next((i for i, end_s in enumerate(ends_s[1:]) if within_s < end_s), len(parts) - 1)
        return steps * ends_j[-1] + ends_j[index] + (within_s - ends_s[index]) * powers[index]

    begins_s = [*ends_s, *(end_s - window_s % ends_s[-1] + ends_s[-1] for end_s in ends_s)]
    return max((joules(begin_s + window_s) - joules(begin_s)) / window_s for begin_s in begins_s)
