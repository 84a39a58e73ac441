"""Division of one budget over the devices of a data-parallel job, against equal limits and the best division.

Each case is a job of real processes that train a small network with plain DistributedDataParallel over gloo, in a
session. The boards are simulated: each step takes them the time of its operations, all begin it together, and who is
done waits at idle power. Compared are steps per second at the end of the training, where each session had settled:

- one budget: ``over="node"``, the cap on the sum;
- equal limits: ``over="device"``, cap / N for each board; the slowest sets the pace;
- the best division: of all combinations of the boards' settings and of the micro-batches, the fastest under the cap by
  the boards' exact figures (``benchmarks.groups``). Nobody could know it.

"spread": boards of one kind whose power at equal clock differs by 8 % (standard deviation). "mixed": every second board
is twice as fast at the same power. Their clocks are as close to each other as those of graphics cards.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.support.ranks import Job, values
from tests.support.sessions import convolutional, loss_of, pictures
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import wattune
from benchmarks.groups import best, counted, equal_shares, faster, members_of, thirstier
from benchmarks.timing import keep
from wattune.cap import Over
from wattune.devices import SimulatedDevice, builtin_board
from wattune.devices.group import device_group
from wattune.devices.simulator.board_file import SimulatedBoard
from wattune.records import StepWork

BOARD = "jetson-tx2-nx"
SPREAD = 0.08
SPEED = 1 / 40
"""Speed of the boards' GPU and memory relative to the real ones, so that a step of a small network takes as long as
that of a large one, and seconds of training are minutes on the boards."""

FINE = 4
"""Number of clocks for each of the boards' own."""

BATCH = 64
STEPS = 900
SETTLED = 300
"""Steps at the end whose pace counts."""

WITHIN_S = 3600.0
"""Timeout of a job: eight processes share the cores of this machine."""

SIZES = (2, 4, 8)
CAPS = (0.3, 0.6, 0.9)
"""Caps as shares of the range in which the cap decides: from the sum of the lowest settings to the sum at which the
best division reaches the fastest pace of all."""


class Case(NamedTuple):
    """A job: boards that differ as ``kind`` says, and a cap as in ``CAPS``."""

    kind: str
    ranks: int
    share: float


def cases() -> list[Case]:
    """All cases, the small ones first."""
    return [Case(kind, ranks, share) for ranks in SIZES for kind in ("spread", "mixed") for share in CAPS]


def boards_of(case: Case) -> list[SimulatedDevice]:
    """The boards of a case."""
    draw = random.Random(f"{case.kind}/{case.ranks}")
    devices = []
    for rank in range(case.ranks):
        board = thirstier(builtin_board(BOARD), draw.gauss(1.0, SPREAD))
        board = finer(faster(board, SPEED).model_copy(update={"host": board.host}))
        devices.append(SimulatedDevice(faster(board) if case.kind == "mixed" and rank % 2 else board, seed=rank))
    return devices


def finer(board: SimulatedBoard) -> SimulatedBoard:
    """This board with ``FINE`` clocks for each one that it has, as graphics cards have them."""
    gpu = board.gpu
    at = np.linspace(0, len(gpu.clocks_mhz) - 1, FINE * (len(gpu.clocks_mhz) - 1) + 1)
    tables = {
        name: tuple(np.interp(at, range(len(gpu.clocks_mhz)), getattr(gpu, name)).tolist())
        for name in ("clocks_mhz", "voltage_v")
    }
    return board.model_copy(update={"gpu": gpu.model_copy(update=tables)})


def cap_of(case: Case, work: StepWork) -> float:
    """The case's cap in watts. ``work``: that of a step, without what the ranks do to average gradients."""
    members = members_of(boards_of(case), work)
    each = [sorted(member.steps.values(), key=lambda step: step.power_mean_w) for member in members]
    pace_s = max(min(step.step_s for step in steps) for steps in each)
    lowest_w = sum(steps[0].power_mean_w for steps in each)
    highest_w = sum(next(step.power_mean_w for step in steps if step.step_s <= pace_s) for steps in each)
    return lowest_w + case.share * (highest_w - lowest_w)


