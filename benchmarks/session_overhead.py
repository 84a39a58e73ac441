"""Overhead of a session on a real loop once it has found its point.

The same small model is trained by two loops that take turns of several steps in random order: a plain loop, and the
same loop in an open session at the whole batch. The CPU time of the thread is compared, since other processes disturb
it less than wall time: medians of the pairs, with a confidence band of the median. With a model of
one small layer, the difference is the session's time per step, for any model, with the least noise. The CPU time of the
thread that reads the sensor is counted apart, as its share of the time. ``least_step_s``: the step time of which the
upper end of the band and this thread take 1 % together.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import keep
from wattune.devices.base import Sensor
from wattune.devices.real_time import UncontrolledDevice
from wattune.loop.capped import capped

BATCH_SIZE, TOKENS, CLASSES = 32, 16, 5
PASS_STEPS = 400
AIM = 0.01
STEPS, PAIRS = 5, 400
"""Steps of a turn, and pairs of turns: short and many, since the machine is shared."""


class FileDevice(UncontrolledDevice):
    """A device whose sensor is a file with milliwatts.

    It records when it was read, and the CPU time of the thread that read it.
    """

    name, mode, kind = "file", "-", "measured"
    sensor = Sensor(rail="file")
    memory_bytes = None
    data_types = frozenset({"fp32"})

    def __init__(self, path: Path):
        self._path = path
        self.read_at: list[tuple[float, float]] = []
        super().__init__()

    def _read_w(self) -> float:
        self.read_at.append((time.perf_counter(), time.thread_time()))
        return int(self._path.read_text()) / 1000


class Classifier(nn.Module):
    """Classifier of embedded tokens, 4 wide: ids (B, T) to scores (B, 5)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(64, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.head(self.embedding(ids)).mean(1)
        return scores


def plain_loop() -> Generator[None, None, None]:
    """Train for ever without a session, and yield after each step."""
    model, optimizer, loader = training()
    while True:
        for rows, classes in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(rows), classes).backward()
            optimizer.step()
            yield


def session_loop(device: FileDevice, sessions: list[Any]) -> Generator[None, None, None]:
    """Train for ever in a session, which is added to ``sessions``, and yield after each step."""
    model, optimizer, loader = training()
    with capped(device=device, cap_w=10, model=model, optimizer=optimizer, loader=loader, keep_recipe=True) as session:
        sessions.append(session)
        while True:
            for part in session.batches():
                rows, classes = part.data
                session.backward(functional.cross_entropy(model(rows), classes))
                if part.last:
                    yield


def training() -> tuple[Classifier, torch.optim.Optimizer, DataLoader[tuple[Tensor, ...]]]:
    """Model, optimizer and loader of a loop."""
    model, draw = Classifier(), torch.Generator().manual_seed(0)
    samples = PASS_STEPS * BATCH_SIZE
    ids = torch.randint(0, 64, (samples, TOKENS), generator=draw)
    labels = torch.randint(0, CLASSES, (samples,), generator=draw)
    loader = DataLoader(TensorDataset(ids, labels), batch_size=BATCH_SIZE, shuffle=True)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), loader


def cpu_s(loop: Generator[None, None, None]) -> float:
    """CPU seconds a step of the loop's next turn."""
    begun_s = time.thread_time()
    for _ in range(STEPS):
        next(loop)
    return (time.thread_time() - begun_s) / STEPS


def measure() -> dict[str, Any]:
    """Measure a session's CPU time a step."""
    sessions: list[Any] = []
    times: list[tuple[float, float]] = []
    shuffle = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in_power0_input"
        path.write_text("4321\n")
        device = FileDevice(path)
        with closing(plain_loop()) as plain, closing(session_loop(device, sessions)) as in_session:
            cpu_s(plain)
            next(in_session)
            run = sessions[0].run
            run.can_split = False  # so that both run the same passes
            while run.controller.probing:
                next(in_session)
            begin = len(device.read_at) - 1
            while len(times) < PAIRS:
                first, second = (plain, in_session) if shuffle.random() < 0.5 else (in_session, plain)
                step_s = {first: cpu_s(first), second: cpu_s(second)}
                times.append((step_s[in_session], step_s[plain]))
        (wall_from, cpu_from), (wall_to, cpu_to) = device.read_at[begin], device.read_at[-2]
    thread = (cpu_to - cpu_from) / (wall_to - wall_from)
    ranked, away = sorted(session_s - plain_s for session_s, plain_s in times), 0.98 * math.sqrt(PAIRS)
    band_s = [ranked[math.floor(PAIRS / 2 - away)], ranked[math.ceil(PAIRS / 2 + away)]]
    return {
        "extra_s": statistics.median(ranked),
        "band_s": band_s,
        "sampling_thread": thread,
        "pairs": PAIRS,
        "least_step_s": band_s[1] / (AIM - thread),
    }


def main() -> None:
    """Measure, and store the results."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # random data leads to denormal numbers, which would slow one of the two
    keep("session_overhead", {"aim": AIM, **measure()})
