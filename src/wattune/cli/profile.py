"""Command ``wattune profile``: step time and power of a workload or a program on a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattune.cli.options import ALGORITHM, File, Json, configured
from wattune.cli.output import claim, resumable, shown
from wattune.errors import InputError, RecordError
from wattune.goal import TIME
from wattune.job.config import RunConfig

if TYPE_CHECKING:
    from wattune.records import Guidance, ProfileTable


@configured(
    *("workload", "device", "algorithm", "cap", "goal", "strategy", "reference", "seed", "sysfs_root"),
    *("columns", "resume", "command", "batch_sizes"),
    advanced=("cap_window", "knobs", "meter"),
    required=("device",),
)
def profile(
    context: typer.Context,
    config: RunConfig,
    strict: Annotated[
        bool, typer.Option("--strict", help="With guided: avoid every point that might be above the cap.")
    ] = False,
    efficiency: Annotated[
        Path | None,
        typer.Option(
            "--efficiency", metavar="FILE", help="With guided: efficiency record with the samples per batch size."
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            metavar="N",
            min=1,
            max=100_000,
            help="Steps of a probe, at least; two seconds of them are enough.",
        ),
    ] = 5,
    step_time: Annotated[
        str | None,
        typer.Option(
            "--step-time",
            metavar="PATTERN",
            help="With --command: regular expression that finds the seconds of a step in the program's output; one "
            "group, named ms for milliseconds (default: time runs of two lengths).",
        ),
    ] = None,
    run_limit: Annotated[
        float | None,
        typer.Option(
            "--run-limit", metavar="SECONDS", min=1.0, help="With --command: kill a run after this time (default: 900)."
        ),
    ] = None,
    output: File = None,
    as_json: Json = False,
) -> None:
    """Measure step time and power of a workload, or of any program, per batch size and clock.

    A probe stops once its mean power over a second is above the cap (--set cap_window=peak: at the first reading).

    \b
    Example:  wattune profile --device sim:jetson-nano -o profile.json
              wattune profile --device sim:jetson-nano --algorithm backprop:checkpoint=auto -o checkpointed.json
              wattune profile --device replay:table.csv --cap 10W --strategy guided
              wattune profile --device jetson --cap 10W --batch-sizes 8,16,32
                --command "python3 train.py --batch-size {batch_size} --steps {steps}"
    """
    command, batch_sizes = config.command, config.batch_sizes
    spec, workload, goal, resume = config.device, config.workload, config.goal, config.resume
    algorithm, strategy, reference = config.algorithm, config.strategy, config.reference
    asked_cap = config.constant_cap
    of_program = {"--step-time": step_time, "--run-limit": run_limit}
    if command is None and (misplaced := [name for name, value in of_program.items() if value is not None]):
        raise InputError(f"{misplaced[0]} needs --command")
    if command is not None and batch_sizes is None:
        raise InputError("--command needs --batch-sizes, such as 8,16,32")
    if strategy != "guided" and (strict or efficiency is not None):
        raise InputError(f"{'--strict' if strict else '--efficiency'} needs --strategy guided")
    if command is not None and goal is not None:
        raise InputError("--goal cannot be combined with --command", hint="use --strategy full, and plan for any goal")

    from wattune.job import steps as job_steps
    from wattune.records import ProfileTable

    algorithm_name = ALGORITHM if algorithm is None else algorithm
    destination = claim(output, "profile.json", as_json=as_json, resume=resume)
    record = destination.load(ProfileTable)
    partial = destination.beside("-partial.json")
    if command is not None:
        if record is None:
            with resumable(context.obj, partial), shown() as progress:
                record = job_steps.profile_command(
                    spec,
                    command,
                    batch_sizes=batch_sizes or (),
                    step_time=step_time,
                    cap_w=asked_cap,
                    strategy=strategy,
                    steps=steps,
                    run_limit_s=run_limit,
                    partial=partial,
                    progress=progress,
                )
        elif record.program is None or record.program.command != command:
            raise RecordError("the finished profile is of another program", value=str(output or "profile.json"))
    elif record is not None:
        _check_finished(record, config, algorithm_name)
    else:
        with resumable(context.obj, partial), shown() as progress:
            record = job_steps.profile(
                spec,
                workload,
                algorithm=algorithm_name,
                cap_w=asked_cap,
                goal=TIME if goal is None else goal,
                strategy=strategy,
                strict=strict,
                efficiency=efficiency,
                reference=reference,
                steps=steps,
                seed=config.seed,
                partial=partial,
                progress=progress,
            )
    destination.deliver(record, _text(record))
    if partial is not None:
        partial.unlink(missing_ok=True)


def _check_finished(record: ProfileTable, config: RunConfig, algorithm: str) -> None:
    """Refuse a finished profile of something else. Raises: RecordError, InputError."""
    from wattune.job.checks import check_algorithm, check_profile
    from wattune.job.coercion import opened, profiled_workload

    check_algorithm("profile", record.algorithm, algorithm)
    with opened(config.device) as board:
        check_profile(record, board, profiled_workload(config.workload, board))


def _text(record: ProfileTable) -> str:
    from wattune.reporting import phrases, run_text
    from wattune.reporting.text import table

    origin = phrases.origin(profile=record.provenance.kind)
    how = "" if record.algorithm == "backprop" else f" with {record.algorithm}"
    parts = [f"{record.workload}{how} on {record.device}: {len(record.measured)} points  [{origin}]"]
    rows = []
    for size in record.batch_sizes:
        cells = sorted((c for c in record.measured if c.batch_size == size), key=lambda c: c.knobs.order)
        for cell in dict.fromkeys((cells[0], cells[-1])):
            rows.append(
                (phrases.batch(cell.point), phrases.setting(cell.point), phrases.seconds(cell.step_s),
                 phrases.watts(cell.power_mean_w), phrases.watts(cell.power_peak_w), phrases.memory(cell.memory_bytes))
            )  # fmt: skip
    parts.append(table(("batch", "setting", "step", "mean power", "peak power", "memory"), rows))
    if unfit := sorted({cell.batch_size for cell in record.cells if cell.out_of_memory}):
        parts.append(f"does not fit in memory: batch size {', '.join(map(str, unfit))}")
    if not record.measured:
        parts.append("No point could be measured: every probe was stopped above the cap.")
    if record.guided is not None:
        parts.append(_ending(record.guided))
    parts += record.notes
    if record.cost:
        parts.append(run_text.profiling_cost(record.cost, None, None))
    return "\n\n".join(parts)


def _ending(guided: Guidance) -> str:
    from wattune.reporting import phrases, plan_text

    if guided.pick is None:
        return f"Nothing to pick: {guided.stopped_because}."
    risk = "" if guided.p_above_cap is None else f" (above the cap with a probability of {guided.p_above_cap:.1%})"
    figures = ""
    if guided.pick.step_s is not None:
        mean, peak = phrases.watts(guided.pick.power_mean_w), phrases.watts(guided.pick.power_peak_w)
        figures = f", {phrases.seconds(guided.pick.step_s)} a step at {mean}, {peak} at most"
    best = "Fastest" if guided.goal.is_time else f"Least {plan_text.LEAST[guided.goal.aim]}"
    return f"{best}: {guided.pick.point}{risk}{figures}.\nStopped: {guided.stopped_because}."
