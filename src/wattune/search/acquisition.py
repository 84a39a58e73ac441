"""Value of a probe: the time that it is expected to save over the rest of the training, less what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from wattune.search.surrogate import Array, Mixture

SURE: Final = 2.33
"""Standard deviations below the cap at which a point counts as staying under it: 99 in 100."""

LIKELY: Final = 1.28
"""The same for a single setting up when nothing else is left to find out and much may be gained: 9 in 10."""

MUCH: Final = 0.01
"""Share of the remaining time that counts as much."""

TIMES: Final = 4
"""Most stretches that a point is measured for; after that, other points have to tell about it."""

FREE_TIMES: Final = 16
"""The same for points that would be the best if they stayed under the cap."""

TARGETS: Final = 12
"""Number of points that are examined closely: those that may save most."""

CLIMB: Final = 0.5
"""Least share of a point's value that is credited to the way up to it on its own row."""

BEHIND: Final = 0.1
"""Least share by which a probe is assumed to be slower than the best possible point: it takes time in any case."""

LEAST: Final = 0.001
"""Share of the remaining time below which the search ends: a step time is uncertain by that much anyway."""


TELLING: Final = 0.2
"""Least share of the variance of a point's power that a probe made for its sake has to remove."""

SHARE: Final = 0.3
"""Least gain of a safe probe of a profile, as a share of the most that may be gained, to come first."""


@dataclass(frozen=True)
class Alternatives:
    """All points, as far as they are known; arrays are (points,).

    ``costs`` and ``costs_sd``: mean and standard deviation of the logarithm of the time for the same progress (of
    several clocks: standard deviation of its difference from ``chosen``);
    ``chosen``: the best point. ``power``: model of the logarithm of the power, None without a cap; ``limit``: the most
    that it may be; ``power_sd``: its error after a probe. ``is_open``: may be used at all. ``sure``: stays under the
    cap as far as is known; ``short``: does so for as long as a probe takes; ``likely``: the same with less certainty,
    and at most a single setting up; ``near``: within a bounded step of what was measured. ``times``: how often
    measured.
    ``row`` and ``level``: index of the row, and of each knob's value (points, knobs); ``beyond``: not at or below a
    measured point of the row. ``training``: the share of the time left that a probe costs, and how long it takes, where
    probes are steps of training; None for a profile. ``shifts`` (scenarios, points) and their
    ``weights``: see ``scenarios``. ``least``: saving, as a share of the time left, below which the search ends;
    ``deviations``: standard deviations that make a point sure.
    """

    costs: Array
    costs_sd: Array
    chosen: int
    power: Mixture | None
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
    beyond: NDArray[np.bool_]
    training: tuple[Array, Array] | None
    shifts: Array
    weights: Array
    least: float
    deviations: float


class ProbeValue(NamedTuple):
    """The point to probe, None if none is worth it, and the most that may be saved as a share of the time left.

    ``is_blocked``: that much is more than probing would cost, but nothing may be probed.
    """

    point: int | None
    worth: float
    is_blocked: bool = False


def values(options: Alternatives) -> ProbeValue:
    """The probe that saves most per second that it takes."""
    ahead, kept = _ahead(options), np.ones(len(options.costs))
    if options.power is not None:
        kept = ndtr((options.limit - options.power.mean) / options.power.sd)
    gains = ahead * kept
    worth = float(gains.max(initial=0.0))
    if worth < options.least:
        return ProbeValue(None, worth)
    usable, base = options.is_open & options.near, float(options.costs[options.chosen])
    # A probe faster than the best point costs nothing.
    safe = usable & options.short & (options.times < np.where(options.costs < base, FREE_TIMES, TIMES))
    dared = np.where(usable & options.likely & (options.times == 0), gains, 0.0)
    if options.training is None:
        point = _of_profile(options, gains, safe, dared)
        return ProbeValue(point, worth, is_blocked=point is None)
    saved = np.zeros(len(gains))
    for target in np.argsort(-gains)[:TARGETS]:
        if gains[target] < options.least:
            break
        saved = np.maximum(saved, ahead[target] * _found(options, int(target), float(kept[target]), safe))
    price, probe_s = options.training
    worth_it = safe & (saved > price)
    if not worth_it.any():
        point = int(np.argmax(dared)) if dared.max() >= MUCH else None
        return ProbeValue(point, worth, worth > float(price[np.argmax(gains)]))
    # Every probe that is worth it may be made in the end; the one that gains most for its effort comes first.
    behind = 1 - (1 - worth) * np.exp(base - options.costs)
    rates = (saved + ahead * safe) / (probe_s * np.maximum(behind, BEHIND))
    return ProbeValue(int(np.argmax(np.where(worth_it, rates, -math.inf))), worth)


