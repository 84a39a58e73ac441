"""``wattune run``: everything in one go, in a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from wattune.cli.options import (
    Algorithm,
    Json,
    MaxTemp,
    Mode,
    Processes,
    Reference,
    Resume,
    Strategy,
    SysfsRoot,
    WorkloadFile,
    cap_limit,
    device_spec,
    margin_w,
    max_temp_c,
)
from wattune.cli.outcome import failure
from wattune.cli.output import Output, resumable
from wattune.cli.progress import shown
from wattune.errors import InputError, OutputError

Device = Annotated[
    str | None, typer.Option("--device", metavar="DEVICE", help="A name from `wattune devices`, or a board file.")
]
Cap = Annotated[
    str | None,
    typer.Option("--cap", metavar="WATTS", help="Power limit such as 4.5W, 10W@module or 12W@supply, or none."),
]
Folder = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="A new or empty folder. By default wattune-run-N."),
]
Profile = Annotated[
    Path | None, typer.Option("--profile", metavar="FILE", help="A profile record; it is then not measured anew.")
]
Compare = Annotated[bool, typer.Option("--compare", help="Afterwards train the picks of simpler rules as well.")]
Seeds = Annotated[
    int | None, typer.Option("--seeds", metavar="N", min=1, max=1000, help="Trainings per batch size. By default 3.")
]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Seed of the training. By default 0.")
]
Margin = Annotated[
    str | None, typer.Option("--margin", metavar="WATTS", help="Stay this much below the limit. By default 0.")
]


def run(
    workload: WorkloadFile = None,
    device: Device = None,
    cap: Cap = None,
    output: Folder = None,
    resume: Resume = False,
    compare: Compare = False,
    strategy: Strategy = None,
    reference: Reference = None,
    profile: Profile = None,
    seeds: Seeds = None,
    seed: Seed = None,
    margin: Margin = None,
    algorithm: Algorithm = None,
    max_temp: MaxTemp = None,
    sysfs_root: SysfsRoot = None,
    mode: Mode = None,
    processes: Processes = None,
    as_json: Json = False,
) -> None:
    """Profile, estimate, plan, train and report. Going on with a run needs its folder only.

    \b
    Example:  wattune run --device sim:jetson-nano --cap 4.5W
              wattune run --output wattune-run-1 --resume
    """
    given: dict[str, Any] = {"workload": None if workload is None else str(workload)}
    given |= {
        "algorithm": algorithm,
        "strategy": strategy,
        "seeds": seeds,
        "seed": seed,
        "reference": reference,
        "compare": compare or None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if device is not None:
        given["device"] = device_spec(device, sysfs_root, mode)
    elif sysfs_root is not None or mode is not None:
        raise InputError("--sysfs-root and --mode go with --device")
    if cap is not None:
        given["cap_w"], given["cap_side"] = cap_limit(cap)
    if margin is not None:
        given["margin_w"] = margin_w(margin)
    if max_temp is not None:
        given["max_temp_c"] = max_temp_c(max_temp)

    from wattune.folder import RunFolder, free_folder

    if resume and output is None:
        raise OutputError("--resume", hint="name the folder of the run to go on with by -o DIR")
    folder = RunFolder(free_folder() if output is None else output)
    if resume and folder.begun:
        given = folder.remembered() | given
    for name, option in (("device", "--device"), ("cap_w", "--cap")):
        if name not in given:
            raise InputError(f"{option} is missing", hint="see wattune run --help")

    with resumable(["run", "--output", str(folder.path)], folder.arguments), shown() as progress:
        from wattune import pipeline

        record = pipeline.run(
            **given, profile=profile, output=folder.path, resume=resume, processes=processes, progress=progress
        )

    from wattune.records import Comparison
    from wattune.reporting import summary

    comparison = folder.load(Comparison) if given.get("compare") else None
    text = f"{summary(record.plan, record, comparison)}\nreport: {folder.report}"
    Output(folder.path / "training.json", as_json).deliver(record, text, failure(record))
