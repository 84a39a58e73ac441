"""Comparison of the picks of all rules by training."""

from __future__ import annotations

from wattune.cap import CapSide
from wattune.records.base import NotNegative, Positive, Record, Samples, Value
from wattune.records.work import AtPointIfAny


class _ByRule(Value):
    rule: str


class ComparisonRow(AtPointIfAny, _ByRule):
    """One rule's pick, trained to the target over seeds: mean and standard deviation of time and energy.

    ``censored`` of ``runs`` seeds did not reach the target; if any did not, the means are None.
    ``speed_up`` is this rule's time divided by that of wattune's pick; ``above_fastest``: its excess over the fastest.
    """

    runs: Samples = 0
    censored: Samples = 0
    time_s: Positive | None = None
    time_std_s: NotNegative | None = None
    energy_j: Positive | None = None
    energy_std_j: NotNegative | None = None
    power_peak_w: Positive | None = None
    speed_up: Positive | None = None
    above_fastest: float | None = None
    why_not: str | None = None


class Comparison(Record):
    """Every rule's pick for one cap, trained on the target's own data. ``method``: how time and energy were determined.

    ``cap_w``, ``cap_side`` and ``supply_cap_w`` are those of a plan.
    """

    name = "comparison"

    device: str
    workload: str
    cap_w: Positive | None = None
    cap_side: CapSide = "module"
    supply_cap_w: Positive | None = None
    seeds: tuple[int, ...]
    method: str
    rows: tuple[ComparisonRow, ...]
