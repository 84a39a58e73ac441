"""Loops that search while they train, over the best setting: `python -m benchmarks loops FOLDER`.

Three kinds of loops on boards in virtual time: an own loop (`wattune.capped`, recipe kept) on a simulated Jetson TX2
and on the recorded one (`FOLDER` has BoFL's recordings, see `benchmarks.bofl`), and Lightning's and Transformers'
trainers on simulated boards. The best setting is the fastest of those whose mean power stays under the cap, by the
simulated board's exact figures or the recording's smoothed truth. Nobody could know it. Of an own loop the regret is
that of the best setting that was measured by a moment; of a trainer the time of the whole training run counts, with
what the search takes. Models, boards, caps and lengths were fixed before the first result, but for ``SLOWER``.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import lightning
import torch
from tests.support import tiny_models
from tests.support.sessions import Numbered, convolutional, loss_of, perceptron, pictures
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks import bofl
from benchmarks.groups import counted, faster
from benchmarks.jetsons import TUNE, load
from benchmarks.timing import folder_of, keep, measured_at
from wattune.devices import Device, SimulatedDevice, builtin_board
from wattune.devices.replay import Noise, ReplayDevice
from wattune.integrations.lightning import PowerCapCallback
from wattune.integrations.transformers import attach
from wattune.loop.capped import capped
from wattune.point import Knobs
from wattune.records import SessionRecord, StepWork

CAPS_W = {
    "Lightning": {"jetson-nano": (4.2, 4.5, 6.0), "jetson-tx2": (4.0, 5.0, 8.0)},
    "Transformers": {"jetson-nano": (4.6,)},
}
"""Trainer -> board (of one clock, and of three) -> caps."""

EPOCHS, STEPS = 30, 2000
"""Length of Lightning's training runs, and of those of Transformers."""

MOMENTS_S = (60, 300)
SHARES = tuple(step / 6 for step in range(1, 6))
"""Caps of own loops, evenly in their logarithm between the least and the highest power of all settings."""

SLOWER = 1 / 30
"""Speed of the simulated TX2 of own loops, so that a small network's step takes as long as a usual one's: 0.04 s at the
highest clocks. At a hundredth, tried first, a step took longer than the window of the cap, which then holds for the
parts of a step alone."""


class Figures(NamedTuple):
    """Seconds and mean watts of a step."""

    step_s: float
    power_w: float


Truth = dict[Knobs, Figures]


class OwnLoop(NamedTuple):
    """A loop of the user's own, and the true figures of its steps."""

    name: str
    device: Callable[[int], Device]
    truth: Truth
    model: Callable[[], nn.Module]
    data: Dataset[Any]
    batch_size: int


@cache
def own_loops(folder: Path) -> list[OwnLoop]:
    """Two networks on the simulated TX2, and two recordings that no constant was chosen by."""
    board, loops = faster(builtin_board("jetson-tx2"), SLOWER), []
    networks: list[tuple[str, Callable[[], nn.Module], Dataset[Any]]] = [
        ("convolutions", convolutional, pictures()),
        ("perceptron", lambda: perceptron(64, 512), Numbered(2048, 64)),
    ]
    for name, model, data in networks:
        x, y = next(iter(DataLoader(data, batch_size=32)))
        exact = SimulatedDevice(board).exact_steps(counted(model(), x, y))
        truth = {knobs: Figures(step.step_s, step.power_mean_w) for knobs, step in exact.items()}
        loops.append(OwnLoop(name, lambda seed: SimulatedDevice(board, seed=seed), truth, model, data, 32))
    for file in bofl.WORKLOADS:
        if file not in TUNE:
            own = load(folder, file)
            truth = {point.knobs: Figures(*figures) for point, figures in own.truth.items()}
            table = own.table()
            loops.append(
                OwnLoop(
                    f"recorded {own.name}",
                    lambda seed, table=table: ReplayDevice(table, Noise(seed=seed)),  # type: ignore[misc]
                    truth,
                    perceptron,
                    Numbered(2048),
                    bofl.WORKLOADS[file][1],
                )
            )
    return loops


def own_case(job: tuple[str, int, float]) -> dict[str, Any]:
    """One own loop under one cap."""
    folder, number, share = job
    torch.set_num_threads(1)
    return with_capped(own_loops(Path(folder))[number], share, number)


def best_s(truth: Truth, cap_w: float) -> float:
    """The shortest step under a cap."""
    return min(step_s for step_s, power_w in truth.values() if power_w <= cap_w)


