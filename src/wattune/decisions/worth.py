"""What a probe is worth: the time that it is expected to save over the rest of the training, less what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattune.decisions.surrogate import Array, Surrogate

SURE: Final = 2.33
"""Standard deviations below the cap at which a point counts as keeping it: 99 in 100."""

LIKELY: Final = 1.28
"""The same for a single setting up where nothing else is left to find out and much may be gained: 9 in 10."""

MUCH: Final = 0.01
"""Share of the remaining time that is much."""

TIMES: Final = 4
"""Stretches that a point is measured for at most before others have to tell about it."""

FREE_TIMES: Final = 16
"""The same of points that would be the best if they kept the cap."""

TARGETS: Final = 12
"""Points that are looked at closely: those that may save most."""

CLIMB: Final = 0.5
"""Least share of a point's worth that the way up to it on its own row is credited with."""

BEHIND: Final = 0.1
"""Least share by which a probe is taken to be slower than the best there may be: it takes its time anyway."""

LEAST: Final = 0.001
"""Share of the remaining time below which nothing is looked for: as much is uncertain in a step time anyway."""


TELLING: Final = 0.2
"""Least share of the variance of a point's power that a probe has to take away to be made for its sake."""


@dataclass(frozen=True)
class Options:
    """All points, as far as they are known.

    ``costs`` and ``costs_sd``: of the logarithm of the time for the same progress; ``chosen``: the best point.
    ``power``: of the logarithm of the power, None without a cap; ``limit``: the most that it may be; ``power_sd``:
    how well a probe would tell it. ``is_open``: may be used at all. ``sure``: keeps the cap to all that is known;
    ``short``: for as long as a probe takes; ``likely``: the same, less surely, and only a single setting up; ``near``:
    within a bounded step of what was measured. ``times``: how often measured. ``row`` and ``level``: which row and
    which setting a point is at. ``price``: the share of the time left that a probe costs; ``probe_s``: how long it
    takes, None where that does not count. ``shifts`` (scenarios, points) and their ``weights``: see ``scenarios``.
    ``least``: share of the time left below which nothing is looked for; ``deviations``: standard deviations that make
    a point sure.
    """

    costs: Array
    costs_sd: Array
    chosen: int
    power: Surrogate | None
    limit: float
    power_sd: Array
    is_open: NDArray[np.bool_]
    sure: NDArray[np.bool_]
    short: NDArray[np.bool_]
    likely: NDArray[np.bool_]
    near: NDArray[np.bool_]
    times: NDArray[np.intp]
    row: NDArray[np.intp]
    level: NDArray[np.intp]
    price: Array
    probe_s: Array | None
    shifts: Array
    weights: Array
    least: float
    deviations: float


class Value(NamedTuple):
    """The point to probe, None where none is worth it, and the most that may be saved as a share of the time left."""

    point: int | None
    worth: float


def values(options: Options) -> Value:
    """Which probe saves most per second that it takes."""
    base = float(options.costs[options.chosen])
    ahead = _ahead(options)
    kept = _kept(options)
    gains = ahead * kept
    worth = float(gains.max(initial=0.0))
    if worth < options.least:
        return Value(None, worth)
    safe = _safe(options)
    saved = np.zeros(len(gains))
    for target in np.argsort(-gains)[:TARGETS]:
        if gains[target] < options.least:
            break
        saved = np.maximum(saved, ahead[target] * _found(options, int(target), float(kept[target]), safe))
    worth_it = safe & (saved > options.price)
    if not worth_it.any():
        return Value(_further(options, gains, safe), worth)
    # All that is worth it may come in the end; first what gains most for its effort.
    rates = saved + ahead * safe
    if options.probe_s is not None:
        behind = 1 - (1 - worth) * np.exp(base - options.costs)
        rates /= options.probe_s * np.maximum(behind, BEHIND)
    return Value(int(np.argmax(np.where(worth_it, rates, -math.inf))), worth)


def _ahead(options: Options) -> Array:
    """The share of the time left that each point is expected to save if it keeps the cap, where that is not known."""
    settled = (options.times > 0) & options.sure
    total = np.zeros(len(options.costs))
    for weight, shift in zip(options.weights, options.shifts, strict=True):
        costs = options.costs + shift
        # The best of what was measured is another one where the relative samples are others.
        base = float(np.min(costs[settled & options.is_open], initial=math.inf))
        ahead = (base if base < math.inf else float(costs[options.chosen])) - costs
        scaled = ahead / options.costs_sd
        # Expected improvement (Jones, Schonlau, Welch 1998, eq. 15), of the logarithm.
        saved = ahead * _below(scaled) + options.costs_sd * np.exp(-0.5 * scaled**2) / math.sqrt(2 * math.pi)
        total += weight * (1 - np.exp(-np.maximum(saved, 0.0)))
    return np.where(options.is_open & ~settled, total, 0.0)


