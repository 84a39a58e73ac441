"""The steps of the job, in order: profile, estimate, plan, train, compare.

Each step is one function from records to a record. The command line, ``wattune.run`` and Python's ``wattune.profile``,
``wattune.estimate`` and so on all call the one here. Devices, workloads and records may be given as ``coercion`` says.
"""

# Each function imports its package itself: planning from records must not wait for torch.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattune.cap import PowerCap
from wattune.cap_source import AnyCap, cap_of, check_scale
from wattune.errors import CapError, InputError
from wattune.goal import TIME, Goal
from wattune.intensity import Intensity
from wattune.job.coercion import Progress, as_record, as_trainable, as_workload, opened, profiled_workload
from wattune.records import Comparison, Evaluation, Plan, ProfileTable, SampleEfficiency, TrainingRecord, load_one_of
from wattune.records.efficiency import EfficiencyStrategy
from wattune.revision import check_revision

if TYPE_CHECKING:
    from wattune.devices import Device
    from wattune.power.capped_run import Readings
    from wattune.program.workload import ProgramWorkload
    from wattune.workloads import Workload


def profile(
    device: str | Device,
    workload: str | Path | Workload | None = None,
    *,
    cap_w: float | str | PowerCap | None = None,
    goal: Goal | str = TIME,
    strategy: str | None = None,
    strict: bool = False,
    efficiency: str | Path | SampleEfficiency | None = None,
    reference: bool | None = None,
    steps: int = 5,
    algorithm: str = "backprop",
    seed: int = 0,
    partial: Path | None = None,
    progress: Progress | None = None,
) -> ProfileTable:
    """Measure step time and power per batch size and clock, on at least ``steps`` steps each (or two seconds of them).

    ``strategy``: "full" for every point, "staircase" for those along the cap, "guided" for the few that tell most about
    the best one below it; None: with a cap guided for several clocks or a ``goal`` other than the time, else staircase;
    full without a cap. With "guided", ``efficiency`` says how many samples each batch size needs, ``goal`` (see
    ``plan``) which point is best, and ``strict`` avoids every point that might be above the cap. Measured cells are
    saved in ``partial``, from which an interrupted profile continues. ``reference``: also measure the reference
    workloads, which simpler rules need to choose a clock by; None: on a simulated board with one knob. ``seed``: of a
    simulated sensor. On a table (``replay:TABLE.csv``) no ``workload`` is needed.

    Raises: InputError and its kinds for what cannot be profiled as asked, DeviceError.
    """
    from wattune import profiling

    cap = PowerCap.of(cap_w)
    with opened(device, seed=seed) as board:
        check_scale(cap, board.highest_w)
        return profiling.profile(
            board,
            profiled_workload(workload, board),
            algorithm=algorithm,
            goal=Goal.of(goal),
            strategy=strategy,
            strict=strict,
            efficiency=None if efficiency is None else as_record(SampleEfficiency, efficiency),
            reference=reference,
            limit=cap.at_sensor(board.supply, board.sensor.window_s),
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
    cap_w: float | str | PowerCap | None = None,
    strategy: str | None = None,
    steps: int = 5,
    run_limit_s: float | None = None,
    partial: Path | None = None,
    progress: Progress | None = None,
) -> ProfileTable:
    """Measure step time and power of any program; see ``wattune.profiling.profile_command``.

    Raises: InputError and its kinds for what cannot be profiled as asked, and for a program that fails; DeviceError.
    """
    from wattune import profiling

    cap = PowerCap.of(cap_w)
    with opened(device) as board:
        check_scale(cap, board.highest_w)
        return profiling.profile_command(
            board,
            command,
            batch_sizes=batch_sizes,
            step_time=step_time,
            strategy=strategy,
            limit=cap.at_sensor(board.supply, board.sensor.window_s),
            steps=steps,
            run_limit_s=run_limit_s,
            partial=partial,
            progress=progress,
        )


