"""Command ``wattune estimate``: samples to target per batch size, from training a proxy or from recorded runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from wattune import units
from wattune.cli.options import ALGORITHM, File, Json, configured, named_values
from wattune.cli.output import claim, resumable, shown
from wattune.errors import InputError, RecordError
from wattune.job.config import RunConfig

if TYPE_CHECKING:
    from wattune.records import SampleEfficiency


@configured(
    *("workload", "algorithm", "seeds", "profile", "cap", "processes", "columns", "resume", "target"),
    *("command", "batch_sizes", "metric", "samples", "lower_is_better", "rate", "data", "proxy_data"),
    advanced=("cap_window",),
    read=RunConfig.of_file,
)
def estimate(
    context: typer.Context,
    config: RunConfig,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Runs to make. pooled: as few as tell the best batch size; full: --seeds runs of every batch size "
            "(default: full with --seeds, else pooled).",
        ),
    ] = None,
    step_times: Annotated[
        str | None,
        typer.Option(
            "--step-times",
            metavar="LIST",
            help="Seconds per step on the device by batch size, such as 8=0.021,16=0.034 (default: unknown).",
        ),
    ] = None,
    from_runs: Annotated[
        Path | None,
        typer.Option(
            "--from-runs", metavar="FILE", help="Use the runs in this table, .csv or .json, and train nothing."
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="COLUMN=VALUE",
            help="With --from-runs: workload to use, if the table has several; repeatable.",
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            "--runs",
            metavar="N",
            min=2,
            help="Make at most N runs, 2 or more (default: as few as tell the best batch size).",
        ),
    ] = None,
    model_ratio: Annotated[
        float | None,
        typer.Option(
            "--model-ratio",
            metavar="R",
            help="With --from-runs: parameters of the model to train, divided by those of the model of the runs "
            "(default: 1).",
        ),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor",
            "--on",
            metavar="WHERE",
            help="Train on this machine's GPU: cuda; or on a Ray cluster: ray or ray:ADDRESS (default: CPU).",
        ),
    ] = None,
    output: File = None,
    as_json: Json = False,
) -> None:
    """Estimate on a proxy how many samples each batch size needs.

    \b
    Example:  wattune estimate workload.toml -o efficiency.json
              wattune estimate workload.toml --algorithm forward-gradient -o forward-gradient.json
              wattune estimate workload.toml --executor ray:10.0.0.1:6379 -o efficiency.json
              wattune estimate --batch-sizes 8,16,32 --target 0.9 --metric "accuracy ([0-9.]+)"
                --command "python3 train.py --batch-size {batch_size}"
              wattune estimate --from-runs runs.csv --step-times 8=0.021,16=0.034,32=0.062
    """
    from wattune.job import steps
    from wattune.job.coercion import as_trainable
    from wattune.records import SampleEfficiency

    profile, processes, target = config.profile, config.processes, config.target
    workload = config.program or config.workload
    asked_cap, algorithm_name = config.constant_cap, config.algorithm or ALGORITHM
    if asked_cap.limit_w is not None and profile is None:
        raise InputError("--cap needs --profile")
    if step_times is not None and profile is not None:
        raise InputError("--step-times and --profile cannot be combined")
    if processes is not None and executor not in (None, "cuda"):
        raise InputError("--processes and --executor cannot be combined", hint="the cluster schedules the runs")
    seconds = profile if step_times is None else _step_seconds(step_times)
    if from_runs is None:
        if misplaced := _given(
            {"--target": None if config.command else target, "--where": where, "--model-ratio": model_ratio}
        ):
            raise InputError(f"{misplaced} needs --from-runs")
    elif misplaced := _given(
        {
            "WORKLOAD": config.workload,
            "--command": config.command,
            "--algorithm": config.algorithm,
            "--strategy": strategy,
            "--seeds": config.seeds,
            "--runs": runs,
            "--processes": processes,
            "--executor": executor,
            "--resume": config.resume or None,
        }
    ):
        raise InputError(f"{misplaced} cannot be combined with --from-runs")

    times = None if seconds is None else steps.step_times(seconds, cap_w=asked_cap)
    to = claim(output, "efficiency.json", as_json=as_json, resume=config.resume)
    record = to.load(SampleEfficiency)
    if record is not None and record.workload != (name := as_trainable(workload).name):
        raise RecordError(
            "the finished record is of another workload",
            value=record.workload,
            allowed=name,
            hint="give another -o FILE",
        )
    if record is not None and from_runs is None:
        from wattune.job.checks import check_algorithm

        check_algorithm("efficiency record", record.algorithm, algorithm_name)
    if record is None and from_runs is not None:
        values = named_values("--where", where or (), "column=value")
        ratio = 1.0 if model_ratio is None else model_ratio
        if not 1e-6 < ratio < 1e6:
            raise InputError(
                "--model-ratio",
                value=ratio,
                allowed="a number above 0, such as 8 for a model of 8 times as many parameters",
            )
        from wattune.sample_efficiency.recorded_runs import chosen_runs, curve_from_runs, read_runs

        selection = chosen_runs(read_runs(from_runs, config.layout), values, target)
        record = curve_from_runs(selection, log_step_times=times, ratio=ratio)
    elif record is None:
        folder = to.beside("-curves")
        with resumable(context.obj, folder), shown() as progress:
            record = steps.estimate(
                workload,
                algorithm=algorithm_name,
                strategy=cast(Literal["full", "pooled"] | None, strategy),
                seeds=config.seeds,
                runs=runs,
                step_times=times,
                folder=folder,
                processes=processes,
                executor=executor,
                progress=progress,
            )
    to.deliver(record, _text(record))


FAR_RATIO = 2.0
"""Ratio of the number of parameters of two models above which a warning is given."""


def _given(options: dict[str, object]) -> str | None:
    """The first option that was given."""
    return next((name for name, value in options.items() if value is not None), None)


def _text(record: SampleEfficiency) -> str:
    from wattune.reporting import phrases
    from wattune.reporting.text import table

    rows = []
    for point in record.points:
        band = "-" if point.low is None or point.high is None else f"{point.low:.2f} to {point.high:.2f}"
        missed = f"{point.censored} of {point.runs} runs did not reach the target" if point.censored else ""
        relative = "-" if point.relative_samples is None else f"{point.relative_samples:.2f}"
        runs = [] if record.strategy != "pooled" else [str(point.runs)]
        best = [] if record.p_best is None else [f"{record.p_best.get(point.batch_size, 0.0):.0%}"]
        rows.append((str(point.batch_size), phrases.count(point.samples), relative, band, *runs, *best, missed))
    more = [*(["runs"] if record.strategy == "pooled" else []), *(["best with"] if record.p_best is not None else [])]
    head = ("batch", "samples to target", f"relative to {record.reference_batch_size}", "90 % band", *more)
    how = "" if record.algorithm == "backprop" else f", with {record.algorithm}"
    text = f"{record.workload}: samples to the proxy's target{how}\n\n{table(head, rows)}"
    if record.stopped_because is not None:
        text += f"\n{record.runs_used} runs; {record.stopped_because}"
    if record.misfit:
        text += "\nno single curve fits the runs: their means are used; make more runs for a better estimate"
    for size in sorted({run.batch_size for run in record.observations if run.left_out}):
        text += (
            f"\nthe runs at batch size {size} form two clumps far apart, by another recipe or a seed that diverged: "
            "the smaller clump is left out"
        )
    ratio = record.parameter_ratio
    if not 1 / FAR_RATIO <= ratio <= FAR_RATIO:
        liked = "larger" if ratio > 1 else "smaller"
        text += (
            f"\nthe model to train has {ratio:.3g} times the parameters of the model of the runs: it probably likes "
            f"{liked} batch sizes than these; take a proxy of its size"
        )
    if record.best is not None:
        text += f"\nbest on the device: batch size {record.best}, expected to lose {record.expected_regret:.1%}"
        text += f"\n{_beside_own(record)}"
    return text


def _beside_own(record: SampleEfficiency) -> str:
    from wattune.reporting.plan_text import NO_OWN

    own = record.own_batch_size
    if own is None:
        return NO_OWN
    if record.p_faster is None or record.expected_gain is None:
        return (
            f"batch size {own} is yours; no other one is expected to be faster"
            if own == record.best
            else (
                f"your batch size {own} cannot be compared with it: no run reached the target, or it has no step time"
            )
        )
    if record.best == own:
        return (
            f"yours is kept: no other batch size is faster with a probability of 90 % ({record.p_faster:.0%} at most)"
        )
    return (
        f"faster than yours, {own}, with a probability of {record.p_faster:.0%}; it is expected to save "
        f"{record.expected_gain:.0%} of the time"
    )


def _step_seconds(text: str) -> dict[int, float]:
    """Batch size -> seconds of a step, from "8=0.021,16=0.034". Raises: InputError."""
    allowed = "batch size=seconds, such as 8=0.021,16=0.034"
    seconds_by_size: dict[int, float] = {}
    for size, seconds in named_values("--step-times", text.split(","), allowed).items():
        value = units.read(seconds, "s")
        if not re.fullmatch("[1-9][0-9]{0,8}", size) or not value:
            raise InputError("--step-times", value=f"{size}={seconds}", allowed=allowed)
        seconds_by_size[int(size)] = value
    return seconds_by_size