def _kept(options: Options) -> Array:
    """The probability that each point keeps the cap."""
    if options.power is None:
        return np.ones(len(options.costs))
    return _below((options.limit - options.power.mean) / options.power.sd)


def _safe(options: Options) -> NDArray[np.bool_]:
    often = np.where(
        options.costs < options.costs[options.chosen], FREE_TIMES, TIMES
    )  # what is faster than the best costs nothing
    return options.is_open & options.near & options.short & (options.times < often)


def _found(options: Options, target: int, kept: float, safe: NDArray[np.bool_]) -> Array:
    """The probability that a probe at each point makes ``target`` one that surely keeps the cap."""
    found = np.zeros(len(safe))
    if options.power is None or (options.sure[target] and options.near[target]):
        found[target] = kept
        return found
    if not options.sure[target]:
        # A probe moves the mean of the target's power by some of its standard deviations, and narrows it by the rest.
        power = options.power
        told = power.covariance(target) ** 2 / (power.sd**2 + options.power_sd**2) / power.sd[target] ** 2
        told = np.clip(told, 1e-9, 1 - 1e-9)
        room = (options.limit - power.mean[target]) / power.sd[target]
        found = _below((room - options.deviations * np.sqrt(1 - told)) / np.sqrt(told))
    # Where one probe is not enough, the way up on the target's own row is one that leads there.
    own = options.row == options.row[target]
    highest = options.level[own & (options.times > 0)].max(initial=-1)
    up = np.flatnonzero(safe & own & (options.level <= options.level[target]) & (options.level > highest))
    if len(up):
        last = up[np.argmax(options.level[up])]
        found[last] = max(found[last], CLIMB * kept)
    return found


def _further(options: Options, gains: Array, safe: NDArray[np.bool_]) -> int | None:
    """What to probe where no single probe is worth it; None where nothing is."""
    target = int(np.argmax(gains))
    dared = options.is_open & options.near & options.likely & (options.times == 0)
    if options.probe_s is None and (towards := _towards(options, target, safe)) is not None:
        return towards
    if np.where(dared, gains, 0.0).max() >= MUCH:
        return int(np.argmax(np.where(dared, gains, 0.0)))
    return _towards(options, target, dared) if options.probe_s is None and gains[target] >= MUCH else None


def _towards(options: Options, target: int, among: NDArray[np.bool_]) -> int | None:
    """The probe that tells most about the power of ``target``, where it takes several; None where none tells much."""
    if options.power is None or not among.any():
        return None
    power = options.power
    told = power.covariance(target) ** 2 / (power.sd**2 + options.power_sd**2) / power.sd[target] ** 2
    point = int(np.argmax(np.where(among, told, 0.0)))
    return point if told[point] >= TELLING else None


def scenarios(sd: Array) -> tuple[Array, Array]:
    """What is added to each point's cost if the relative samples are others than is believed, and how likely that is.

    ``sd`` (points,): signed standard deviations of their logarithms, all driven by one unknown. One scenario without
    any change where nothing is unknown.
    """
    steps = np.linspace(-2.0, 2.0, 5) if sd.any() else np.zeros(1)
    weights = np.exp(-0.5 * steps**2)
    return steps[:, None] * sd, weights / weights.sum()


def saving_if_known(options: Options, sd: Array) -> float:
    """The share of the time left that is saved on average if the relative samples turn out to be known.

    ``sd``: signed standard deviations of their logarithms, all driven by one unknown (the critical batch size).
    """
    usable = options.is_open & options.sure
    if not usable.any():
        return 0.0
    steps = np.linspace(-3.0, 3.0, 25)
    weights = np.exp(-0.5 * steps**2)
    weights /= weights.sum()
    means = options.costs[usable]
    logs = means[:, None] - sd[usable][:, None] ** 2 / 2 + sd[usable][:, None] * steps
    chosen = float(weights @ np.exp(logs[int(np.argmin(means))]))
    return max(0.0, 1 - float(weights @ np.exp(logs.min(axis=0))) / chosen)


def _below(scaled: Array) -> Array:
    """The normal distribution function."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in scaled])