def step_times(
    times_s: Mapping[int, float] | str | Path | ProfileTable, *, cap_w: float | str | PowerCap | None = None
) -> dict[int, tuple[float, float]]:
    """Batch size -> mean and standard deviation of ln(seconds per sample) at the fastest setting that the cap allows.

    ``times_s``: seconds of a step by batch size, or a profile to take them from.

    Raises: InputError for a step time that is not a positive number, RecordError, CapError if no measured point stays
    under the cap.
    """
    from wattune import planning
    from wattune.sample_efficiency.choice import given_times

    if isinstance(times_s, Mapping):
        return given_times(times_s)
    cap, table = PowerCap.of(cap_w), as_record(ProfileTable, times_s)
    check_scale(cap, table.highest_w)
    log_times = planning.log_step_times(table, cap.at_sensor(table.supply, table.sensor_window_s))
    if not log_times:
        raise CapError("no measured point of the profile stays under the cap", value=str(cap))
    return log_times


def estimate(
    workload: str | Path | Workload | ProgramWorkload | None = None,
    *,
    strategy: EfficiencyStrategy | None = None,
    seeds: int | None = None,
    runs: int | None = None,
    step_times: Mapping[int, tuple[float, float]] | None = None,
    algorithm: str = "backprop",
    folder: Path | None = None,
    processes: int | None = None,
    executor: str | None = None,
    progress: Progress | None = None,
) -> SampleEfficiency:
    """Train the workload's proxy, to see how many samples each batch size needs to the target.

    ``strategy``: "pooled" for as few runs as tell which batch size is best, "full" for ``seeds`` runs (3) at every
    batch size; None: full if ``seeds`` is given, else pooled. For pooled: ``runs`` is the largest number of runs
    (12), ``step_times`` the result of ``step_times``; batch sizes that have no chance on the device are then not
    trained. ``folder`` has the learning curves, from which
    an interrupted estimate continues. ``executor`` "ray" or "ray:ADDRESS": train over a Ray cluster, not in processes
    of this machine; "cuda": in processes that share the machine's GPU.

    Raises: WorkloadError, RecordError, OutputError, InputError.
    """
    from wattune import proxy

    # Checked before the built-in example trains its initial weights.
    strategy = proxy.resolve_strategy(strategy, seeds, step_times, runs)
    return proxy.estimate(
        as_trainable(workload, progress),
        strategy=strategy,
        seeds=seeds,
        most=runs,
        log_step_times=step_times,
        folder=folder,
        algorithm=algorithm,
        processes=processes,
        executor=executor,
        progress=progress,
    )


def plan(
    profile: str | Path | ProfileTable,
    efficiency: str | Path | SampleEfficiency | None = None,
    *,
    cap_w: AnyCap,
    goal: Goal | str = TIME,
    batch_size: int | None = None,
    memory_bytes: float | None = None,
    also: Sequence[str | Path | ProfileTable | SampleEfficiency] = (),
    carbon: str | Path | Intensity | None = None,
    tariff: str | Path | Intensity | None = None,
) -> Plan:
    """Choose batch size and clock: of the points whose power plus the cap's margin is at most the cap, the best one.

    ``cap_w``: watts at the power sensor, a text such as "12W@supply", a ``PowerCap``, or None for no cap; or a cap that
    changes: the path of a CSV file, "watch:FILE", a ``CapTrace``, or a callable from seconds to watts. The batch size
    is then the best one over all of its caps. ``goal``: what the best point is, the name of an aim such as "energy" or
    a ``Goal``; by default the fastest one.

    ``batch_size``: choose only the clock, for this one; needed if there is no efficiency record. ``memory_bytes``:
    choose nothing of which a step takes more. ``also``: profiles and efficiency records of other
    training algorithms to choose from, in any order; see ``wattune.planning.plan_algorithms``. ``carbon``, ``tariff``:
    forecast of the grid's carbon intensity, or of its price, as ``Intensity.load`` reads it; training then waits for
    the cheapest times that meet the goal's deadline, which begins now (for a simulated board at the forecast's first
    value).

    Raises: RecordError, CapError if no measured point stays under the cap, InputError.
    """
    from wattune import planning

    cap, table = cap_of(cap_w), as_record(ProfileTable, profile)
    check_scale(cap, table.highest_w)
    curve = None if efficiency is None else as_record(SampleEfficiency, efficiency)
    kinds = (ProfileTable, SampleEfficiency)
    others = [load_one_of(kinds, record) if isinstance(record, (str, Path)) else record for record in also]
    profiles = [table, *(record for record in others if isinstance(record, ProfileTable))]
    curves = [record for record in (curve, *others) if isinstance(record, SampleEfficiency)]
    _check_revisions(*profiles, *curves)
    asked: dict[str, Any] = {
        "cap": cap,
        "goal": Goal.of(goal),
        "intensity": intensity_of(carbon, tariff),
        "now": None if table.provenance.kind in ("simulated", "replayed") else datetime.now(timezone.utc),
        "batch_size": batch_size,
        "memory_bytes": memory_bytes,
    }
    if not also:
        return planning.plan(table, curve, **asked)
    if curve is None:
        raise InputError("other training algorithms without an efficiency record", allowed="one with the profile")
    return planning.plan_algorithms(profiles, curves, **asked)


