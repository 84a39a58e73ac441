"""What the joint choice gains over the two fixed-clock rules, over the whole range of caps."""

from __future__ import annotations

from wattune.planning.candidates import position
from wattune.planning.rules import choose
from wattune.planning.selection import Limit, fastest
from wattune.planning.table import Option, Table
from wattune.records import CapGain

CAPS = 20
"""Caps in the sweep."""


def gain_over_caps(table: Table, margin_w: float = 0.0) -> tuple[CapGain, ...]:
    """The pick from this table under each of ``CAPS`` caps, evenly from 1 % below its lowest measured peak power to 1 %
    above the highest.

    Caps with no feasible point are in it, and those where nothing is gained. Empty where nothing was measured. A
    table made for one cap (staircase) holds little of what other caps would choose between: only a full grid shows
    the whole picture.
    """
    peaks_w = [option.peak_w for option in table.at.values()]
    if not peaks_w:
        return ()
    low_w, high_w = 0.99 * (min(peaks_w) + margin_w), 1.01 * (max(peaks_w) + margin_w)
    caps_w = [low_w + (high_w - low_w) * i / (CAPS - 1) for i in range(CAPS)]
    return tuple(_gain(table, Limit(cap_w, margin_w)) for cap_w in caps_w)


def _gain(table: Table, limit: Limit) -> CapGain:
    assert limit.cap_w is not None
    option = fastest(table.rows, limit)
    if option is None:
        return CapGain(cap_w=limit.cap_w, feasible=any(limit.keeps(o.peak_w) for o in table.at.values()))
    return CapGain(
        cap_w=limit.cap_w,
        feasible=True,
        **position(option.cell),
        relative_time=option.relative_time,
        over_largest_batch=_ratio("largest batch, fixed clock", option, table, limit),
        over_best_batch=_ratio("best batch, fixed clock", option, table, limit),
    )


def _ratio(rule: str, option: Option, table: Table, limit: Limit) -> float | None:
    choice = choose(rule, table, limit)
    if choice is None or not choice.feasible or not isinstance(choice.option, Option):
        return None
    time = choice.option.relative_time
    return None if time is None or option.relative_time is None else time / option.relative_time
