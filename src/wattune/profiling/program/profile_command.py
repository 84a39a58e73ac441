"""Step time and power of a program, over batch sizes and clocks: any program, in whatever language it is written."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wattune.cap import NO_LIMIT, SensorLimit
from wattune.devices import Device, Sensor
from wattune.errors import InputError, OutOfDeviceMemory
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.profiling.board_health import happened
from wattune.profiling.journal import Journal, Partial, total_cost
from wattune.profiling.program.counted import counted_works
from wattune.profiling.program.program_probe import ProgramProbe
from wattune.profiling.program.step_times import PrintedStepTimes, SeenSteps, Source, StepTimes, compiled
from wattune.profiling.strategies import checked, full, staircase, stays_under
from wattune.program.command_template import CommandTemplate, ascending
from wattune.program.rounds import StepPage
from wattune.program.workload import ProgramWorkload
from wattune.records import AbortedProbe, ProfileCell, ProfileKey, ProfileTable, Program, provenance
from wattune.search.observation import capped_power

if TYPE_CHECKING:
    from wattune.profiling.cell_probe import CellProbe

Progress = Callable[[int, int, str], None]

LIMIT_S = 900.0
"""Seconds of a run after which a program counts as hanging. The first step on a Jetson Nano alone takes 49 s (CUDA's
and cuDNN's start). Source: dusty-nv/jetson-inference."""

WIDE = 4
ALIKE = 0.15
"""If a batch is ``WIDE`` times as large, and a step takes as long within the share ``ALIKE``, the program may ignore
its batch size."""

OWN = "the program's own"
"""Value of the fields of a key that are not known of a program."""


def profile_command(
    device: Device,
    command: str | ProgramWorkload,
    *,
    batch_sizes: Sequence[int] = (),
    step_time: str | None = None,
    strategy: str | None = None,
    limit: SensorLimit = NO_LIMIT,
    steps: int = 5,
    run_limit_s: float | None = None,
    partial: Path | None = None,
    progress: Progress | None = None,
) -> ProfileTable:
    """Measure step time and power of a program at each batch size and each clock, or power limit, of the device.

    ``command`` has ``{batch_size}`` in it, and ``{steps}`` where the program takes a number of steps; it is split
    as a shell would, and run without one. The time of a step comes from ``step_time``, a regular expression with
    one group that finds seconds (or milliseconds, where the group is named ``ms``) in the lines that the program
    prints, the first three left out; without one from runs of two lengths, or without ``{steps}`` from its steps in
    torch, as they are seen. Power is read while it trains for at least ``steps`` steps, and the peak is that of the
    whole run. The program and its children are ended once power is surely above the ``limit``, by its window. A
    simulated board counts the steps of a Python program.

    A program that is killed, or says that memory was not enough, does not fit at this and larger batch sizes.
    ``strategy``, ``partial`` and ``progress`` are as in ``profile``.

    Raises: InputError for what cannot be measured as asked; WorkloadError if the program fails, takes longer than
    ``run_limit_s`` or says nothing of its steps; OutOfDeviceMemory if no batch size fits; DeviceError; RecordError.
    """
    limit = limit.strict
    strategy = checked(strategy, limit.limit_w, steps)
    if strategy == "guided":
        raise InputError("strategy", value=strategy, allowed="full, staircase: a program takes part in no search")
    trained = command if isinstance(command, ProgramWorkload) else None
    template = trained.template if trained is not None else CommandTemplate(str(command))
    sizes = ascending(trained.batch_sizes if trained is not None else batch_sizes)

    def words(batch_size: int, steps: int = 0) -> list[str]:
        return template.words(batch_size=batch_size, steps=steps) if trained is None else trained.words(batch_size)

    pattern = None if step_time is None else compiled(step_time)
    source: Source = "steps seen"
    if pattern is not None:
        source = "printed"
    elif template.has_steps:
        source = "run lengths"
    if not device.executes_steps and device.kind != "simulated":
        raise InputError("this device cannot run programs", value=device.name, hint="give the board that runs it")
    run_limit_s = LIMIT_S if run_limit_s is None else run_limit_s
    if not 0 < run_limit_s < math.inf:
        raise InputError("the limit of a run", value=run_limit_s, allowed="seconds above 0")
    if shutil.which(program := words(sizes[0])[0]) is None:
        raise InputError("there is no program", value=program)
    key = program_key(device, template)
    rows: list[BatchShape] = [BatchShape(size, size) for size in sizes]
    climbs = device.climbs()
    begin = Partial(
        key=key,
        strategy=strategy,
        cap_w=limit.limit_w,
        cap_window_s=limit.window_s,
        steps=steps,
        rows=tuple(rows),
        host_s_per_sample=0.0,
        step_time=f"{source} {step_time or ''}".strip(),
    )
    notebook = Journal(partial, device, begin)
    total = sum(len(rows) * len(c) if strategy == "full" else 2 * len(rows) + len(c) - 1 for c in climbs)

    def say(point: OperatingPoint, taken: int) -> None:
        if progress is not None:
            length = f", {taken} steps" if template.has_steps else ""
            progress(min(len(notebook.notes), total), total, f"{template.name}, {point}{length}")

    def times(page: StepPage, batch_size: int) -> StepTimes:
        if source == "steps seen":
            return SeenSteps(page, batch_size, trained)
        return PrintedStepTimes(pattern)

    probe: CellProbe | ProgramProbe
    if device.executes_steps:
        probe = ProgramProbe(
            device,
            words,
            times=times,
            has_lengths=template.has_steps,
            is_timed=source != "run lengths",
            steps=steps,
            limit=limit,
            limit_s=run_limit_s,
            say=say,
        )
    else:  # imported here, since it needs torch
        from wattune.profiling.cell_probe import CellProbe

        probe = CellProbe(device, None, "backprop", steps=steps, limit=limit, works=counted_works(words, sizes))

    def measure(point: OperatingPoint) -> ProfileCell | AbortedProbe:
        return notebook.look_up(None, probe, point)

    def measure_below(point: OperatingPoint) -> ProfileCell | AbortedProbe:
        """Measure a point, unless its power is foreseen to be above the limit: a program reacts to a stop too late."""
        climb = next(climb for climb in climbs if point.knobs in climb)
        cells = [note.cell for note in notebook.notes if note.cell is not None and note.cell.step_s is not None]
        foreseen_w = _foreseen_w(cells, climb, point, device.sensor, limit)
        if limit.limit_w is None or foreseen_w is None or limit.allows(foreseen_w):
            return measure(point)
        return AbortedProbe(**point.fields(), cap_w=limit.limit_w, power_w=foreseen_w)  # in no journal, and no table

    if strategy == "full":
        full(rows, climbs, measure)
    else:
        staircase(rows, climbs, measure_below, is_kept=stays_under(limit, device.sensor))
    cells = [note.cell for note in notebook.notes if note.cell is not None]
    if cells and all(cell.out_of_memory for cell in cells) and len(cells) == len(notebook.notes):
        raise OutOfDeviceMemory(f"no batch size fits in the memory of {device.name}, not even {sizes[0]}")
    if progress is not None:
        progress(total, total, "done")
    return ProfileTable(
        device=device.name,
        workload=template.name,
        cells=tuple(sorted(cells, key=lambda cell: cell.point.order)),
        aborted=tuple(note.aborted for note in notebook.notes if note.aborted is not None),
        key=key,
        cost=total_cost(notebook.notes),
        sensor_window_s=device.sensor.window_s,
        sensor_rail=device.sensor.rail,
        strategy=strategy,
        supply=device.supply,
        notes=(*happened(device), *(_alike(cells) if device.executes_steps else ())),
        program=Program(command=template.text, device=device.spec or device.name, step_time=source),
        cap_window_s=limit.window_s,
        provenance=provenance(device.kind, device=device.name, model=key.model, cap_w=limit.limit_w),
    )


def _foreseen_w(
    cells: Sequence[ProfileCell], climb: Sequence[Knobs], point: OperatingPoint, sensor: Sensor, limit: SensorLimit
) -> float | None:
    """Power at a point in watts, by a line from this shape's highest cell in the climb below the point.

    The slope is that between the two highest cells of one shape in this climb; power rises at least as fast with the
    clock. None if either is missing.
    """
    name, known = next(iter(point.knobs), ""), dict[BatchShape, list[ProfileCell]]()
    for cell in sorted(cells, key=lambda cell: cell.knobs.order):
        if cell.knobs in climb[: climb.index(point.knobs)]:
            known.setdefault(cell.point.shape, []).append(cell)
    pairs = [each[-2:] for each in known.values() if len(each) > 1]
    if point.shape not in known or not pairs:
        return None
    last = known[point.shape][-1]
    low, high = max(pairs, key=lambda pair: pair[1].knobs.order)
    rise_w = (high.power_mean_w or 0.0) - (low.power_mean_w or 0.0)
    steps = (point.knobs[name] - last.knobs[name]) / (high.knobs[name] - low.knobs[name])
    return capped_power(last, sensor.window_s, limit.window_s, limit.window_s) + max(0.0, rise_w) * steps


def _alike(cells: Sequence[ProfileCell]) -> tuple[str, ...]:
    """A note where a step of the largest batch takes as long as one of the smallest, wherever both were measured."""
    known: dict[Knobs, dict[int, float]] = {}
    for cell in cells:
        if cell.step_s is not None:
            known.setdefault(cell.knobs, {})[cell.batch_size] = cell.step_s
    pairs = [(min(steps), max(steps), steps) for steps in known.values() if max(steps) >= WIDE * min(steps)]
    if not pairs or any(abs(steps[large] / steps[small] - 1) > ALIKE for small, large, steps in pairs):
        return ()
    small, large, _ = pairs[0]
    return (
        f"a step takes as long with batch size {large} as with {small}: this table is of no use if the program does "
        "not train with the {batch_size} that it is given",
    )


def program_key(device: Device, template: CommandTemplate) -> ProfileKey:
    """The key of a table of this program on this device: the command stands for the model and all that belongs to it.

    What the program is itself, a new version of it say, is not known: then profile again.
    """
    return ProfileKey(
        device=device.name,
        mode=device.mode,
        model=template.text,
        input_shape=OWN,
        data_type=OWN,
        optimizer=OWN,
        algorithm="backprop",
        software=OWN,
    )
