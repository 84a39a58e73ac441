"""The whole job, step by step: device -> profile -> efficiency -> plan -> training -> comparison -> report.

Each step hands the next a record, which is in the run's folder as soon as it is made. A run that was interrupted
skips the records that are there and goes on inside the step that was not done.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wattune import comparison, efficiency, planning, profiling, reporting, training
from wattune.devices import Device
from wattune.errors import DeviceError, WorkloadError
from wattune.folder import RunArguments, RunFolder, free_folder
from wattune.preflight import check_cap, check_choices, check_known, check_workload, fingerprint
from wattune.records import Comparison, EfficiencyCurve, Plan, ProfileTable, TrainingRecord
from wattune.stages import as_record, as_workload, opened
from wattune.workloads import Workload

Progress = Callable[[int, int, str], None]

REST_S = 3600.0
"""How long a simulated board rests before the pick is measured again."""


def run(
    device: str | Device,
    workload: str | Path | Workload | None = None,
    *,
    cap_w: float | None,
    output: str | Path | None = None,
    seeds: int = 3,
    seed: int = 0,
    strategy: str | None = None,
    profile: str | Path | ProfileTable | None = None,
    compare: bool = False,
    resume: bool = False,
    margin_w: float = 0.0,
    processes: int | None = None,
    progress: Progress | None = None,
) -> TrainingRecord:
    """Profile, estimate, plan, train and report under a cap in watts (None: no cap), in a folder of its own.

    ``device`` is a spec such as ``"sim:jetson-nano"`` or an open device; ``workload`` an object, the path of a workload
    file, or None for the built-in example. ``output`` is a new or empty folder, by default the first free
    ``wattune-run-N``; with ``resume`` the folder of a run that was interrupted. ``profile`` is one that was measured
    before with this device and model, under whatever cap; it is then not measured anew. ``seeds`` is how often each
    batch size is trained on the proxy (and with ``compare`` on the target), ``seed`` that of the training.

    A target that was not reached raises nothing: the record's ``reached`` is False.

    Raises: InputError and its kinds for what cannot be done as asked, DeviceError.
    """
    with opened(device, seed=seed) as board:
        work = as_workload(workload, progress)
        check_workload(work, board)
        arguments = RunArguments.check(
            device=device if isinstance(device, str) else device.name,
            workload=work.name if isinstance(workload, Workload) else workload and str(workload),
            cap_w=cap_w,
            seeds=seeds,
            seed=seed,
            strategy=strategy,
            margin_w=margin_w,
            compare=compare,
            fingerprint=fingerprint(work),
        )
        known = None if profile is None else as_record(ProfileTable, profile)
        check_choices(known, strategy=strategy, cap_w=cap_w, margin_w=margin_w)
        if known is not None:
            check_known(known, board, work)
        folder = RunFolder.open(Path(output or free_folder()), arguments, resume=resume)
        start = board.state_dict()

        table = folder.load(ProfileTable)
        if table is None:
            try:
                table = known or profiling.profile(
                    board,
                    work,
                    strategy=strategy,
                    cap_w=None if cap_w is None else cap_w - margin_w,
                    partial=folder.partial,
                    progress=_in(progress, "profile"),
                )
            except (DeviceError, WorkloadError):
                folder.abandon()
                raise
            folder.save(table)
        folder.partial.unlink(missing_ok=True)
        key = profiling.profile_key(board, work, table.algorithm)
        planning.check_profile(table, key)
        check_cap(table, cap_w=cap_w, margin_w=margin_w)

        curve = folder.load(EfficiencyCurve) or folder.save(
            efficiency.estimate(
                work,
                seeds=seeds,
                folder=folder.proxy_curves,
                processes=processes,
                progress=_in(progress, "estimate"),
            )
        )
        plan = folder.load(Plan)
        if plan is None:
            if start is not None:
                # Later than the training will be, whose noise would else be that which is seen here.
                board.load_state_dict(start)
                board.wait(REST_S)
            table, plan = _confirmed(
                board, work, table, curve, cap_w=cap_w, margin_w=margin_w, progress=_in(progress, "plan")
            )
            folder.save(table)
            folder.save(plan)

        # A simulated board begins to train as it began to profile, so that a resumed run ends with the same figures.
        if start is not None:
            board.load_state_dict(start)
        record = folder.load(TrainingRecord) or folder.save(
            training.train(
                board,
                work,
                plan,
                seed=seed,
                checkpoint=folder.checkpoint,
                resume=resume,
                key=key,
                weights=folder.weights,
                progress=_in(progress, "train"),
            )
        )
        if compare and folder.load(Comparison) is None:
            if start is not None:
                board.load_state_dict(start)
            folder.save(
                comparison.compare(
                    board,
                    work,
                    table,
                    curve,
                    cap_w=cap_w,
                    margin_w=margin_w,
                    seeds=range(seeds),
                    folder=folder.target_curves,
                    processes=processes,
                    progress=_in(progress, "compare"),
                )
            )
    reporting.write_report(folder.path, folder.report)
    return record


def _confirmed(
    board: Device,
    work: Workload,
    table: ProfileTable,
    curve: EfficiencyCurve,
    *,
    cap_w: float | None,
    margin_w: float,
    progress: Progress | None,
) -> tuple[ProfileTable, Plan]:
    """A plan whose pick keeps the cap also when it is measured again, for longer; and the table with what that gave."""
    while True:
        plan = planning.plan(table, curve, cap_w=cap_w, margin_w=margin_w)
        if cap_w is None:
            return table, plan
        if progress is not None:
            progress(0, 1, f"measuring batch size {plan.batch_size} again, for longer")
        table = profiling.confirm(board, work, table, plan.point, cap_w=cap_w - margin_w)
        confirmed = planning.plan(table, curve, cap_w=cap_w, margin_w=margin_w)
        if confirmed.point == plan.point:
            return table, confirmed


def _in(progress: Progress | None, step: str) -> Progress | None:
    """The same progress, its texts beginning with the step that they are of; it says at once that the step begins."""
    if progress is None:
        return None
    progress(0, 0, f"{step}: begins")
    return lambda done, total, what: progress(done, total, f"{step}: {what}")
