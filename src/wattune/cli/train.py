"""Command ``wattune train``: train as planned, and stay under the cap."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattune.cli.options import (
    DeviceSpec,
    File,
    Json,
    MaxTemp,
    Mode,
    Resume,
    Seed,
    SysfsRoot,
    WorkloadFile,
    any_cap,
    device_spec,
    max_temp_c,
)
from wattune.cli.output import claim, failure, resumable, shown


def train(
    context: typer.Context,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan record.")],
    device: DeviceSpec,
    workload: WorkloadFile = None,
    cap: Annotated[
        str | None,
        typer.Option(
            "--cap",
            metavar="CAP",
            help="A cap that changes, which the clocks follow: CAPS.csv (seconds,watts or time,watts), or watch:FILE "
            "(default: the plan's constant cap).",
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            metavar="NAME",
            help="Train with this algorithm, at its best point, if the plan was chosen from several; a name without "
            "options, such as async-fgd, is enough (default: the plan's own).",
        ),
    ] = None,
    seed: Seed = 0,
    max_temp: MaxTemp = None,
    sysfs_root: SysfsRoot = None,
    mode: Mode = None,
    output: File = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Train at the planned point, with the planned algorithm, until the target.

    \b
    Example:  wattune train plan.json workload.toml --device sim:jetson-nano
    """
    from wattune.errors import InputError, RecordError
    from wattune.job import steps
    from wattune.records import TrainingRecord
    from wattune.reporting import summary

    spec, hottest_c = device_spec(device, sysfs_root, mode), None if max_temp is None else max_temp_c(max_temp)
    moving = any_cap(cap)
    if cap is not None and moving is None:
        raise InputError("--cap", value=cap, allowed="a cap that changes: CAPS.csv or watch:FILE", hint="plan for it")
    destination = claim(output, "training.json", as_json=as_json, resume=resume)
    algorithm_plan = steps.with_algorithm(plan, algorithm)
    record = destination.load(TrainingRecord)
    if record is not None and record.plan != algorithm_plan:
        raise RecordError(
            "the finished record is of another plan", value=str(destination.path), hint="give another -o FILE"
        )
    # One that was stopped for safety continues from its checkpoint: the user has removed the cause by now.
    stopped = record is not None and record.ended == "stopped for safety"
    if record is None or stopped:
        checkpoint, weights = destination.beside("-checkpoint.safetensors"), destination.beside("-model.safetensors")
        with resumable(context.obj, checkpoint), shown() as progress:
            record = steps.train(
                spec,
                workload,
                algorithm_plan,
                cap_w=moving,
                seed=seed,
                max_temp_c=hottest_c,
                checkpoint=checkpoint,
                resume=resume,
                weights=weights,
                progress=progress,
            )
    destination.deliver(record, summary(record.plan, record), failure(record), replace=stopped)
