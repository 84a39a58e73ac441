"""``wattune profile``: step time and power of a workload on a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattune.cli.options import (
    ALGORITHM,
    Algorithm,
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
    sizes,
)
from wattune.cli.output import claim, resumable
from wattune.cli.progress import shown
from wattune.errors import InputError, RecordError

if TYPE_CHECKING:
    from wattune.records import Guidance, ProfileTable


def profile(
    context: typer.Context,
    device: DeviceSpec,
    workload: WorkloadFile = None,
    algorithm: Algorithm = None,
    cap: Annotated[
        str,
        typer.Option("--cap", metavar="WATTS", help="Power limit such as 4.5W or 12W@supply: probes stop above it."),
    ] = "none",
    strategy: Strategy = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="With guided: nothing is probed that might be above the limit.")
    ] = False,
    efficiency: Annotated[
        Path | None,
        typer.Option("--efficiency", metavar="FILE", help="With guided: samples per batch size, from this record."),
    ] = None,
    reference: Reference = None,
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            metavar="N",
            min=1,
            max=100_000,
            help="Steps in a probe, at least; ten seconds of them are enough.",
        ),
    ] = 5,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Seed of a simulated sensor.")
    ] = 0,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="FILE", help="Measure five cells of this profile again: does it still hold?"),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", metavar="TEXT", help="Any program, with {batch_size} and {steps} in its arguments."),
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option("--batch-sizes", metavar="LIST", help="The program's, such as 8,16,32.")
    ] = None,
    step_time: Annotated[
        str | None,
        typer.Option(
            "--step-time",
            metavar="PATTERN",
            help="Finds the seconds of a step in the program's lines: a regular expression with one group, named ms "
            "for milliseconds. Without it, a step is timed by runs of two lengths.",
        ),
    ] = None,
    step_time_file: Annotated[
        Path | None,
        typer.Option("--step-time-file", metavar="FILE", help="The program writes step times there, one a line."),
    ] = None,
    run_limit: Annotated[
        float | None,
        typer.Option("--run-limit", metavar="SECONDS", min=1.0, help="A run that takes longer hangs; 900 by default."),
    ] = None,
    sysfs_root: SysfsRoot = None,
    mode: Mode = None,
    output: File = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Measure step time and power per batch size and clock: of a workload, or of any program.

    \b
    Example:  wattune profile --device sim:jetson-nano -o profile.json
              wattune profile --device sim:jetson-nano --algorithm backprop:checkpoint=auto -o checkpointed.json
    Example:  wattune profile --device jetson --cap 10W --batch-sizes 8,16,32
                --command "python3 train.py --batch-size {batch_size} --steps {steps}"
    """
    spec = device_spec(device, sysfs_root, mode)
    of_program = {
        "--batch-sizes": batch_sizes,
        "--step-time": step_time,
        "--step-time-file": step_time_file,
        "--run-limit": run_limit,
    }
    if command is None and (given := [name for name, value in of_program.items() if value is not None]):
        raise InputError(f"{given[0]} goes with --command")
    if command is not None and (workload, check, reference, algorithm) != (None,) * 4:
        raise InputError("--command goes without WORKLOAD, --check, --reference and --algorithm")
    if command is not None and batch_sizes is None:
        raise InputError("--batch-sizes", value="not given", allowed="those to profile the program at, such as 8,16,32")
    if strategy != "guided" and (strict or efficiency is not None):
        raise InputError(f"{'--strict' if strict else '--efficiency'} goes with --strategy guided")
    if check is not None:
        if (cap, strategy, resume, algorithm) != ("none", None, False, None):
            raise InputError("--check goes without --cap, --strategy, --resume and --algorithm")
        _check(check, spec, workload, output, seed=seed, as_json=as_json)
        return

    from wattune import stages
    from wattune.records import ProfileTable

    trained = ALGORITHM if algorithm is None else algorithm
    limit = cap_limit(cap)
    to = claim(output, "profile.json", as_json=as_json, resume=resume)
    partial = to.beside("-partial.json")
    record = to.load(ProfileTable)
    if command is not None:
        if record is None:
            with resumable(context.obj, partial), shown() as progress:
                record = stages.profile_command(
                    spec,
                    command,
                    batch_sizes=sizes(batch_sizes or ""),
                    step_time=step_time,
                    step_time_file=step_time_file,
                    cap_w=limit.cap_w,
                    cap_side=limit.side,
                    strategy=strategy,
                    steps=steps,
                    run_limit_s=run_limit,
                    partial=partial,
                    progress=progress,
                )
        elif record.program is None or record.program.command != command:
            raise RecordError("the finished profile is of another program", value=str(output or "profile.json"))
    elif record is not None:
        stages.check_algorithm("profile", record.algorithm, trained)
        stages.check_profile(record, spec, workload)
    else:
        with resumable(context.obj, partial), shown() as progress:
            record = stages.profile(
                spec,
                workload,
                algorithm=trained,
                cap_w=limit.cap_w,
                cap_side=limit.side,
                strategy=strategy,
                strict=strict,
                efficiency=efficiency,
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
    if known.program is not None:
        raise InputError("--check of a program's profile", value=str(path), hint="profile the program again")
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
    how = "" if record.algorithm == "backprop" else f" with {record.algorithm}"
    parts = [f"{record.workload}{how} on {record.device}: {len(record.measured)} points  [{origin}]"]
    rows = []
    for size in record.batch_sizes:
        cells = sorted((c for c in record.measured if c.batch_size == size), key=lambda c: c.point.setting or 0.0)
        for cell in dict.fromkeys((cells[0], cells[-1])):
            rows.append(
                (words.batch(cell.point), words.setting(cell.point), words.seconds(cell.step_s),
                 words.watts(cell.power_mean_w), words.watts(cell.power_peak_w), words.memory(cell.memory_bytes))
            )  # fmt: skip
    parts.append(table(("batch", "setting", "step", "mean power", "peak power", "memory"), rows))
    if unfit := sorted({cell.batch_size for cell in record.cells if cell.out_of_memory}):
        parts.append(f"does not fit in memory: batch size {', '.join(map(str, unfit))}")
    if not record.measured:
        parts.append("No point could be measured to its end: every probe was stopped above the cap.")
    if record.guided is not None:
        parts.append(_ending(record.guided))
    parts += record.notes
    if record.cost:
        parts.append(words.profiling_cost(record.cost, None, None))
    return "\n\n".join(parts)


def _ending(guided: Guidance) -> str:
    from wattune.reporting import words

    if guided.pick is None:
        return f"Nothing to pick: {guided.stopped_because}."
    risk = "" if guided.p_above_cap is None else f" (above the cap with a probability of {guided.p_above_cap:.1%})"
    return f"Fastest: {words.point(guided.pick)}{risk}.\nStopped: {guided.stopped_because}."
