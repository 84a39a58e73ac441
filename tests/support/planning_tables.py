"""Small profiles and curves for the tests of planning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from wattune.records import (
    EfficiencyPoint,
    ProfileCell,
    ProfileKey,
    ProfileTable,
    ReferencePower,
    ReferenceSet,
    SampleEfficiency,
    provenance,
)

BATCHES = (4, 8, 16, 32, 64, 128)
CLOCKS = tuple(round(76.8 * i, 1) for i in range(1, 13))
KEY = ProfileKey(
    device="a board",
    mode="MAXN",
    model="abc",
    input_shape="3x32x32",
    data_type="fp32",
    optimizer="adam",
    algorithm="backprop",
    software="torch 2.13",
)


def cell(
    batch_size: int, clock: float | None, step_s: float, peak_w: float, mean_w: float | None = None
) -> ProfileCell:
    return ProfileCell(
        batch_size=batch_size,
        clock_mhz=clock,
        step_s=step_s,
        power_mean_w=mean_w or 0.95 * peak_w,
        power_peak_w=peak_w,
        steps=5,
    )


def board(
    batches: Sequence[int] = BATCHES, clocks: Sequence[float] = CLOCKS, *, reference: bool = True
) -> ProfileTable:
    """A monotone table: time falls and power rises with clock and batch size, 2.2 W to 6.3 W; the three references draw
    0.3 W more than the largest batch."""

    def power_w(batch_size: int, clock: float) -> float:
        return 2 + 3.5 * (clock / 921.6) ** 2 * (0.6 + 0.4 * batch_size / 128) + 0.8 * batch_size / 128

    cells = [cell(b, f, 0.012 * (b + 2) * (0.6 * 921.6 / f + 0.4), power_w(b, f)) for b in batches for f in clocks]
    powers = [
        ReferencePower(workload=name, batch_size=128, clock_mhz=f, power_peak_w=power_w(128, f) + 0.1 * extra)
        for extra, name in enumerate(["convolutions", "attention", "matmul"], start=1)
        for f in clocks
    ]
    return ProfileTable(
        device="a board",
        workload="target",
        cells=tuple(cells),
        reference=ReferenceSet(set_version=1, powers=tuple(powers)) if reference else None,
        provenance=provenance("simulated", device="a board"),
    )


def curve(relative: Mapping[int, float | None] | None = None, *, samples: float | None = 1000.0) -> SampleEfficiency:
    """Relative samples per batch size; the largest one is the reference."""
    relative = relative or {4: 0.42, 8: 0.35, 16: 0.4, 32: 0.5, 64: 0.7, 128: 1.0}
    reference = max(relative)
    points = tuple(
        EfficiencyPoint(batch_size=b, relative_samples=r, samples=samples if b == reference else None)
        for b, r in relative.items()
    )
    return SampleEfficiency(workload="proxy", target=0.9, reference_batch_size=reference, points=points)


# Few different values, so that ties and powers exactly at the cap are common.
POWERS = st.integers(8, 24).map(lambda quarter: quarter / 4)
TIMES = st.integers(1, 12).map(lambda tick: tick / 8)
TABLE_BATCHES = [4, 8, 16, 32]


@st.composite
def problems(draw: st.DrawFn) -> tuple[ProfileTable, SampleEfficiency, float, float]:
    """A profile, a curve, a cap and a margin."""
    batches = draw(st.lists(st.sampled_from(TABLE_BATCHES), min_size=1, unique=True).map(sorted))
    count = draw(st.integers(1, 7))
    cells: list[ProfileCell] = []
    for batch_size in batches:
        clocks = [100.0 * (i + 1) for i in range(count)]
        powers = draw(st.lists(POWERS, min_size=count, max_size=count))
        times = draw(st.lists(TIMES, min_size=count, max_size=count))
        means = draw(st.lists(st.sampled_from([1.0, 1.5]), min_size=count, max_size=count))
        # A table from a staircase, a broken run or another program has holes.
        holes = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        clocks = [math.nan if hole and i else f for i, (f, hole) in enumerate(zip(clocks, holes, strict=True))]
        measured = zip(clocks, times, powers, means, strict=True)
        cells += [cell(batch_size, f, t, p, m) for f, t, p, m in measured if not math.isnan(f)]
    cells = draw(st.permutations(cells))
    relative = {b: draw(st.sampled_from([0.25, 0.5, 1.0, 2.0, None])) for b in batches}
    relative[max(batches)] = draw(st.sampled_from([1.0, 1.0, None]))
    table = ProfileTable(device="d", workload="w", cells=tuple(cells))
    return table, curve(relative), draw(POWERS), draw(st.sampled_from([0.0, 0.0, 0.25]))
