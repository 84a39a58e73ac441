"""What ``wattune.capped`` costs a real loop once it has found its point; aim under 1 %.

A model trains on batches of 32 in passes that alternate, in random order, between the plain loop and one in an open
session; the plain loop cuts its batches as the session does. Compared is the processor time of the thread that trains,
which other processes disturb less than they do the wall's: medians of the pairs, with quartiles that say how sure they
are. The sampling thread's share of a processor is added.

Once with the example's ResNet-8. Its step takes so long that the session disappears in what other processes do to it,
so once more with a model of one small layer: there the difference of the two loops is what a session takes for a step,
whatever the model, and over the ResNet's step it is the figure that counts.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.metering import FileDevice
from wattune.session import capped
from wattune.workloads.models import resnet8

PAIRS = 30
BATCH_SIZE = 32


class TimedDevice(FileDevice):
    """Notes how much processor time the thread has taken that reads it."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.read_at: list[tuple[float, float]] = []

    def power_w(self) -> float:
        """The file's milliwatts as watts."""
        self.read_at.append((time.perf_counter(), time.thread_time()))
        return super().power_w()


def overhead(pairs: int = PAIRS) -> dict[str, Any]:
    """Relative overhead of a session, what it takes for a step, and how long a step is."""
    torch.set_num_threads(1)
    small = _measured(lambda: resnet8(classes=5, channels=1), (1, 32, 32), steps=20, pairs=pairs)
    tiny = _measured(lambda: nn.Linear(4, 5), (4,), steps=500, pairs=pairs)
    return {
        "overhead": tiny["extra_s"] / small["step_s"] + small["sampling_thread"],
        "extra_s": tiny["extra_s"],
        "extra_quartiles_s": tiny["extra_quartiles_s"],
        "step_s": small["step_s"],
        "sampling_thread": small["sampling_thread"],
        "paired": small["paired"],
        "paired_quartiles": small["paired_quartiles"],
        "pairs": pairs,
    }


def _measured(make: Callable[[], nn.Module], shape: tuple[int, ...], *, steps: int, pairs: int) -> dict[str, Any]:
    plain, mine = make(), make()
    plain_adam, adam = (torch.optim.Adam(model.parameters(), lr=1e-3) for model in (plain, mine))
    shuffle = random.Random(0)
    loader = _loader(shape, steps)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in_power0_input"
        path.write_text("4321\n")
        device = TimedDevice(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that statistics of micro-batches differ, which is no matter
            session = capped(device=device, cap_w=10, model=mine, optimizer=adam, loader=loader, keep_recipe=True)

        def in_session() -> float:
            begin = time.thread_time()
            for batch in session.batches():
                session.backward(functional.cross_entropy(mine(batch.x), batch.y))
            return (time.thread_time() - begin) / steps

        def as_usual() -> float:
            size = session.row.micro_batch_size
            begin = time.thread_time()
            for x, y in loader:
                plain_adam.zero_grad()
                if size == BATCH_SIZE:
                    functional.cross_entropy(plain(x), y).backward()
                else:
                    for part, target in zip(x.split(size), y.split(size), strict=True):
                        (functional.cross_entropy(plain(part), target) * (size / BATCH_SIZE)).backward()
                plain_adam.step()
            return (time.thread_time() - begin) / steps

        found: list[tuple[float, float]] = []
        with session:
            while session.governor.prober.probing:
                in_session()
            as_usual()
            begun = len(device.read_at) - 1
            while len(found) < pairs:
                changes = len(session.governor.changes)
                first, second = (in_session, as_usual) if shuffle.random() < 0.5 else (as_usual, in_session)
                taken = {first: first(), second: second()}
                if changes == len(session.governor.changes):  # both cut their batches alike
                    found.append((taken[in_session], taken[as_usual]))
        (wall_from, cpu_from), (wall_to, cpu_to) = device.read_at[begun], device.read_at[-2]
    low, middle, high = statistics.quantiles([mine_s / plain_s for mine_s, plain_s in found], n=4)
    low_s, middle_s, high_s = statistics.quantiles([mine_s - plain_s for mine_s, plain_s in found], n=4)
    return {
        "paired": middle - 1,
        "paired_quartiles": [low - 1, high - 1],
        "extra_s": middle_s,
        "extra_quartiles_s": [low_s, high_s],
        "step_s": statistics.median(plain_s for _, plain_s in found),
        "sampling_thread": (cpu_to - cpu_from) / (wall_to - wall_from),
    }


def _loader(shape: tuple[int, ...], steps: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(steps * BATCH_SIZE, *shape, generator=generator)
    y = torch.randint(0, 5, (steps * BATCH_SIZE,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=BATCH_SIZE, shuffle=True)


if __name__ == "__main__":
    print(overhead())
