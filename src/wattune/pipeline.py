"""The whole job, step by step: device -> profile -> efficiency -> plan -> training -> comparison -> report.

Each step hands the next a record, which is in the run's folder as soon as it is made. A run that was interrupted
skips the records that are there and goes on inside the step that was not done. What a step does is in ``job.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from wattune import reporting
from wattune.devices import Device
from wattune.fleet import FleetJob, joined
from wattune.folder import RunArguments, RunFolder, free_folder
from wattune.job import SEEDS, Job
from wattune.preflight import (
    algorithm_of,
    check_cap,
    check_choices,
    check_command,
    check_known,
    check_source,
    check_workload,
    fingerprint,
)
from wattune.records import CapSide, ProfileTable, TrainingRecord
from wattune.stages import as_record, as_workload, opened
from wattune.workloads import Data, Loaders, Workload

Progress = Callable[[int, int, str], None]


def run(
    device: str | Device,
    workload: str | Path | Workload | None = None,
    *,
    cap_w: float | None,
    cap_side: CapSide = "module",
    max_temp_c: float | None = None,
    output: str | Path | None = None,
    seeds: int | None = None,
    seed: int = 0,
    strategy: str | None = None,
    reference: bool | None = None,
    algorithm: str | None = None,
    profile: str | Path | ProfileTable | None = None,
    compare: bool = False,
    resume: bool = False,
    margin_w: float = 0.0,
    processes: int | None = None,
    server: str | None = None,
    model: str | None = None,
    data: str | Path | Data | Loaders | None = None,
    target: float | None = None,
    device_name: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
) -> TrainingRecord:
    """Profile, estimate, plan, train and report under a cap in watts (None: no cap), in a folder of its own.

    ``cap_side``: where the cap holds, at the power sensor ("module") or at the terminals of the supply ("supply").
    ``max_temp_c`` is a second limit that training keeps: the board's highest temperature in degrees Celsius.

    ``device`` is a spec such as ``"sim:jetson-nano"`` or an open device; ``workload`` an object, the path of a workload
    file, or None for the built-in example. ``output`` is a new or empty folder, by default the first free
    ``wattune-run-N``; with ``resume`` the folder of a run that was interrupted. ``profile`` is one that was measured
    before with this device and model, under whatever cap; it is then not measured anew. ``seeds`` is how often each
    batch size is trained on the proxy (and with ``compare`` on the target), 3 times by default, ``seed`` that of the
    training. With the ``strategy`` "guided" the proxy is trained as seldom as the device is probed: see ``estimate``,
    "pooled". ``reference``: also measure the reference workloads, as ``profile`` does. ``algorithm``: which one trains,
    with its options, as in "async-fgd:modules=4"; None is that of the given profile, or backprop.

    ``server``: the URL of a wattune server, in place of a workload. Its ``model`` is trained on ``data`` of one's own
    (an ``.npz`` file, ``Data`` or ``Loaders``), which never leaves this machine, until ``target`` (by default the
    model's). The server trains the proxy while this device is profiled: pooled, or with ``seeds`` each batch size so
    often. ``device_name``: what the server calls this device, by default the machine's name; ``token``: by default the
    environment variable ``WATTUNE_TOKEN``. Records that cannot be delivered are kept and delivered later.

    ``progress`` is called with how much of how much is done, and a text that begins with its step. With a ``server`` it
    may also be called from another thread, with a text that begins with "warning: "; what it raises there is ignored.

    A target that was not reached raises nothing: the record's ``reached`` is False.

    Raises: InputError and its kinds for what cannot be done as asked, DeviceError, ServerError.
    """
    fleet: dict[str, Any] = {"server": server, "model": model, "target": target, "device_name": device_name}
    check_source(workload, **fleet, data=data, seeds=seeds, token=token)
    kept = Path(output) if resume and output else None
    from_server = joined(**fleet, data=data, token=token, kept=kept, progress=progress)
    with opened(device, seed=seed) as board, from_server as source:
        work = as_workload(workload, progress) if source is None else source.work
        check_workload(work, board, needs_proxy=source is None)
        known = None if profile is None else as_record(ProfileTable, profile)
        algorithm = algorithm_of(known, algorithm)
        asked = RunArguments.check(
            device=board.spec or board.name,
            workload=work.name if isinstance(workload, Workload) else workload and str(workload),
            cap_w=cap_w,
            cap_side=cap_side,
            max_temp_c=max_temp_c,
            seeds=SEEDS if seeds is None and source is None else seeds,
            seed=seed,
            strategy=strategy,
            reference=reference,
            margin_w=margin_w,
            compare=compare,
            algorithm=algorithm,
            fingerprint=fingerprint(work),
            data=str(data) if isinstance(data, (str, Path)) else None,
            **fleet,
        )
        check_choices(
            board,
            known,
            strategy=strategy,
            cap_w=cap_w,
            cap_side=cap_side,
            margin_w=margin_w,
            max_temp_c=max_temp_c,
        )
        if known is not None:
            check_known(known, board, work, command=check_command(board, profile, workload))
        folder = RunFolder.open(Path(output or free_folder()), asked, resume=resume)
        make = Job if source is None else partial(FleetJob, source=source)
        job = make(board, work, folder, asked, processes=processes, resume=resume, progress=progress)

        with job.around():
            table = job.profile(known)
            check_cap(table, cap_w=cap_w, cap_side=cap_side, margin_w=margin_w)
            curve = job.estimate(table)
            table, plan = job.plan(table, curve)
            record = job.train(plan)
            if compare:
                job.compare(table, curve)
    reporting.write_report(folder.path, folder.report)
    return record
