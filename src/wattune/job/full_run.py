"""All steps of the job in one run, in a folder of its own.

Each step passes a record on to the next, and saves it in the run's folder as soon as it is made. An interrupted run
skips the records that are there and continues inside the step that was not finished.
"""

from __future__ import annotations

from pathlib import Path

from wattune import reporting
from wattune.cap import PowerCap
from wattune.devices import Device
from wattune.job.checks import algorithm_of, check_cap, check_command, check_run, check_workload, fingerprint
from wattune.job.coercion import as_record, as_workload, opened
from wattune.job.folder import RunArguments, RunFolder, free_folder
from wattune.job.resumable_run import SEEDS, ResumableRun
from wattune.job.steps import Progress
from wattune.records import ProfileTable, TrainingRecord
from wattune.workloads import Workload


def run(
    device: str | Device,
    workload: str | Path | Workload | None = None,
    *,
    cap_w: float | str | PowerCap | None,
    output: str | Path | None = None,
    seeds: int = SEEDS,
    seed: int = 0,
    strategy: str | None = None,
    reference: bool | None = None,
    algorithm: str | None = None,
    profile: str | Path | ProfileTable | None = None,
    compare: bool = False,
    resume: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
) -> TrainingRecord:
    """Profile, estimate, plan, train and report under a power cap, in a folder of its own.

    ``device`` is a spec such as ``"sim:jetson-nano"`` or an open device; ``workload`` an object, the path of a workload
    file, or None for the built-in example. ``cap_w``: watts at the power sensor, a text such as "10W" or "12W@supply",
    a ``PowerCap`` (which may have a margin and a highest temperature of the board), or None for no cap.

    ``output`` is a new or empty folder, by default the first free ``wattune-run-N``; with ``resume`` it is the folder
    of a run that was interrupted. ``profile`` is one that was measured before with this device and model, under any
    cap; it is then not measured again. ``seeds``: how often each batch size is trained on the proxy (and with
    ``compare`` on the target); ``seed``: the seed of the training run. With the ``strategy`` "guided", the proxy is
    trained only as often as necessary: see ``estimate``, "pooled". ``reference``: also measure the reference
    workloads, as ``profile`` does. ``algorithm``: which one trains, with its options, as in "async-fgd:modules=4"; None
    is that of the given profile, or backprop.

    ``progress`` is called with how much of how much is done, and a text that begins with its step. A target that was
    not reached raises nothing: the record's ``reached`` is False.

    Raises: InputError and its kinds for what cannot be done as asked, DeviceError.
    """
    cap = PowerCap.of(cap_w)
    with opened(device, seed=seed) as board:
        work = as_workload(workload, progress)
        check_workload(work, board)
        given_profile = None if profile is None else as_record(ProfileTable, profile)
        arguments = RunArguments.check(
            cap,
            device=board.spec or board.name,
            workload=work.name if isinstance(workload, Workload) else workload and str(workload),
            seeds=seeds,
            seed=seed,
            strategy=strategy,
            reference=reference,
            compare=compare,
            algorithm=algorithm_of(given_profile, algorithm),
            fingerprint=fingerprint(work),
        )
        check_run(arguments, board, work, given_profile, command=check_command(board, profile, workload))
        folder = RunFolder.open(Path(output or free_folder()), arguments, resume=resume)
        steps = ResumableRun(board, work, folder, arguments, resume, processes, progress)
        table = steps.profile(given_profile)
        check_cap(table, cap)
        curve = steps.estimate(table)
        table, plan = steps.plan(table, curve)
        record = steps.train(plan)
        if compare:
            steps.compare(table, curve)
    reporting.write_report(folder.path, folder.report)
    return record
