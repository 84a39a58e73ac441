"""Step time and power of a workload, over batch sizes and clocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wattune.algorithms import canonical
from wattune.cap import NO_LIMIT, SensorLimit
from wattune.devices import Device
from wattune.errors import InputError, OutOfDeviceMemory
from wattune.files import cache_folders
from wattune.goal import TIME, Goal
from wattune.point import BatchShape, OperatingPoint
from wattune.profiling.board_health import happened
from wattune.profiling.cell_probe import WINDOWS, CellProbe
from wattune.profiling.guided import MOST, Guided, guided, read_rest_w, samples_of
from wattune.profiling.guided import WINDOWS as GUIDED_WINDOWS
from wattune.profiling.journal import Journal, Partial, total_cost
from wattune.profiling.key import profile_key
from wattune.profiling.memory_fit import can_travel, is_needed
from wattune.profiling.recording import absent_points, rows_in
from wattune.profiling.reference_power import measure as measure_references
from wattune.profiling.reference_power import references
from wattune.profiling.rows import rows_of
from wattune.profiling.strategies import Climbs, checked, full, least_power, quick_start, staircase, stays_under
from wattune.records import AbortedProbe, ProfileCell, ProfileKey, ProfileTable, SampleEfficiency, provenance
from wattune.workloads import Workload

Progress = Callable[[int, int, str], None]


def profile(
    device: Device,
    workload: Workload | None,
    *,
    algorithm: str = "backprop",
    goal: Goal = TIME,
    strategy: str | None = None,
    strict: bool = False,
    efficiency: SampleEfficiency | None = None,
    limit: SensorLimit = NO_LIMIT,
    steps: int = 5,
    reference: bool | None = None,
    partial: Path | None = None,
    progress: Progress | None = None,
) -> ProfileTable:
    """Measure step time and power of each batch size and micro-batch size at each clock, or power limit, of the device.

    ``algorithm``: which one trains, with its options, as in "async-fgd:modules=4"; the table holds for it alone.

    Each cell is warmed up, then measured for at least ``steps`` steps (two seconds of them, where they are long) and
    three windows of the power sensor. Once power is surely above the ``limit`` (less its margin), by its window, the
    device goes to its lowest setting, and the probe ends with that step. If all probes ended so, one at the lowest
    setting runs on, above the limit, and says what the board needs at least. ``strategy``: one of ``STRATEGIES``; by
    default, with a limit, the guided one if the device offers several clocks or for a goal other than the time, else
    the staircase; without a limit the full grid.
    Neither weights nor data of the workload are read, and no step is executed if the device does not execute any.

    The guided strategy sets every knob that the device offers, the others those that it has (``device.knobs``). It
    measures at most 16 times, where that tells most of what the ``goal`` makes least: ``efficiency`` says how many
    samples each batch size needs, and without it what is usual. ``strict``: it probes nothing that might be above the
    cap by all that is known, at the price of about one clock.

    ``reference``: also measure the peak power of the reference workloads at every clock, or up to the cap. That is
    done once for a device and kept, so its cost stands apart from the profile's, in the reference set. It serves the
    rules that wattune is compared with, not its own pick, and takes minutes of a real board: None is yes if the device
    does not execute the steps and has one knob. With several, it has to be measured at hundreds of settings.

    ``partial``: a file that is replaced after every cell, from which a later call with the same key, cap, strategy
    and steps goes on. The caller removes it once the table is safe: until then it is all that there is.

    A replayed table is measured at the batch sizes of the workload that it has; without a workload (None), at all of
    its own.

    Raises: InputError for what cannot be measured as asked; OutOfDeviceMemory where no batch size fits; DeviceError;
    RecordError for a file of partial results that cannot be read.
    """
    limit = limit.strict
    strategy = checked(strategy, limit.limit_w, steps, [knob.name for knob in device.offered], goal)
    if strategy != "guided" and (strict or efficiency is not None):
        raise InputError("strict and efficiency", allowed='only with the strategy "guided"')
    if strategy == "guided":
        device.select([knob.name for knob in device.offered])  # the only one that need not measure all combinations
    algorithm, table = canonical(algorithm), device.replayed_table
    workload = None if workload is None else workload.without_weights()
    key = profile_key(device, workload, algorithm)
    if table is not None and reference:
        raise InputError("a replayed table has no reference workloads", hint="leave out --reference")
    climbs = device.climbs()
    name, rows, absent = _cells_of(device, workload, key)
    samples = samples_of(efficiency, rows) if strategy == "guided" else {}
    begin = Partial(
        key=key,
        strategy=strategy,
        cap_w=limit.limit_w,
        cap_window_s=limit.window_s,
        steps=steps,
        rows=tuple(rows),
        host_s_per_sample=0.0 if workload is None else workload.host_s_per_sample,
        strict=strict,
        samples=tuple(samples.items()),
        goal=goal if strategy == "guided" else None,
    )
    notebook = Journal(partial, device, begin)
    # A clock that suits any workload can only be chosen where there is one to set.
    if reference is None:
        reference = not device.executes_steps and len(device.knobs) == 1
    reference = bool(reference and device.knobs and table is None)
    total, referred = _probes(strategy, len(rows), climbs), 0
    if reference and workload is not None:
        total += (1 + len(references(workload.data_type))) * sum(map(len, climbs))

    def report(name: str, point: OperatingPoint) -> None:
        if progress is not None:
            at = f" at {point.knobs}" if point.knobs else ""
            most = "" if strategy == "full" else f" ({total} probes at most)"
            progress(
                min(len(notebook.notes) + referred, total), total, f"{name}, batch size {point.batch_size}{at}{most}"
            )

    def report_reference(name: str, point: OperatingPoint) -> None:
        nonlocal referred
        report(name, point)
        referred += 1

    windows = GUIDED_WINDOWS if strategy == "guided" else WINDOWS
    probe = CellProbe(
        device,
        workload,
        algorithm,
        steps=steps,
        limit=limit,
        windows=windows,
        rows=notebook.missing(rows),
        calm=notebook.is_calm(limit),
    )

    def measure(point: OperatingPoint) -> ProfileCell | AbortedProbe:
        report(name, point)
        return notebook.look_up(None, probe, point)

    def again(point: OperatingPoint) -> None:
        report(name, point)
        notebook.measure(None, probe, point)

    def beyond(point: OperatingPoint) -> CellProbe:
        """A probe that tells the least power of the board: one stopped at the cap has only seen it rise."""
        report(f"{name}, above the cap", point)
        calm = notebook.is_calm(limit)
        return CellProbe(device, workload, algorithm, steps=steps, limit=limit, windows=WINDOWS, calm=calm, stops=False)

    def power_beyond(point: OperatingPoint) -> float | None:
        result, _ = beyond(point).measure(point)
        return result.highest_w if isinstance(result, ProfileCell) else None

    steered: Guided | None = None
    if strategy == "guided" and limit.limit_w is not None:
        by_curve = efficiency is not None
        steered = guided(
            device,
            rows,
            notebook,
            again,
            limit=limit,
            samples=samples,
            by_curve=by_curve,
            strict=strict,
            goal=goal,
            absent=absent,
            beyond=power_beyond,
        )
    elif strategy == "full":
        if not goal.is_time and not notebook.notes:  # what waits, or is left out, draws as much
            notebook.rest_w = read_rest_w(device, limit.limit_w)
        full(rows, climbs, measure, absent)
    else:
        level = 0
        if table is None and list(climbs[0][0]) == ["clock_mhz"] and len(climbs[0]) > 5 and len(rows) > 1:
            level = quick_start(rows, climbs[0], measure, limit, device.sensor)
        staircase(rows, climbs, measure, absent, stays_under(limit, device.sensor), level)
    own = notebook.notes
    if all(note.cell is not None and note.cell.out_of_memory for note in own):
        smallest = min(batch_size for batch_size, _ in rows)
        raise OutOfDeviceMemory(f"no batch size of {name} fits in the memory of {device.name}, not even {smallest}")
    stopped = [note.aborted.point for note in own if note.aborted is not None]
    if stopped and not any(note.cell is not None and not note.cell.out_of_memory for note in own):
        least = min(stopped, key=least_power)
        notebook.measure(None, beyond(least), least)
        reference = False  # no rule has a setting under this cap either
        own = notebook.notes
    powers = None
    if reference and workload is not None:
        largest = max(note.result.point.shape for note in own if note.cell is None or not note.cell.out_of_memory)
        powers = measure_references(
            device,
            workload,
            algorithm,
            largest,
            report_reference,
            limit=limit,
            folders=cache_folders() if device.executes_steps else (),
        )
    if progress is not None:
        progress(len(notebook.notes) + referred, len(notebook.notes) + referred, "done")
    return ProfileTable(
        device=device.name,
        workload=name,
        algorithm=algorithm,
        cells=steered.cells
        if steered
        else tuple(sorted((note.cell for note in own if note.cell), key=lambda c: c.point.order)),
        aborted=tuple(note.aborted for note in own if note.aborted is not None),
        reference=powers,
        key=key,
        cost=total_cost(own),
        sensor_window_s=device.sensor.window_s,
        sensor_rail=device.sensor.rail,
        strategy=strategy,
        guided=steered.guidance if steered else None,
        supply=device.supply,
        notes=(*_notes(device, workload), *happened(device)),
        cap_window_s=limit.window_s,
        rest_w=notebook.rest_w,
        provenance=provenance(device.kind, device=device.name, model=key.model, cap_w=limit.limit_w),
    )


def _cells_of(
    device: Device, workload: Workload | None, key: ProfileKey
) -> tuple[str, list[BatchShape], frozenset[OperatingPoint]]:
    """The name of the workload, its shapes, and the points of them that cannot be measured."""
    table = device.replayed_table
    if table is not None:
        rows = rows_in(table, workload, key)
        name = table.workload if workload is None else workload.name
        return name, rows, absent_points(table, rows, device.combinations())
    assert workload is not None  # there is a key
    return workload.name, rows_of(workload, key.algorithm), frozenset()


def _probes(strategy: str, rows: int, climbs: Climbs) -> int:
    """About the largest number of probes."""
    if strategy == "guided":
        return MOST
    if strategy == "full":
        return sum(rows * len(climb) for climb in climbs)
    return sum(2 * rows + len(climb) + len(climb).bit_length() for climb in climbs)


def _notes(device: Device, workload: Workload | None) -> tuple[str, ...]:
    # What is not as it should be with a simulated or replayed board is how far its figures can be relied on.
    said = device.problems if device.kind in ("simulated", "replayed") else ()
    if not is_needed(device) or workload is None or can_travel(workload):
        return said
    note = "batch sizes were not tried in a process of its own before, since the workload cannot be sent to one"
    return (*said, note)
