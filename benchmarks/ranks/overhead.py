"""CPU time that a session adds to a step of a data-parallel job of two ranks, once it has found its point.

Each rank trains two copies of a tiny network in turns of many steps, in an order that both ranks know: one by the plain
DistributedDataParallel loop, one in an open session. The difference of the process's CPU time per step, in pairs of
neighbouring turns, is the session's own, with the messages between the ranks and the thread that reads the sensor.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.support.ranks import Job, values
from tests.support.sessions import perceptron
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import wattune
from benchmarks.metering import FileDevice
from benchmarks.timing import keep
from wattune.devices.group import device_group
from wattune.online import Session

RANKS = 2
STEPS = 400
PAIRS = 60
BATCH = 16


class Whole:
    """A batch that cannot be split, so that both loops run the same passes."""

    def __init__(self, samples: list[tuple[Tensor, Tensor]]):
        self.x, self.y = (torch.stack(column) for column in zip(*samples, strict=True))

    def __len__(self) -> int:
        return len(self.y)


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any]) -> Iterator[None]:
    """The plain loop, a step at a time."""
    while True:
        for batch in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(batch.x), batch.y).backward()
            optimizer.step()
            yield


def capped(model: nn.Module, session: Session) -> Iterator[None]:
    """The same loop in a session."""
    while True:
        for batch in session.batches():
            session.backward(functional.cross_entropy(model(batch.data.x), batch.data.y))
            yield


def turn_us(loop: Iterator[None]) -> float:
    """CPU time of a step in microseconds, from a turn."""
    begun_s = time.process_time()
    for _ in range(STEPS):
        next(loop)
    return 1e6 * (time.process_time() - begun_s) / STEPS


def run(rank: int, meter: Path) -> list[tuple[float, float]]:
    """Pairs of a rank: CPU time of a plain step, and of one in the session, in microseconds."""
    models = [DistributedDataParallel(perceptron()) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    data = TensorDataset(torch.randn(8192, 8), torch.randint(0, 2, (8192,)))
    order = {"batch_size": BATCH, "sampler": DistributedSampler(data), "collate_fn": Whole}
    loaders = [DataLoader(data, **order) for _ in range(2)]
    device = device_group([FileDevice(meter) for _ in range(RANKS)]) if rank == 0 else "auto"
    draw, pairs = random.Random(7), []
    with wattune.capped(
        device=device,
        cap_w=100.0,
        over="node",
        model=models[1],
        optimizer=optimizers[1],
        loader=loaders[1],
        keep_recipe=True,
        micro_batch_size=BATCH,
    ) as session:
        loops = plain(models[0], optimizers[0], loaders[0]), capped(models[1], session)
        for _ in range(10):  # until the session has settled
            turn_us(loops[1])
        for _ in range(PAIRS):
            first = draw.randrange(2)
            times_us = {kind: turn_us(loops[kind]) for kind in (first, 1 - first)}
            pairs.append((times_us[0], times_us[1]))
    return pairs


def main() -> None:
    """Measure, and store the results."""
    by_rank = {}
    with TemporaryDirectory() as folder:
        meter = Path(folder) / "power"
        meter.write_text("5000")
        ranks = values(Job(run, RANKS, meter).ended(within_s=1200))
    for rank, pairs in enumerate(ranks):
        own_us = [session_us - plain_us for plain_us, session_us in pairs]
        low, middle, high = statistics.quantiles(own_us, n=4)
        plain_us = statistics.median(pair[0] for pair in pairs)
        by_rank[str(rank)] = {"median_us": middle, "quartiles_us": [low, high], "plain_step_us": plain_us}
    keep("ranks_overhead", {"ranks": RANKS, "pairs": PAIRS, "steps_per_turn": STEPS, "by_rank": by_rank})
