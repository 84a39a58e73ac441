"""``wattune estimate``: how many samples each batch size needs, from training a proxy or from recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from wattune.cli.options import ALGORITHM, Algorithm, File, Json, Processes, Resume, WorkloadFile, cap_limit
from wattune.cli.output import claim, resumable
from wattune.cli.pairs import step_seconds, values
from wattune.cli.progress import shown
from wattune.errors import InputError, RecordError

if TYPE_CHECKING:
    from wattune.records import EfficiencyCurve


def estimate(
    context: typer.Context,
    workload: WorkloadFile = None,
    algorithm: Algorithm = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="WHICH",
            help="pooled: as few trainings as tell the best batch size; full: every batch size, --seeds times each. "
            "By default pooled, with --seeds full.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", metavar="N", min=1, max=1000, help="Trainings per batch size; full.")
    ] = None,
    step_times: Annotated[
        str | None,
        typer.Option(
            "--step-times",
            metavar="LIST",
            help="Seconds of a step on the device by batch size, such as 8=0.021,16=0.034: which is best?",
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="Take the step times from this profile, and --cap.")
    ] = None,
    cap: Annotated[
        str, typer.Option("--cap", metavar="WATTS", help="Power limit such as 4.5W, for --profile.")
    ] = "none",
    from_runs: Annotated[
        Path | None,
        typer.Option("--from-runs", metavar="CSV", help="Train nothing: take the runs from this table."),
    ] = None,
    target: Annotated[
        float | None, typer.Option("--target", metavar="T", help="Of a table with several targets: this one.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", metavar="COLUMN=VALUE", help="Of a table with several workloads: this one. Repeatable."
        ),
    ] = None,
    allocate: Annotated[
        int | None,
        typer.Option("--allocate", metavar="N", min=3, help="Of a table use N runs at most, chosen as if just made."),
    ] = None,
    processes: Processes = None,
    executor: Annotated[
        str | None,
        typer.Option("--executor", metavar="WHERE", help="ray or ray:ADDRESS: train over a Ray cluster."),
    ] = None,
    output: File = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """See on a proxy how many samples each batch needs.

    \b
    Example:  wattune estimate workload.toml -o efficiency.json
              wattune estimate workload.toml --algorithm forward-gradient -o forward-gradient.json
              wattune estimate workload.toml --executor ray:10.0.0.1:6379 -o efficiency.json
              wattune estimate --from-runs runs.csv --step-times 8=0.021,16=0.034,32=0.062
    """
    from wattune import stages
    from wattune.records import EfficiencyCurve

    trained = ALGORITHM if algorithm is None else algorithm
    limit = cap_limit(cap)
    if limit.cap_w is not None and profile is None:
        raise InputError("--cap without a profile", value=cap, allowed="--profile FILE with it")
    if step_times is not None and profile is not None:
        raise InputError("--step-times with --profile", allowed="one of them")
    if processes is not None and executor is not None:
        raise InputError("--processes with --executor", allowed="one of them", hint="the cluster says how many at once")
    seconds = profile if step_times is None else step_seconds(step_times)
    if from_runs is None:
        _refuse({"--target": target, "--where": where, "--allocate": allocate}, "only of a table, with --from-runs CSV")
    else:
        _refuse(
            {
                "WORKLOAD": workload,
                "--algorithm": algorithm,
                "--strategy": strategy,
                "--seeds": seeds,
                "--processes": processes,
                "--executor": executor,
                "--resume": resume or None,
            },
            "only where something is trained, without --from-runs",
        )

    times = None if seconds is None else stages.step_times(seconds, cap_w=limit.cap_w, cap_side=limit.side)
    to = claim(output, "efficiency.json", as_json=as_json, resume=resume)
    record = to.load(EfficiencyCurve)
    if record is not None and record.workload != (name := stages.as_workload(workload).name):
        raise RecordError(
            "the finished record is of another workload",
            value=record.workload,
            allowed=name,
            hint="give another -o FILE",
        )
    if record is not None and from_runs is None:
        stages.check_algorithm("efficiency record", record.algorithm, trained)
    if record is None and from_runs is not None:
        chosen = values("--where", where or [])
        record = stages.estimate_recorded(from_runs, where=chosen, target=target, allocate=allocate, step_times=times)
    elif record is None:
        folder = to.beside("-curves")
        with resumable(context.obj, folder), shown() as progress:
            record = stages.estimate(
                workload,
                algorithm=trained,
                strategy=cast(Literal["full", "pooled"] | None, strategy),
                seeds=seeds,
                step_times=times,
                folder=folder,
                processes=processes,
                executor=executor,
                progress=progress,
            )
    to.deliver(record, _text(record))


def _refuse(given: dict[str, object], allowed: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is of no use here", allowed=allowed)


def _text(record: EfficiencyCurve) -> str:
    from wattune.reporting import words
    from wattune.reporting.text import table

    rows = []
    for point in record.points:
        band = "-" if point.low is None or point.high is None else f"{point.low:.2f} to {point.high:.2f}"
        missed = f"{point.censored} of {point.runs} runs did not reach the target" if point.censored else ""
        relative = "-" if point.relative_samples is None else f"{point.relative_samples:.2f}"
        runs = [] if record.strategy != "pooled" else [str(point.runs)]
        best = [] if record.p_best is None else [f"{record.p_best.get(point.batch_size, 0.0):.0%}"]
        rows.append((str(point.batch_size), words.count(point.samples), relative, band, *runs, *best, missed))
    more = [*(["runs"] if record.strategy == "pooled" else []), *(["best with"] if record.p_best is not None else [])]
    head = ("batch", "samples needed", f"relative to {record.reference_batch_size}", "90 % band", *more)
    how = "" if record.algorithm == "backprop" else f", with {record.algorithm}"
    text = f"{record.workload}: samples needed to the proxy's target{how}\n\n{table(head, rows)}"
    if record.stopped_because is not None:
        text += f"\n{record.runs_used} runs; {record.stopped_because}"
    if record.misfit:
        text += "\nthe runs follow no common curve: their means count, and more runs would tell more"
    if record.best is not None:
        text += f"\nbest on the device: batch size {record.best}, expected to lose {record.expected_regret:.1%}"
    return text
