"""``wattune plan``: the batch size and the clock to train with, from a profile and an efficiency record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattune.cli.options import Cap, File, Json, Margin, Memory, ProfileFile, cap_limit, margin_w, memory_bytes
from wattune.cli.output import Output, claim


def plan(
    profile: ProfileFile,
    efficiency: Annotated[
        Path | None,
        typer.Argument(metavar="EFFICIENCY", help="An efficiency record; without one, --batch-size is taken as it is."),
    ] = None,
    *,
    cap: Cap,
    margin: Margin = "0",
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", min=1, help="Choose the clock for this one only.")
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            "--also",
            metavar="RECORD",
            help="A profile or an efficiency record of another training algorithm to choose from. Repeatable.",
        ),
    ] = None,
    memory: Memory = None,
    output: File = None,
    as_json: Json = False,
) -> None:
    """Choose batch size and clock, from records; and the training algorithm, where there are records of several.

    Of a program's profile it also says the command that runs the program there.

    \b
    Example:  wattune plan profile.json efficiency.json --cap 4.5W --json
              wattune plan profile.json efficiency.json --cap 4.5W --memory 64MB --also profile-checkpointed.json
    """
    from wattune import stages
    from wattune.reporting import cap_table, summary

    limit, below = cap_limit(cap), margin_w(margin)
    # Planning takes a moment and is asked again and again for other caps: without -o it is only printed.
    to = Output(None, as_json) if output is None else claim(output, "plan.json", as_json=as_json)
    record = stages.plan(
        profile,
        efficiency,
        cap_w=limit.cap_w,
        cap_side=limit.side,
        margin_w=below,
        batch_size=batch_size,
        memory_bytes=memory_bytes(memory),
        also=also or (),
    )
    text = f"{summary(record)}\nover the range of caps, times the time of the pick\n{cap_table(record)}"
    if batch_size is not None or efficiency is None:  # compared with itself, a single batch size gains nothing
        text = summary(record)
    if record.run_by is not None:
        text += f"\nrun it, with your number of STEPS:\n  {record.run_by}"
    to.deliver(record, text)
