"""Command ``wattune train``: train as planned, and stay under the cap."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattune.cli.options import File, Json, configured
from wattune.cli.output import claim, failure, note, resumable, shown
from wattune.job.config import RunConfig


@configured(
    *("workload", "device", "cap", "seed", "max_temp", "columns", "timezone", "resume"),
    advanced=("cap_range", "cap_stale", "cap_window", "margin", "sysfs_root", "meter"),
    required=("device",),
)
def train(
    context: typer.Context,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan record.")],
    config: RunConfig,
    output: File = None,
    as_json: Json = False,
) -> None:
    """Train at the planned point, with the planned algorithm, until the target.

    With --cap, the clocks follow a cap that changes (default: the plan's constant cap).

    \b
    Example:  wattune train plan.json workload.toml --device sim:jetson-nano
    """
    from wattune.errors import InputError, RecordError
    from wattune.job import steps
    from wattune.records import Plan, TrainingRecord
    from wattune.reporting import summary

    if "cap" in config.model_fields_set and config.moving_cap is None:
        raise InputError(
            "cap", value=str(config.cap), allowed="a cap that changes: CAPS.csv or watch:FILE", hint="plan for it"
        )
    for text in () if config.moving_cap is None else config.moving_cap.assumed:
        note(text)
    destination = claim(output, "training.json", as_json=as_json, resume=config.resume)
    chosen = Plan.load(plan)
    record = destination.load(TrainingRecord)
    if record is not None and record.plan != chosen:
        raise RecordError(
            "the finished record is of another plan", value=str(destination.path), hint="give another -o FILE"
        )
    # One that was stopped for safety continues from its checkpoint: the user has removed the cause by now.
    stopped = record is not None and record.ended == "stopped for safety"
    if record is None or stopped:
        checkpoint, weights = (
            destination.beside("-checkpoint.safetensors"),
            destination.beside("-model.safetensors", resumes=False),
        )
        with resumable(context.obj, checkpoint), shown() as progress:
            record = steps.train(
                config.device,
                config.workload,
                chosen,
                cap_w=config.moving_cap,
                seed=config.seed,
                max_temp_c=config.max_temp,
                checkpoint=checkpoint,
                resume=config.resume,
                weights=weights,
                progress=progress,
            )
    destination.deliver(record, summary(record), failure(record), replace=stopped)
