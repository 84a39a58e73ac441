"""The steps of a run one at a time, from whatever stands for a device, a workload or a record.

A device is a spec such as ``"sim:jetson-nano"`` or an open device, a workload an object, the path of a workload file,
or None for the built-in example, a record the record or the path of its file.
"""

# Each function imports its room itself: planning from records must not wait for torch.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from wattune.errors import CapError, InputError, RecordError
from wattune.files import read_json
from wattune.records import CapSide, Comparison, EfficiencyCurve, Plan, ProfileTable, Record, TrainingRecord
from wattune.records.efficiency import EfficiencyStrategy

if TYPE_CHECKING:
    from wattune.devices import Device
    from wattune.workloads import Workload

Progress = Callable[[int, int, str], None]
R = TypeVar("R", bound=Record)


def profile(
    device: str | Device,
    workload: str | Path | Workload | None = None,
    *,
    cap_w: float | None = None,
    cap_side: CapSide = "module",
    strategy: str | None = None,
    strict: bool = False,
    efficiency: str | Path | EfficiencyCurve | None = None,
    reference: bool | None = None,
    steps: int = 5,
    algorithm: str = "backprop",
    seed: int = 0,
    partial: Path | None = None,
    progress: Progress | None = None,
) -> ProfileTable:
    """Measure step time and power per batch size and clock, on at least ``steps`` steps each (ten seconds of
    them, where they are long).

    ``strategy``: "full" for every point, "staircase" for those along the cap ``cap_w`` in watts, "guided" for the few
    that tell most of the fastest one below it; None: staircase where there is a cap. With "guided", ``efficiency`` says
    how many samples each batch size needs, and ``strict`` keeps away from all that might be above the cap.
    ``cap_side`` "supply": that cap holds at the terminals of the supply, not at the power sensor. What is measured is
    kept in ``partial``, where an interrupted profile goes on. ``reference``: also measure the reference workloads,
    which simpler rules need to choose a clock by; None: where that takes no time of a real board.

    Raises: InputError and its kinds for what cannot be profiled as asked, DeviceError.
    """
    from wattune import planning, profiling

    with opened(device, seed=seed) as board:
        return profiling.profile(
            board,
            as_workload(workload).without_weights(),
            algorithm=algorithm,
            strategy=strategy,
            strict=strict,
            efficiency=None if efficiency is None else as_record(EfficiencyCurve, efficiency),
            reference=reference,
            cap_w=planning.module_cap(cap_w, cap_side, board.supply),
            steps=steps,
            partial=partial,
            progress=progress,
        )


def profile_command(
    device: str | Device,
    command: str,
    *,
    batch_sizes: Sequence[int],
    step_time: str | None = None,
    step_time_file: Path | None = None,
    cap_w: float | None = None,
    cap_side: CapSide = "module",
    strategy: str | None = None,
    steps: int = 5,
    run_limit_s: float | None = None,
    partial: Path | None = None,
    progress: Progress | None = None,
) -> ProfileTable:
    """Measure step time and power of any program: see ``wattune.profiling.profile_command``.

    Raises: InputError and its kinds for what cannot be profiled as asked, and for a program that fails; DeviceError.
    """
    from wattune import planning, profiling

    limit = {} if run_limit_s is None else {"run_limit_s": run_limit_s}
    with opened(device) as board:
        return profiling.profile_command(
            board,
            command,
            batch_sizes=batch_sizes,
            step_time=step_time,
            step_time_file=step_time_file,
            strategy=strategy,
            cap_w=planning.module_cap(cap_w, cap_side, board.supply),
            steps=steps,
            partial=partial,
            progress=progress,
            **limit,
        )


def estimate(
    workload: str | Path | Workload | None = None,
    *,
    strategy: EfficiencyStrategy | None = None,
    seeds: int | None = None,
    step_times: Mapping[int, tuple[float, float]] | None = None,
    algorithm: str = "backprop",
    folder: Path | None = None,
    processes: int | None = None,
    executor: str | None = None,
    progress: Progress | None = None,
) -> EfficiencyCurve:
    """Train the workload's proxy: how many samples does each batch size need?

    ``strategy``: "pooled" for as few trainings as tell which batch size is best, "full" for ``seeds`` (3) at every
    batch size; None: full where ``seeds`` is given. ``step_times``, for pooled: what ``step_times`` gives; batch sizes
    that the device leaves no chance are then not trained. ``folder`` keeps the learning curves; an interrupted estimate
    goes on there. ``executor`` "ray" or "ray:ADDRESS": over a Ray cluster instead of processes of this machine.

    Raises: WorkloadError, RecordError, OutputError, InputError.
    """
    from wattune import efficiency

    return efficiency.estimate(
        # Asked before: the example is trained once, where it is not there yet.
        strategy=efficiency.strategy_of(strategy, seeds, step_times),
        workload=as_workload(workload, progress),
        seeds=seeds,
        log_step_times=step_times,
        folder=folder,
        algorithm=algorithm,
        processes=processes,
        executor=executor,
        progress=progress,
    )


