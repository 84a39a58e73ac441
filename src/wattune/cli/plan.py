"""Command ``wattune plan``: batch size and clock to train with, from a profile and an efficiency record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattune import units
from wattune.cli.options import File, Json, Memory, ProfileFile, configured
from wattune.cli.output import Output, claim
from wattune.job.config import RunConfig


@configured(
    *("cap", "goal", "max_slowdown", "deadline", "energy", "margin", "columns", "timezone"),
    advanced=("cap_range", "cap_window", "price_per_kwh", "price_per_hour", "carbon", "tariff"),
    required=("cap",),
)
def plan(
    profile: ProfileFile,
    efficiency: Annotated[
        Path | None,
        typer.Argument(metavar="EFFICIENCY", help="Efficiency record (default: only the clock is chosen)."),
    ] = None,
    *,
    config: RunConfig,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            metavar="N",
            min=1,
            help="Choose only the clock, for this batch size (default: choose both).",
        ),
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            "--also",
            metavar="RECORD",
            help="Profile or efficiency record of another training algorithm to choose from; repeatable.",
        ),
    ] = None,
    memory: Memory = None,
    output: File = None,
    as_json: Json = False,
) -> None:
    """Choose batch size and clock from records, and the training algorithm if there are records of several.

    The fastest point is chosen, or the best one for another goal.
    The plan is only printed, unless -o names a file. From a program's profile, it includes the command that runs the
    program at the chosen point.

    \b
    Example:  wattune plan profile.json efficiency.json --cap 4.5W --json
              wattune plan profile.json efficiency.json --cap 4.5W --max-slowdown 5%
              wattune plan profile.json efficiency.json --cap caps.csv
              wattune plan profile.json efficiency.json --cap 4.5W --set carbon=ci.csv --deadline 16h
              wattune plan profile.json efficiency.json --cap 4.5W --memory 64MB --also profile-checkpointed.json
    """
    from wattune.job import steps
    from wattune.reporting import summary

    # Planning takes a moment and is repeated for other caps: without -o the plan is only printed.
    destination = Output(None, as_json) if output is None else claim(output, "plan.json", as_json=as_json)
    record = steps.plan(
        profile,
        efficiency,
        cap_w=config.whole_cap,
        goal=config.whole_goal,
        batch_size=batch_size,
        memory_bytes=None if memory is None else units.parse(memory, "B", name="--memory"),
        also=also or (),
        carbon=config.intensity,
    )
    text = summary(record)
    if record.run_by is not None:
        text += f"\nrun it, with your number of STEPS:\n  {record.run_by}"
    destination.deliver(record, text)
