"""``wattune compare``: every rule's pick, trained on the target."""

from __future__ import annotations

import typer

from wattune.cli.options import (
    Cap,
    DeviceSpec,
    EfficiencyFile,
    File,
    Json,
    Margin,
    Mode,
    Processes,
    ProfileFile,
    Resume,
    Seeds,
    SysfsRoot,
    WorkloadFile,
    cap_limit,
    device_spec,
    margin_w,
)
from wattune.cli.output import claim, resumable
from wattune.cli.progress import shown


def compare(
    context: typer.Context,
    profile: ProfileFile,
    efficiency: EfficiencyFile,
    device: DeviceSpec,
    cap: Cap,
    workload: WorkloadFile = None,
    margin: Margin = "0",
    seeds: Seeds = 3,
    processes: Processes = None,
    sysfs_root: SysfsRoot = None,
    mode: Mode = None,
    output: File = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Train the picks of simpler rules as well.

    Beside wattune's own they are: the largest or the best batch at a clock that is safe for any model, the best batch
    first and the clock after, the largest batch at its own clock, and the fastest point by the target's own runs.

    \b
    Example:  wattune compare profile.json efficiency.json --device sim:jetson-nano --cap 4.5W
    """
    from wattune import stages
    from wattune.errors import RecordError
    from wattune.records import Comparison
    from wattune.reporting import comparison_table, words

    limit, below, spec = cap_limit(cap), margin_w(margin), device_spec(device, sysfs_root, mode)
    to = claim(output, "comparison.json", as_json=as_json, resume=resume)
    record = to.load(Comparison)
    if record is not None and (record.supply_cap_w or record.cap_w, record.cap_side) != limit:
        raise RecordError(
            "the finished record is of another cap", value=words.under(record.cap_w), hint="give another -o FILE"
        )
    if record is None:
        folder = to.beside("-curves")
        with resumable(context.obj, folder), shown() as progress:
            record = stages.compare(
                spec,
                workload,
                profile,
                efficiency,
                cap_w=limit.cap_w,
                cap_side=limit.side,
                margin_w=below,
                seeds=seeds,
                folder=folder,
                processes=processes,
                progress=progress,
            )
    to.deliver(record, f"{comparison_table(record)}\n\n{record.method}")