def estimate_recorded(
    runs: str | Path,
    *,
    where: Mapping[str, str] | None = None,
    target: float | None = None,
    allocate: int | None = None,
    step_times: Mapping[int, tuple[float, float]] | None = None,
) -> EfficiencyCurve:
    """How many samples each batch size needs, by a CSV table of runs: see ``wattune.efficiency.read_runs``.

    ``where`` and ``target`` choose among several workloads or targets. ``allocate``: only so many runs at most, chosen
    as if they were being made. ``step_times``: what ``step_times`` gives.

    Raises: RecordError, InputError.
    """
    from wattune.efficiency import chosen_runs, curve_from_runs, read_runs

    chosen = chosen_runs(read_runs(Path(runs)), where or {}, target)
    return curve_from_runs(chosen, log_step_times=step_times, most=allocate)


def step_times(
    known: Mapping[int, float] | str | Path | ProfileTable,
    *,
    cap_w: float | None = None,
    cap_side: CapSide = "module",
) -> dict[int, tuple[float, float]]:
    """Batch size -> mean and standard deviation of ln(seconds per sample) at the fastest setting that the cap allows.

    ``known``: seconds of a step by batch size, or a profile to take them from.

    Raises: InputError for a step time that is none, RecordError, CapError where no measured point keeps the cap.
    """
    from wattune import efficiency, planning

    if isinstance(known, Mapping):
        return efficiency.given_times(known)
    table = as_record(ProfileTable, known)
    times = planning.log_step_times(table, planning.module_cap(cap_w, cap_side, table.supply))
    if not times:
        raise CapError("no measured point of the profile keeps the cap", value=f"{cap_w:g} W" if cap_w else "none")
    return times


def plan(
    profile: str | Path | ProfileTable,
    efficiency: str | Path | EfficiencyCurve | None = None,
    *,
    cap_w: float | None,
    cap_side: CapSide = "module",
    margin_w: float = 0.0,
    batch_size: int | None = None,
    memory_bytes: float | None = None,
    also: Sequence[str | Path | ProfileTable | EfficiencyCurve] = (),
) -> Plan:
    """Choose batch size and clock: the fastest whose peak power plus ``margin_w`` is at most ``cap_w`` (None: no cap).

    ``cap_side``: where the cap holds, at the power sensor ("module") or at the terminals of the supply ("supply").
    ``batch_size``: only the clock is chosen, for this one; needed where there is no efficiency record.
    ``memory_bytes``: nothing is chosen of which a step takes more. ``also``: profiles and efficiency records of other
    training algorithms to choose from, in any order; see ``wattune.planning.plan_algorithms``.

    Raises: RecordError, CapError where no measured point keeps the cap, InputError.
    """
    from wattune import planning

    table = as_record(ProfileTable, profile)
    curve = None if efficiency is None else as_record(EfficiencyCurve, efficiency)
    limits: dict[str, Any] = {"cap_w": cap_w, "cap_side": cap_side, "margin_w": margin_w}
    limits |= {"batch_size": batch_size, "memory_bytes": memory_bytes}
    if not also:
        return planning.plan(table, curve, **limits)
    if curve is None:
        raise InputError("other training algorithms without an efficiency record", allowed="one with the profile")
    others = [as_one_of((ProfileTable, EfficiencyCurve), record) for record in also]
    return planning.plan_algorithms(
        [table, *(record for record in others if isinstance(record, ProfileTable))],
        [curve, *(record for record in others if isinstance(record, EfficiencyCurve))],
        **limits,
    )