def with_capped(loop: OwnLoop, share: float, seed: int) -> dict[str, Any]:
    """Train an own loop until the last moment; its regret at each."""
    device, model = loop.device(seed), loop.model()
    watts = [power_w for _, power_w in loop.truth.values()]
    cap_w, at = min(watts) * (max(watts) / min(watts)) ** share, dict[int, Knobs]()
    loader = DataLoader(loop.data, batch_size=loop.batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with capped(
        device=device, cap_w=cap_w, model=model, optimizer=optimizer, loader=loader, keep_recipe=True
    ) as session:
        begun_s = device.now_s()
        while len(at) < len(MOMENTS_S):
            for batch in session.batches():
                session.backward(loss_of(model, batch))
                if device.now_s() - begun_s >= MOMENTS_S[len(at)]:
                    best = session.run.controller.search.best()
                    at[MOMENTS_S[len(at)]] = (session.point if best is None else best).knobs
                    if len(at) == len(MOMENTS_S):
                        break
    record = session.record
    assert record is not None
    regret = {str(moment): loop.truth[knobs].step_s / best_s(loop.truth, cap_w) - 1 for moment, knobs in at.items()}
    above_s = record.above_cap_s if record.exact is None else record.exact.above_cap_s
    print(loop.name, cap_w, regret, above_s, flush=True)
    return {"loop": loop.name, "cap_w": cap_w, "regret": regret, "above_cap_s": above_s}


# ------------------------------------------------------------------------------------------------------------- trainers


class Observed(SimulatedDevice):
    """A board that counts the steps of each work."""

    def __init__(self, name: str):
        super().__init__(builtin_board(name))
        self.counts = Counter[int]()
        self.works: dict[int, StepWork] = {}

    def step(self, work: StepWork) -> AbstractContextManager[None]:
        """Surround one step."""
        self.counts[id(work)] += 1
        self.works[id(work)] = work
        return super().step(work)

    def best_s(self, cap_w: float) -> float:
        """Seconds of all steps so far at the best of the settings that stay under the cap in each of them."""
        counts = Counter[str]()
        for one, work in self.works.items():
            counts[work.model_dump_json()] += self.counts[one]
        tables = [(count, self.exact_steps(StepWork.model_validate_json(text))) for text, count in counts.items()]
        return min(
            sum(count * table[knobs].step_s for count, table in tables)
            for knobs in self.combinations()
            if all(table[knobs].power_mean_w <= cap_w for _, table in tables)
        )


class Classifier(lightning.LightningModule):
    """Two classes of pictures (B, 3, 32, 32)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(7200, 2))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """The loss of a batch."""
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters())


def with_lightning(device: Observed, cap_w: float) -> SessionRecord | None:
    """The program of docs/lightning.md, whose steps are all alike."""
    images = torch.randn(2048, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(images, (images.mean((1, 2, 3)) > 0).long())
    cap = PowerCapCallback(cap_w, device=device)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=[cap],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=32, shuffle=True))
    return cap.record


def with_transformers(device: Observed, cap_w: float) -> SessionRecord | None:
    """A tiny Llama, whose rows have 6 to 25 tokens."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "max_steps": STEPS}
        data = tiny_models.texts(800, 6, 25)
        trainer = tiny_models.trainer(folder, tiny_models.model(), data, logging_steps=STEPS, **options)
        with attach(trainer, device=device, cap_w=cap_w) as capped_trainer:
            trainer.train()
    return capped_trainer.record


TRAINERS: dict[str, Callable[[Observed, float], SessionRecord | None]] = {
    "Lightning": with_lightning,
    "Transformers": with_transformers,
}


def with_trainer(job: tuple[str, str, float]) -> dict[str, Any]:
    """Train with a library; its time over that at the best setting."""
    library, board, cap_w = job
    device = Observed(board)
    record = TRAINERS[library](device, cap_w)
    assert record is not None
    assert record.exact is not None
    over = record.exact.time_s / device.best_s(cap_w)
    figures = {"time_s": record.exact.time_s, "over_best": over, "above_cap_s": record.exact.above_cap_s}
    print(library, board, cap_w, figures, flush=True)
    return {"library": library, "board": board, "cap_w": cap_w, **figures}


def main(arguments: Sequence[str]) -> None:
    """Run all loops, and store the figures. Raises: InputError without the recordings."""
    folder = folder_of("loops", arguments, "the folder of BoFL's recordings")
    measured = measured_at()
    jobs = [(str(folder), number, share) for number in range(4) for share in SHARES]
    runs = [
        (library, board, cap_w) for library, boards in CAPS_W.items() for board in boards for cap_w in boards[board]
    ]
    with ProcessPoolExecutor(2) as pool:
        own, trainers = list(pool.map(own_case, jobs)), list(pool.map(with_trainer, runs))
    regret = {str(moment): fmean(row["regret"][str(moment)] for row in own) for moment in MOMENTS_S}
    over = {name: fmean(row["over_best"] for row in trainers if row["library"] == name) for name in TRAINERS}
    keep("loops", {"measured_at": measured, "regret": regret, "over_best": over, "own": own, "trainers": trainers})
