"""``wattune train``: train as planned, and keep the cap."""

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
    device_spec,
    max_temp_c,
)
from wattune.cli.outcome import failure
from wattune.cli.output import claim, resumable
from wattune.cli.progress import shown


def train(
    context: typer.Context,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan record.")],
    device: DeviceSpec,
    workload: WorkloadFile = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            metavar="NAME",
            help="Of a plan that was chosen from several training algorithms: with this one, at its best point. By "
            "default the plan's own; a name alone, such as async-fgd, stands for the one of that name.",
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
    from wattune import stages
    from wattune.errors import RecordError
    from wattune.records import TrainingRecord
    from wattune.reporting import summary

    spec, hottest_c = device_spec(device, sysfs_root, mode), max_temp_c(max_temp)
    to = claim(output, "training.json", as_json=as_json, resume=resume)
    chosen = stages.planned(plan, algorithm)
    record = to.load(TrainingRecord)
    if record is not None and record.plan != chosen:
        raise RecordError("the finished record is of another plan", value=str(to.path), hint="give another -o FILE")
    # One that was stopped for safety goes on from its checkpoint: whoever resumes it has seen to the reason.
    stopped = record is not None and record.ended == "stopped for safety"
    if record is None or stopped:
        checkpoint, weights = to.beside("-checkpoint.safetensors"), to.beside("-model.safetensors")
        with resumable(context.obj, checkpoint), shown() as progress:
            record = stages.train(
                spec,
                workload,
                chosen,
                seed=seed,
                max_temp_c=hottest_c,
                checkpoint=checkpoint,
                resume=resume,
                weights=weights,
                progress=progress,
            )
    to.deliver(record, summary(record.plan, record), failure(record), replace=stopped)