def train(
    device: str | Device,
    workload: str | Path | Workload | None,
    plan: str | Path | Plan,
    *,
    algorithm: str | None = None,
    seed: int = 0,
    checkpoint: Path | None = None,
    resume: bool = False,
    weights: Path | None = None,
    max_temp_c: float | None = None,
    progress: Progress | None = None,
) -> TrainingRecord:
    """Train at the planned point until the target, and guard the plan's cap.

    ``algorithm``: with this one, at its best point, where the plan was chosen from several; None is the plan's own.
    ``max_temp_c`` is a second limit, on the board's highest temperature in degrees Celsius. ``checkpoint`` is a file
    that is replaced after each evaluation, and that ``resume`` goes on from; ``weights`` a safetensors file for the
    trained model. A target that was not reached raises nothing: the record's ``reached`` is False.

    Raises: InputError and its kinds for what cannot be trained as asked, DeviceError.
    """
    from wattune import profiling, training

    chosen = planned(plan, algorithm)
    with opened(device, seed=seed) as board:
        work = as_workload(workload, progress)
        return training.train(
            board,
            work,
            chosen,
            seed=seed,
            checkpoint=checkpoint,
            resume=resume,
            key=profiling.profile_key(board, work, chosen.algorithm),
            weights=weights,
            max_temp_c=max_temp_c,
            progress=progress,
        )


def compare(
    device: str | Device,
    workload: str | Path | Workload | None,
    profile: str | Path | ProfileTable,
    efficiency: str | Path | EfficiencyCurve,
    *,
    cap_w: float | None,
    cap_side: CapSide = "module",
    margin_w: float = 0.0,
    seeds: int | Sequence[int] = 3,
    folder: Path | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Train every rule's pick on the target: see ``wattune.comparison.compare``. ``seeds``: how many, or which.

    Raises: InputError and its kinds for what cannot be compared as asked, DeviceError.
    """
    from wattune import comparison

    with opened(device) as board:
        return comparison.compare(
            board,
            as_workload(workload, progress),
            as_record(ProfileTable, profile),
            as_record(EfficiencyCurve, efficiency),
            cap_w=cap_w,
            cap_side=cap_side,
            margin_w=margin_w,
            seeds=range(seeds) if isinstance(seeds, int) else seeds,
            folder=folder,
            processes=processes,
            progress=progress,
        )


def check_profile(
    profile: str | Path | ProfileTable, device: str | Device, workload: str | Path | Workload | None
) -> None:
    """Refuse a profile of another device, model, ... Raises: RecordError; InputError and its kinds."""
    from wattune import planning, preflight, profiling

    table = as_record(ProfileTable, profile)
    with opened(device) as board:
        key = profiling.profile_key(board, as_workload(workload), table.algorithm)
        planning.check_profile(table, key, kind=board.kind, command=preflight.check_command(board, profile, workload))


def planned(plan: str | Path | Plan, algorithm: str | None) -> Plan:
    """The plan to train by; with ``algorithm`` its point for that one. Raises: RecordError, UnknownName, InputError."""
    from wattune import planning

    chosen = as_record(Plan, plan)
    if algorithm is None:
        return chosen
    from wattune.algorithms import canonical

    return planning.with_algorithm(chosen, canonical(algorithm))


def check_algorithm(what: str, found: str, asked: str) -> None:
    """Refuse a finished record of another training algorithm. Raises: RecordError, UnknownName, InputError."""
    from wattune.algorithms import canonical

    if found != canonical(asked):
        raise RecordError(
            f"the finished {what} is of another training algorithm",
            value=found,
            allowed=canonical(asked),
            hint="give another -o FILE",
        )


@contextmanager
def opened(device: str | Device, *, seed: int = 0) -> Iterator[Device]:
    """The device that is meant; one that is opened here is closed again. Raises: InputError, DeviceError."""
    from wattune.devices import open_device

    if not isinstance(device, str):
        yield device
        return
    board = open_device(device, seed=seed)
    try:
        yield board
    finally:
        board.close()


def as_workload(workload: str | Path | Workload | None, progress: Progress | None = None) -> Workload:
    """The workload that is meant; None is the built-in example. Raises: WorkloadError, UnknownName."""
    from wattune.workloads import example_workload, load_workload

    if workload is None:
        return example_workload(progress)
    return load_workload(workload) if isinstance(workload, (str, Path)) else workload


def as_one_of(kinds: Sequence[type[Record]], record: str | Path | Record) -> Record:
    """The record that is meant, which may be of any of these kinds. Raises: RecordError."""
    if not isinstance(record, (str, Path)):
        return record
    data = read_json(record)
    said = data.get("record") if isinstance(data, dict) else None
    kind = next((kind for kind in kinds if kind.name == said), None)
    if kind is None:
        raise RecordError(
            f"{record} is no record of the kind that is wanted",
            value=said if isinstance(said, str) else None,
            allowed=", ".join(kind.name for kind in kinds),
        )
    return kind.parse(data, source=str(record))


def as_record(kind: type[R], record: str | Path | R) -> R:
    """The record that is meant. Raises: RecordError."""
    return kind.load(record) if isinstance(record, (str, Path)) else record
