"""The samples that each batch size needs, estimated on the workload's proxy."""

from __future__ import annotations

from pathlib import Path

from wattune.efficiency.relation import curve
from wattune.efficiency.sweeping import Progress, sweep
from wattune.errors import InputError
from wattune.records import EfficiencyCurve
from wattune.workloads import Workload


def estimate(
    workload: Workload,
    *,
    seeds: int = 3,
    folder: Path | None = None,
    algorithm: str = "backprop",
    processes: int | None = None,
    progress: Progress | None = None,
) -> EfficiencyCurve:
    """Train the proxy at each of the workload's batch sizes with ``seeds`` seeds, and relate what they needed.

    Warnings about the proxy come through ``progress``. See ``sweep`` for processes, folder and resuming.

    Raises: WorkloadError without a proxy, with one of another task type, or where no run reached the proxy's
    target; InputError; RecordError; OutputError; Interrupted.
    """
    if seeds < 1:
        raise InputError("seeds", value=seeds, allowed="1 or more")
    warnings = workload.check_proxy()
    proxy = workload.proxy
    assert proxy is not None  # held by check_proxy
    for warning in warnings:
        if progress is not None:
            progress(0, len(workload.batch_sizes) * seeds, f"warning: {warning}")
    runs = sweep(
        proxy,
        batch_sizes=workload.batch_sizes,
        seeds=range(seeds),
        folder=folder,
        algorithm=algorithm,
        processes=processes,
        progress=progress,
    )
    return curve(runs, workload=workload.name)