def run(rank: int, case: Case, cap_w: float, over: Over) -> dict[str, Any] | None:
    """One rank's training. Returns, on rank 0: the settled pace and the time above the cap."""
    model = DistributedDataParallel(convolutional())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = pictures(64 * BATCH)
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, seed=1))
    pools = list(range(case.ranks)) if over == "device" else None
    group = device_group(boards_of(case), pools=pools) if rank == 0 else None
    times_s, probing = [], 0
    with wattune.capped(
        device=group or "auto",
        cap_w=cap_w,
        over=over,
        model=model,
        optimizer=optimizer,
        loader=loader,
        keep_recipe=True,
        micro_batch_size=BATCH,
    ) as session:
        while session.run.steps < STEPS:
            for batch in session.batches():
                session.backward(loss_of(model, batch))
                if group is not None:
                    if session.run.steps >= STEPS - SETTLED:
                        times_s.append((session.run.steps, group.now_s()))
                    if session.run.controller.probing:
                        probing = session.run.steps
        settings = [str(member.current()) for member in group.members] if group is not None else []
    if group is None:
        return None
    (before, begin_s), (after, end_s) = times_s[0], times_s[-1]
    exact = session.record.exact
    assert exact is not None
    return {
        "steps_per_s": (after - before) / (end_s - begin_s),
        "above_cap_s": exact.above_cap_s,
        "time_s": exact.time_s,
        "settled_after": probing,
        "point": str(session.point),
        "settings": settings,
        # With what averaging the gradients takes; those of fewer samples are trials of a size.
        "works": [work for work in session.run.counter._works.values() if work.samples == BATCH],
    }


def measure(case: Case, work: StepWork) -> dict[str, Any]:
    """Run a case. ``work``: that of a step, without what the ranks do to average gradients."""
    cap_w = cap_of(case, work)
    ours = values(Job(run, case.ranks, case, cap_w, "node").ended(WITHIN_S))[0]
    shapes = [members_of(boards_of(case), counted) for counted in ours.pop("works")]
    best_per_s = max(rate for members in shapes if (rate := best(members, cap_w, spins=False)) is not None)
    equal = None
    if equal_shares(members_of(boards_of(case), work), cap_w) is not None:
        equal = values(Job(run, case.ranks, case, cap_w / case.ranks, "device").ended(WITHIN_S))[0]
        equal.pop("works")
    result = {
        **case._asdict(),
        "cap_w": cap_w,
        "ours": ours,
        "equal": equal,
        "best_per_s": best_per_s,
        "over_equal": None if equal is None else ours["steps_per_s"] / equal["steps_per_s"],
        "of_best": ours["steps_per_s"] / best_per_s,
    }
    print(result)
    return result


def main() -> None:
    """Run all cases, and store the results."""
    work = step_work_of()
    results = [measure(case, work) for case in cases()]
    figures = {"board": BOARD, "spread": SPREAD, "batch_size": BATCH}
    keep("ranks_division", {**figures, "summary": summary(results), "cases": results})


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Means, medians and bounds over the cases of each kind."""
    figures = {}
    for kind in ("spread", "mixed"):
        own = [result for result in results if result["kind"] == kind]
        over = [result["over_equal"] for result in own if result["over_equal"] is not None]
        of_best = [result["of_best"] for result in own]
        figures[kind] = {
            "cases": len(own),
            "over_equal_median": statistics.median(over),
            "over_equal_lowest": min(over),
            "over_equal_highest": max(over),
            "of_best_mean": statistics.fmean(of_best),
            "of_best_lowest": min(of_best),
            "of_best_highest": max(of_best),
            "above_cap_s": sum(result["ours"]["above_cap_s"] for result in own),
            "time_s": sum(result["ours"]["time_s"] for result in own),
        }
    return figures


def step_work_of() -> StepWork:
    """The work of a step on one rank."""
    return counted(convolutional(), *next(iter(DataLoader(pictures(BATCH), batch_size=BATCH))))