def _ahead(options: Alternatives) -> Array:
    """The share of the time left that each unsettled point is expected to save if it stays under the cap."""
    settled = (options.times > 0) & options.sure
    total = np.zeros(len(options.costs))
    for weight, shift in zip(options.weights, options.shifts, strict=True):
        costs = options.costs + shift
        # With other relative samples, another measured point is the best.
        base = float(np.min(costs[settled & options.is_open], initial=math.inf))
        ahead = (base if base < math.inf else float(costs[options.chosen])) - costs
        scaled = ahead / options.costs_sd
        # Expected improvement (Jones, Schonlau, Welch 1998, eq. 15), of the logarithm.
        saved = ahead * ndtr(scaled) + options.costs_sd * np.exp(-0.5 * scaled**2) / math.sqrt(2 * math.pi)
        total += weight * (1 - np.exp(-np.maximum(saved, 0.0)))
    return np.where(options.is_open & ~settled, total, 0.0)


def _found(options: Alternatives, target: int, kept: float, safe: NDArray[np.bool_]) -> Array:
    """The probability that a probe at each point makes it sure that ``target`` stays under the cap."""
    found = np.zeros(len(safe))
    if options.power is None or (options.sure[target] and options.near[target]):
        found[target] = kept
        return found
    if not options.sure[target]:
        # A probe moves the mean of the target's power by some of its standard deviations, and narrows it by the rest.
        told = np.clip(_told(options, target), 1e-9, 1 - 1e-9)
        room = (options.limit - options.power.mean[target]) / options.power.sd[target]
        found = ndtr((room - options.deviations * np.sqrt(1 - told)) / np.sqrt(told))
    # When one probe is not enough, the way up on the target's own row leads there.
    own = options.row == options.row[target]
    up = np.flatnonzero(safe & own & options.beyond & (options.level <= options.level[target]).all(axis=1))
    if len(up):
        last = up[np.argmax(options.level[up].sum(axis=1))]
        found[last] = max(found[last], CLIMB * kept)
    return found


def _told(options: Alternatives, target: int) -> Array:
    """The share of the variance of ``target``'s power that a probe at each point removes."""
    power = options.power
    if power is None:
        return np.zeros(len(options.costs))
    return np.asarray(power.covariance(target) ** 2 / (power.sd**2 + options.power_sd**2) / power.sd[target] ** 2)


def _of_profile(options: Alternatives, gains: Array, safe: NDArray[np.bool_], dared: Array) -> int | None:
    """The point to probe where nothing is trained meanwhile, None if nothing may be probed.

    Of thousands of settings many are sure to stay under the cap and save a little. What may save most comes first: the
    probe that tells most about its power, or a step of one knob towards it.
    """
    target, is_new = int(np.argmax(gains)), options.times == 0
    scores = np.where(safe, gains, 0.0)
    if scores.max() < SHARE * gains[target] and not safe[target]:
        told = np.where(safe & is_new, _told(options, target), 0.0)
        if told.max() >= TELLING:
            return int(np.argmax(told))
        if dared.max() >= MUCH and scores.max() < SHARE * dared.max():
            return int(np.argmax(dared))
    if scores.max() >= SHARE * options.least:
        return int(np.argmax(scores))
    told = np.max([_told(options, int(one)) * gains[one] for one in np.argsort(-gains)[:TARGETS]], axis=0)
    told = np.where(safe & is_new, told, 0.0)
    if told.max() >= SHARE * options.least:
        return int(np.argmax(told))
    if dared.max() >= MUCH:
        return int(np.argmax(dared))
    told = np.where(safe, _told(options, target), 0.0)  # what was measured before tells more when measured again
    return int(np.argmax(told)) if gains[target] * told.max() >= MUCH else None


def scenarios(sd: Array) -> tuple[Array, Array]:
    """Shifts of each point's cost if the relative samples differ from the estimate, and the weight of each scenario.

    ``sd`` (points,): signed standard deviations of their logarithms, all driven by one unknown. A single
    scenario without any shift if nothing is unknown.
    """
    steps = np.linspace(-2.0, 2.0, 5) if sd.any() else np.zeros(1)
    weights = np.exp(-0.5 * steps**2)
    return steps[:, None] * sd, weights / weights.sum()
