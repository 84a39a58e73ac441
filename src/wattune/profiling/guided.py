"""A profile of few cells: each probe is the one that tells most about the fastest point under the cap."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.errors import CapError, InputError
from wattune.goal import TIME, Goal
from wattune.point import BatchShape, OperatingPoint
from wattune.profiling.journal import Journal
from wattune.profiling.repeats import merged
from wattune.profiling.strategies import Absent, least_power
from wattune.records import AbortedProbe, Guidance, Pick, ProfileCell, SampleEfficiency
from wattune.sample_efficiency.prior import relative_samples
from wattune.search.forecast import FORECAST
from wattune.search.observation import NOISE_MOST, Stretch
from wattune.search.search import Search, SearchPolicy

MOST: Final = 16
"""Probes at most."""

WINDOWS: Final = 8
"""Windows of the sensor that a cell is measured for: neighbours are told from it."""

CLIMB: Final = 1 / 6
"""A voltage that was flat so far may begin to rise anywhere: two settings up of twelve at a time."""

FREE: Final = SearchPolicy(
    daring=1.0, noise=1.64, highest=(1.54, 0.6), trains=False, least=0.01, climb=CLIMB, windows=WINDOWS
)
"""1.0: of the steps up that are risked, five in six stay under the cap. 1.64: one reading in
twenty of those at the pick may be above the cap. 1.54 and 0.6: mean and standard deviation of the highest of ten normal
numbers, which a probe's readings are."""

STRICT: Final = replace(FREE, deviations=3.0, probing=3.0, daring=None, least=0.005)

STRICT_MARGIN: Final = 0.005
"""Share of the cap that strict keeps away from it besides: a short look at long steps misses their busiest stretch, and
a board is warmer after an hour."""

MEASURED: Final = {"step_s", "power_mean_w", "power_peak_w"}
"""Figures of a cell that its pick has as well."""

Samples = Mapping[int, tuple[float, float]]
"""Batch size -> the samples it needs relative to some other, and the standard deviation of their logarithm."""


@dataclass(frozen=True)
class Guided:
    """Result: the cells of the table, the probes that were stopped, and how it ended."""

    cells: tuple[ProfileCell, ...]
    aborted: tuple[AbortedProbe, ...]
    guidance: Guidance


def samples_of(curve: SampleEfficiency | None, rows: Sequence[BatchShape]) -> Samples:
    """Samples that each batch size needs, relative to that of the first probe: by the curve, or by what is usual.

    Batch sizes that the curve does not have, or that did not reach its target, are left out.
    Raises: InputError if none is left.
    """
    sizes = sorted({row.batch for row in rows})
    if curve is None:
        return relative_samples(sizes, reference=_start(rows).batch)
    known: dict[int, tuple[float, float]] = {}
    for point in curve.points:
        if point.relative_samples is not None and point.batch_size in sizes:
            known[point.batch_size] = (point.relative_samples, point.log_sd or 0.0)
    if not known:
        raise InputError(
            "the efficiency record has samples for none of the batch sizes",
            value=", ".join(map(str, sizes)),
            allowed=", ".join(str(p.batch_size) for p in curve.points if p.relative_samples is not None) or "none",
            hint="estimate it with this workload",
        )
    own_sd = known[_start([row for row in rows if row.batch in known]).batch][1]
    return {size: (mean, math.hypot(sd, own_sd)) for size, (mean, sd) in known.items()}