def _check_revisions(*records: ProfileTable | SampleEfficiency) -> None:
    for record in records:
        check_revision(record.algorithm, record.provenance.software)


def intensity_of(
    carbon: str | Path | Intensity | None, tariff: str | Path | Intensity | None = None
) -> Intensity | None:
    """The forecast that is meant, None without one. Raises: InputError, also for both."""
    if carbon is not None and tariff is not None:
        raise InputError("a forecast of carbon and one of the price", allowed="one of the two")
    given: str | Path | Intensity | None = tariff if carbon is None else carbon
    if given is None or isinstance(given, Intensity):
        return given
    return Intensity.load(given, "price_per_kwh" if carbon is None else "gco2_per_kwh")


def train(
    device: str | Device,
    workload: str | Path | Workload | None,
    plan: str | Path | Plan,
    *,
    cap_w: AnyCap = None,
    yield_to: Callable[[], bool] | None = None,
    max_temp_c: float | None = None,
    seed: int = 0,
    checkpoint: Path | None = None,
    resume: bool = False,
    weights: Path | None = None,
    progress: Progress | None = None,
    on_evaluation: Callable[[Evaluation, Readings], None] | None = None,
) -> TrainingRecord:
    """Train at the planned point until the target, and stay under the plan's cap.

    ``cap_w``: a cap that changes, as in ``plan``; None: the plan's constant cap, at the times of its schedule if it has
    one. Batch size and learning rate stay, the setting follows the cap, and training pauses while none stays under it.
    ``yield_to``: called before each step, which waits while it returns True: other work on the board goes first.
    ``max_temp_c``: second limit beside the plan's cap, on the board's highest temperature in degrees Celsius.
    ``checkpoint``: a file that is replaced after each evaluation, from which ``resume`` continues; ``weights``: a
    safetensors file for the trained model. ``on_evaluation`` is called with each evaluation and the newest readings.
    A target that was not reached raises nothing: the record's ``reached`` is False.

    Raises: InputError and its kinds for what cannot be trained as asked, DeviceError.
    """
    from wattune import profiling, training

    chosen = as_record(Plan, plan)
    cap = None if cap_w is None else cap_of(cap_w)
    if isinstance(cap, PowerCap):
        raise InputError("the cap of a training run", value=str(cap), allowed="one that changes", hint="plan for it")
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
            cap=cap,
            yield_to=yield_to,
            progress=progress,
            on_evaluation=on_evaluation,
        )


def compare(
    device: str | Device,
    workload: str | Path | Workload | ProgramWorkload | None,
    profile: str | Path | ProfileTable,
    efficiency: str | Path | SampleEfficiency,
    *,
    cap_w: AnyCap,
    goal: Goal | str = TIME,
    seeds: int | Sequence[int] = 3,
    folder: Path | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
    price: Callable[..., TrainingRecord] | None = None,
) -> Comparison:
    """Train the pick of every rule on the target. ``goal``: that of wattune's own pick, see ``plan``; the others choose
    for the time. ``seeds``: how many, or which; ``folder`` has the learning curves;
    ``price``: as ``training.price``, for a program.

    Raises: InputError for a device that executes steps itself; RecordError if the records do not fit together;
    WorkloadError, DeviceError, OutputError.
    """
    from wattune.job.rule_comparison import compare_rules

    cap, table = cap_of(cap_w), as_record(ProfileTable, profile)
    curve = as_record(SampleEfficiency, efficiency)
    _check_revisions(table, curve)
    check_scale(cap, table.highest_w)
    with opened(device) as board:
        return compare_rules(
            board,
            as_trainable(workload, progress),
            table,
            curve,
            cap=cap,
            goal=Goal.of(goal),
            seeds=range(seeds) if isinstance(seeds, int) else seeds,
            folder=folder,
            processes=processes,
            progress=progress,
            price=price,
        )
