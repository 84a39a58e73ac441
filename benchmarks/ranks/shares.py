"""What unequal local batches would add to the division of the watts, on mixed boards: by exact figures alone.

The boards and caps of ``division`` whose every second board is twice as fast at the same power. The samples of each
step are divided in given shares, the global batch stays, and the watts are divided as well as they can be
(``benchmarks.groups.best``): no session could do better. A board's passes have the arithmetic and the bytes of its own
samples; the optimizer and the launches of kernels are the same for all.

``ranks_shares_sessions.json`` has what sessions reached with 2 ranks while ``wattune.capped`` had the option, in
simulated time. It was taken out again (``docs/several-devices.md``), so that this benchmark cannot repeat them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.groups import best, members_of
from benchmarks.ranks.division import BATCH, BOARD, Case, boards_of, cap_of, cases, step_work_of
from benchmarks.timing import keep
from wattune.records import PhaseWork, StepWork

FAST = (1.0, 2.0, 4.0, 8.0)
"""Samples of a fast board over those of a slow one; its speed is twice that of a slow one."""


def main() -> None:
    """Compute, and store the results."""
    work, rows = step_work_of(), []
    for case in cases():
        if case.kind == "mixed":
            cap_w = cap_of(case, work)
            paces = {f"{fast:g}": pace(case, cap_w, work, fast) for fast in FAST}
            rows.append({**case._asdict(), "cap_w": cap_w, "steps_per_s": paces})
    keep("ranks_shares", {"board": BOARD, "batch_size": BATCH, "summary": summary(rows), "cases": rows})


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Number of ranks -> shares of a fast board -> the lowest, mean and highest gain over equal batches."""
    figures: dict[str, dict[str, list[float]]] = {}
    for ranks in dict.fromkeys(row["ranks"] for row in rows):
        own = [row["steps_per_s"] for row in rows if row["ranks"] == ranks]
        figures[str(ranks)] = {}
        for fast in own[0]:
            gains = [paces[fast] / paces["1"] for paces in own]
            figures[str(ranks)][fast] = [min(gains), statistics.fmean(gains), max(gains)]
    return figures


def pace(case: Case, cap_w: float, work: StepWork, fast: float) -> float:
    """Steps per second of the best division of the watts; ``work``: of a step with ``BATCH`` samples."""
    shares = [fast if rank % 2 else 1.0 for rank in range(case.ranks)]
    mean = statistics.fmean(shares)
    pairs = zip(boards_of(case), shares, strict=True)
    most = best([members_of([board], of_share(work, share / mean))[0] for board, share in pairs], cap_w, spins=False)
    assert most is not None
    return most


def of_share(work: StepWork, factor: float) -> StepWork:
    """This step with ``factor`` times the samples."""
    samples, micro = (max(1, round(size * factor)) for size in (work.samples, work.micro_batch_size))
    phases = tuple(_scaled(phase, factor) if phase.phase in ("forward", "backward") else phase for phase in work.phases)
    return work.model_copy(update={"samples": samples, "micro_batch_size": micro, "phases": phases})


def _scaled(phase: PhaseWork, factor: float) -> PhaseWork:
    operations = (
        own.model_copy(update={"flops": own.flops * factor, "bytes": own.bytes * factor}) for own in phase.operations
    )
    return phase.model_copy(update={"operations": tuple(operations)})
