"""Loads of the benchmark: phases of a draw that last for some seconds, or until so much work is done."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Phase(NamedTuple):
    """``amount``: seconds, or, if ``is_work``, seconds that the work takes at the highest clock. ``draw``: share of the
    board's own power above rest."""

    draw: float
    amount: float
    is_work: bool = False


Load = Callable[[random.Random], Iterator[Phase]]


def repeated(*phases: Phase) -> Load:
    return lambda draw: itertools.cycle(phases)


def step(first: float, then: float, seconds: float) -> Load:
    return repeated(Phase(first, seconds), Phase(then, seconds))


def bursts(seconds: float, high: float = 1.0, low: float = 0.1) -> Load:
    return repeated(Phase(high, seconds), Phase(low, seconds))


def ripple(middle: float, swing: float) -> Load:
    heights = (0.0, 0.6, 1.0, 0.6, 0.0, -0.6, -1.0, -0.6)
    return repeated(*(Phase(middle + swing * height, 0.125) for height in heights))


def ramp(low: float, high: float, seconds: float) -> Load:
    count = int(seconds)
    up = [low + (high - low) * i / count for i in range(count)]
    return repeated(*(Phase(draw, 1.0) for draw in [*up, *reversed(up)]))


def phases(low: float, high: float) -> Load:
    def made(draw: random.Random) -> Iterator[Phase]:
        while True:
            yield Phase(draw.uniform(low, high), draw.uniform(40, 100))

    return made


def training(step_s: float, gap_s: float, draw: float, evaluation: float = 0.0) -> Load:
    """Steps with gaps of the loader; after a minute of steps, an evaluation of 8 s at its own draw."""

    def made(_: random.Random) -> Iterator[Phase]:
        while True:
            for _step in range(int(60 / step_s)):
                yield Phase(draw, step_s, True)
                yield Phase(0.12, gap_s)
            if evaluation:
                yield Phase(evaluation, 8.0, True)

    return made


def service(busy: float, every_s: float) -> Load:
    """Requests that come at random and are served one after another."""

    def made(draw: random.Random) -> Iterator[Phase]:
        while True:
            yield Phase(0.05, draw.expovariate(1 / every_s))
            yield Phase(busy, draw.uniform(0.1, 0.9), True)

    return made


TUNE: dict[str, Load] = {
    "step": step(0.5, 1.0, 100.0),
    "bursts of 0.25 s": bursts(0.25),
    "bursts of 3.5 s": bursts(3.5),
    "bursts of 30 s": bursts(30.0),
    "ripple": ripple(0.8, 0.2),
    "ramp": ramp(0.3, 1.0, 120.0),
    "phases": phases(0.4, 1.0),
    "training": training(0.32, 0.08, 1.0, 1.15),
    "light training": training(0.05, 0.05, 0.6),
    "service": service(0.9, 1.0),
}
"""Loads that constants were chosen on."""

JUDGE: dict[str, Load] = {
    "step": step(0.4, 0.9, 80.0),
    "bursts of 0.5 s": bursts(0.5, 0.95),
    "bursts of 1.4 s": bursts(1.4, 1.0, 0.2),
    "bursts of 8 s": bursts(8.0, 1.05),
    "bursts of 20 s": bursts(20.0, 0.9, 0.3),
    "ripple": ripple(0.75, 0.25),
    "ramp": ramp(0.2, 1.1, 80.0),
    "phases": phases(0.3, 1.1),
    "training": training(0.9, 0.15, 0.95, 1.2),
    "short steps": training(0.12, 0.06, 1.0),
    "light training": training(0.2, 0.1, 0.5),
    "service": service(1.0, 0.6),
}
"""Loads that figures are of."""
