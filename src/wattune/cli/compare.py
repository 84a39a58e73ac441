"""Command ``wattune compare``: train the pick of every rule on the target."""

from __future__ import annotations

import typer

from wattune.cli.options import EfficiencyFile, File, Json, ProfileFile, configured
from wattune.cli.output import claim, resumable, shown
from wattune.job.config import RunConfig


@configured(
    *("workload", "device", "cap", "goal", "max_slowdown", "deadline", "seeds", "columns", "timezone", "resume"),
    advanced=(
        "cap_range",
        "cap_stale",
        "cap_window",
        "margin",
        "energy",
        "price_per_kwh",
        "price_per_hour",
        "processes",
        "sysfs_root",
    ),
    required=("device", "cap"),
)
def compare(
    context: typer.Context,
    profile: ProfileFile,
    efficiency: EfficiencyFile,
    config: RunConfig,
    output: File = None,
    as_json: Json = False,
) -> None:
    """Train the pick of wattune and those of simpler rules.

    The simpler rules: the largest or the best batch at a clock that is safe for any model, the best batch first and
    then its clock, the largest batch at its own clock, and the fastest point by the target's own runs.

    \b
    Example:  wattune compare profile.json efficiency.json --device sim:jetson-nano --cap 4.5W
    """
    from wattune.cap_source import CapSource
    from wattune.errors import RecordError
    from wattune.job import steps
    from wattune.job.checks import check_algorithm
    from wattune.records import Comparison, ProfileTable
    from wattune.reporting import phrases, summary

    cap, goal = config.whole_cap, config.whole_goal
    highest, caps = (cap.highest(), str(cap)) if isinstance(cap, CapSource) else (cap, None)
    destination = claim(output, "comparison.json", as_json=as_json, resume=config.resume)
    record = destination.load(Comparison)
    asked = (highest.limit_w, highest.side, caps)
    if record is not None and (record.supply_cap_w or record.cap_w, record.cap_side, record.caps) != asked:
        raise RecordError(
            "the finished record is of another cap", value=phrases.under(record.cap_w), hint="give another -o FILE"
        )
    if record is not None and record.goal != goal:
        raise RecordError("the finished record is for another goal", value=record.goal.aim, hint="give another -o FILE")
    if record is not None:
        check_algorithm("comparison", record.algorithm, ProfileTable.load(profile).algorithm)
    if record is None:
        folder = destination.beside("-curves")
        with resumable(context.obj, folder), shown() as progress:
            record = steps.compare(
                config.device,
                config.workload,
                profile,
                efficiency,
                cap_w=cap,
                goal=goal,
                seeds=config.seeds or 3,
                folder=folder,
                processes=config.processes,
                progress=progress,
            )
    destination.deliver(record, f"{summary(record)}\n{record.method}")