def guided(
    device: Device,
    rows: Sequence[BatchShape],
    notebook: Journal,
    measure: Callable[[OperatingPoint], None],
    *,
    limit: SensorLimit,
    samples: Samples,
    by_curve: bool,
    strict: bool,
    goal: Goal = TIME,
    absent: Absent = (),
    beyond: Callable[[OperatingPoint], float | None],
) -> Guided:
    """Probe until nothing is left to gain, ``MOST`` times at most: ``measure`` writes into the notebook, and what it
    holds already counts. ``absent``: points that cannot be measured. ``beyond``: measures what a point draws that does
    not stay under the cap, to its end.

    Raises: InputError for several knobs of which one is not a clock; CapError if the board at rest, or every probe at
    the lowest setting, is above the cap; DeviceError.
    """
    cap_w = limit.limit_w
    assert cap_w is not None
    names = [knob.name for knob in device.knobs]
    if len(names) > 1 and not FORECAST.issuperset(names):
        raise InputError(
            "a guided profile cannot forecast these knobs together",
            value=", ".join(names),
            allowed=f"one knob, or {', '.join(sorted(FORECAST))}",
            hint="use the strategy full",
        )
    chosen_from = [row for row in rows if row.batch in samples]
    if not notebook.notes:
        notebook.rest_w = read_rest_w(device, cap_w)
    search = Search(
        chosen_from,
        device.combinations(),
        cap_w=cap_w,
        start=_start(chosen_from),
        margin_w=STRICT_MARGIN * cap_w if strict else 0.0,
        **device.sensor.searched,
        cap_window_s=limit.window_s,
        manner=STRICT if strict else FREE,
        goal=goal,
        rest_w=notebook.rest_w,
    )
    search.relative(samples)
    search.leave_out(absent)
    nothing_told = search.state_dict()
    while True:
        own = [note for note in notebook.notes if note.reference is None]
        results = [note.result for note in own]
        search.load_state_dict(nothing_told)
        for result in results:
            _tell(search, result)
        point = search.next()
        if point is None or len(own) >= MOST:
            break
        measure(point)
    reason = search.reason if point is None else f"{MOST} probes, the most that a guided profile takes"
    aborted = tuple(result for result in results if isinstance(result, AbortedProbe))
    cells = merged([result for result in results if isinstance(result, ProfileCell)])
    if aborted and not any(not cell.out_of_memory for cell in cells):
        # With several clocks the lowest setting need not draw least: a slower CPU can draw more.
        stopped = min(aborted, key=lambda probe: probe.power_w if len(names) > 1 else least_power(probe.point))
        least, power_w = stopped.point, beyond(stopped.point) or stopped.power_w
        raise CapError(
            "no measured point stays under the cap",
            value=f"{cap_w:g} W",
            allowed=f"above {power_w:.4g} W, which {least} draws",
            hint="raise the cap, or profile smaller batches",
        )
    best = search.best()
    picked = next((cell for cell in cells if cell.point == best), None)
    guidance = Guidance(
        strict=strict,
        samples_from="efficiency" if by_curve else "prior",
        stopped_because=reason,
        may_save=search.worth,
        goal=goal,
        pick=None if picked is None else Pick(**picked.point.fields(), **picked.model_dump(include=MEASURED)),
        p_above_cap=None if best is None else search.risk(best),
    )
    cells = tuple(
        cell if cell.out_of_memory or cell.batch_size not in samples
        else cell.model_copy(update={"p_above_cap": search.risk(cell.point)})
        for cell in cells
    )  # fmt: skip
    return Guided(cells, aborted, guidance)


def _start(rows: Sequence[BatchShape]) -> BatchShape:
    """The row of the first probe: the middle one, which is near every other row."""
    ordered = sorted(rows)
    return ordered[len(ordered) // 2]


def _tell(search: Search, result: ProfileCell | AbortedProbe) -> None:
    point = result.point
    if isinstance(result, AbortedProbe):
        search.above(point, result.power_w)
    elif result.step_s is None or result.power_mean_w is None or result.highest_w is None:
        search.unfit(point.shape)
    else:
        seconds = result.step_s * (result.steps or 1)
        search.tell(point, Stretch(result.step_s, result.power_mean_w, result.highest_w, seconds))


def read_rest_w(device: Device, cap_w: float | None) -> float:
    """Read the power at rest, at the lowest setting.

    Raises: CapError if it is above the cap by more than two standard deviations of a noisy reading; DeviceError.
    """
    with device.at(device.safest):
        device.wait(device.sensor.settle_s)
        power_w = device.power_w()
    if cap_w is not None and power_w > (1 + 2 * NOISE_MOST) * cap_w:
        raise CapError(
            f"{device.name} draws more than the cap at rest",
            value=f"{cap_w:g} W",
            allowed=f"above {power_w:.4g} W",
            hint="raise the cap",
        )
    return power_w
