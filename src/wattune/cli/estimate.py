"""``wattune estimate``: how many samples each batch size needs, from training a proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from wattune.cli.options import File, Json, Processes, Resume, Seeds, WorkloadFile
from wattune.cli.output import claim, resumable
from wattune.cli.progress import shown

if TYPE_CHECKING:
    from wattune.records import EfficiencyCurve


def estimate(
    context: typer.Context,
    workload: WorkloadFile = None,
    seeds: Seeds = 3,
    processes: Processes = None,
    output: File = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """See on a proxy how many samples each batch needs.

    \b
    Example:  wattune estimate workload.toml --seeds 3 -o efficiency.json
    """
    from wattune import stages
    from wattune.errors import RecordError
    from wattune.records import EfficiencyCurve

    to = claim(output, "efficiency.json", as_json=as_json, resume=resume)
    record = to.load(EfficiencyCurve)
    if record is not None and record.workload != (name := stages.as_workload(workload).name):
        raise RecordError(
            "the finished record is of another workload",
            value=record.workload,
            allowed=name,
            hint="give another -o FILE",
        )
    if record is None:
        folder = to.beside("-curves")
        with resumable(context.obj, folder), shown() as progress:
            record = stages.estimate(workload, seeds=seeds, folder=folder, processes=processes, progress=progress)
    to.deliver(record, _text(record))


def _text(record: EfficiencyCurve) -> str:
    from wattune.reporting import words
    from wattune.reporting.text import table

    rows = []
    for point in record.points:
        band = "-" if point.low is None or point.high is None else f"{point.low:.2f} to {point.high:.2f}"
        missed = f"{point.censored} of {point.runs} runs did not reach the target" if point.censored else ""
        relative = "-" if point.relative_samples is None else f"{point.relative_samples:.2f}"
        rows.append((str(point.batch_size), words.count(point.samples), relative, band, missed))
    head = ("batch", "samples needed", f"relative to {record.reference_batch_size}", "90 % band")
    return f"{record.workload}: samples needed to the proxy's target\n\n{table(head, rows)}"
