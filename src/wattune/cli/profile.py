"""``wattune profile``: step time and power of a workload on a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattune.cli.options import (
    DeviceSpec,
    File,
    Json,
    Mode,
    Reference,
    Resume,
    Strategy,
    SysfsRoot,
    WorkloadFile,
    cap_limit,
    device_spec,
)
from wattune.cli.output import claim, resumable
from wattune.cli.progress import shown
from wattune.errors import InputError

if TYPE_CHECKING:
    from wattune.records import ProfileTable


def profile(
    context: typer.Context,
    device: DeviceSpec,
    workload: WorkloadFile = None,
    cap: Annotated[
        str,
        typer.Option("--cap", metavar="WATTS", help="Power limit such as 4.5W or 12W@supply: probes stop above it."),
    ] = "none",
    strategy: Strategy = None,
    reference: Reference = None,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, max=100_000, help="Steps in a probe, at least.")
    ] = 5,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Seed of a simulated sensor.")
    ] = 0,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="FILE", help="Measure five cells of this profile again: does it still hold?"),
    ] = None,
    sysfs_root: SysfsRoot = None,
    mode: Mode = None,
    output: File = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Measure step time and power per batch size and clock.

    \b
    Example:  wattune profile --device sim:jetson-nano -o profile.json
    """
    spec = device_spec(device, sysfs_root, mode)
    if check is not None:
        if (cap, strategy, resume) != ("none", None, False):
            raise InputError("--check goes without --cap, --strategy and --resume")
        _check(check, spec, workload, output, seed=seed, as_json=as_json)
        return

    from wattune import stages
    from wattune.records import ProfileTable

    limit = cap_limit(cap)
    to = claim(output, "profile.json", as_json=as_json, resume=resume)
    partial = to.beside("-partial.json")
    record = to.load(ProfileTable)
    if record is not None:
        stages.check_profile(record, spec, workload)
    if record is None:
        with resumable(context.obj, partial), shown() as progress:
            record = stages.profile(
                spec,
                workload,
                cap_w=limit.cap_w,
                cap_side=limit.side,
                strategy=strategy,
                reference=reference,
                steps=steps,
                seed=seed,
                partial=partial,
                progress=progress,
            )
    to.deliver(record, _text(record))
    if partial is not None:
        partial.unlink(missing_ok=True)


def _check(path: Path, device: str, workload: Path | None, output: Path | None, *, seed: int, as_json: bool) -> None:
    """See by five cells whether a profile of this device, in another mode or with other software, still holds."""
    from wattune import profiling, stages
    from wattune.records import ProfileTable

    known = ProfileTable.load(path)
    to = claim(output, f"{path.stem}-checked.json", as_json=as_json)
    with stages.opened(device, seed=seed) as board, shown() as progress:
        record, deviations = profiling.check(
            board, stages.as_workload(workload).without_weights(), known, progress=progress
        )
    to.deliver(record, f"the profile still holds\n{deviations}")


def _text(record: ProfileTable) -> str:
    from wattune.reporting import words
    from wattune.reporting.text import table

    origin = words.origin(profile=record.provenance.kind)
    parts = [f"{record.workload} on {record.device}: {len(record.measured)} points  [{origin}]"]
    rows = []
    for size in record.batch_sizes:
        cells = sorted((c for c in record.measured if c.batch_size == size), key=lambda c: c.point.setting or 0.0)
        for cell in dict.fromkeys((cells[0], cells[-1])):
            rows.append(
                (words.batch(cell.point), words.setting(cell.point), words.seconds(cell.step_s),
                 words.watts(cell.power_mean_w), words.watts(cell.power_peak_w))
            )  # fmt: skip
    parts.append(table(("batch", "setting", "step", "mean power", "peak power"), rows))
    if unfit := sorted({cell.batch_size for cell in record.cells if cell.out_of_memory}):
        parts.append(f"does not fit in memory: batch size {', '.join(map(str, unfit))}")
    if not record.measured:
        parts.append("No point could be measured to its end: every probe was stopped above the cap.")
    if record.cost:
        parts.append(words.profiling_cost(record.cost, None, None))
    return "\n\n".join(parts)
