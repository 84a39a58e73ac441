"""Every rule's pick, trained."""

from __future__ import annotations

from wattune.records.base import BatchSize, NotNegative, Positive, Record, Samples, Value
from wattune.records.board import CapSide


class ComparisonRow(Value):
    """One rule's pick, trained to the target over seeds: mean and standard deviation of time and energy.

    ``censored`` of ``runs`` seeds did not reach the target; where any did not, the means are None.
    ``speed_up`` is this rule's time over that of wattune's pick; ``above_fastest`` its distance from the fastest.
    """

    rule: str
    batch_size: BatchSize | None = None
    micro_batch_size: BatchSize | None = None
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None
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
    """Every rule's pick for one cap, trained on the target's own data. ``method`` says how it was priced.

    ``cap_w``, ``cap_side`` and ``supply_cap_w`` as in a plan.
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
