"""Small models, data and devices for the tests of sessions, and the plain loops that they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.support.real_time_device import TwoClocks
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from wattune.devices import Device, SimulatedDevice, builtin_board
from wattune.devices.virtual_time import Piece, VirtualDevice
from wattune.loop.capped import capped
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.records import StepWork
from wattune.search.observation import Stretch

SAMPLES = 640


class Numbered(Dataset[tuple[Tensor, Tensor]]):
    """Points in the plane with a class; the first feature is the sample's number, so that each can be told apart."""

    def __init__(self, samples: int = SAMPLES, features: int = 8):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(samples, features, generator=generator)
        self.y = (self.x.sum(1) > 0).long()
        self.number = torch.arange(samples)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class Named(Numbered):
    """The same as dictionaries, with the number and a text of each sample."""

    def __getitem__(self, index: int) -> dict[str, Any]:  # type: ignore[override]
        return {"x": self.x[index], "y": self.y[index], "number": self.number[index], "name": f"sample {index}"}


def perceptron(features: int = 8, width: int = 16, *, norm: bool = False) -> nn.Sequential:
    """A small network, the same one each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        middle = [nn.BatchNorm1d(width)] if norm else []
        return nn.Sequential(nn.Linear(features, width), *middle, nn.Tanh(), nn.Linear(width, 2))


def convolutional() -> nn.Sequential:
    """A model with some work in it."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2048, 10),
        )


def pictures(samples: int = 2048) -> TensorDataset:
    """What ``convolutional`` takes."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 3, 32, 32, generator=generator)
    return TensorDataset(x, torch.randint(0, 10, (samples,), generator=generator))


def regression(samples: int = 2048) -> TensorDataset:
    """Least squares, whose largest stable rate is known: the larger batch scales the rate to beyond it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 8, generator=generator)
    y = x @ torch.randn(8, 1, generator=generator) + 0.1 * torch.randn(samples, 1, generator=generator)
    return TensorDataset(x, y)


def loss_over(model: nn.Module, data: TensorDataset) -> float:
    """Mean squared error over all of the data."""
    with torch.no_grad():
        return float(functional.mse_loss(model(data.tensors[0]), data.tensors[1]))


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    """The usual line of a loop."""
    return functional.cross_entropy(model(batch.x), batch.y)


def session_of(model: nn.Module | None = None, **options: Any) -> Any:
    """A session of a perceptron under 4.5 W on a simulated board, in steps of 32 samples; ``options``: what differs."""
    model = perceptron() if model is None else model
    if "optimizer" not in options:
        options["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    usual = {"loader": DataLoader(Numbered(), batch_size=32), "device": board(), "cap_w": 4.5}
    return capped(model=model, **{**usual, **options})


def train(
    session: Any,
    model: nn.Module,
    passes: int = 1,
    *,
    loss: Callable[..., Tensor] = loss_of,
    on_batch: Callable[[Any], object] = id,
) -> int:
    """Train the model of an open session for so many passes. Returns: the number of samples trained on."""
    samples = 0
    for _ in range(passes):
        for batch in session.batches():
            session.backward(loss(model, batch))
            if not batch.is_check:
                samples += batch.samples
                on_batch(session)
    return samples


def trained(
    model: nn.Module | None = None,
    *,
    passes: int = 1,
    loss: Callable[..., Tensor] = loss_of,
    on_batch: Callable[[Any], object] = id,
    on_pass: Callable[[Any], object] = id,
    **options: Any,
) -> Any:
    """A session, as ``session_of`` makes it, that has trained its model up to so many passes."""
    model = perceptron() if model is None else model
    with session_of(model, **options) as session:
        for _ in range(session.passes, passes):
            train(session, model, loss=loss, on_batch=on_batch)
            on_pass(session)
    return session


def plain(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    passes: int,
    *,
    after_step: Callable[[], None] = lambda: None,
    after_pass: Callable[[], None] = lambda: None,
) -> list[float]:
    """The loop that everybody writes; its losses."""
    losses = []
    for _ in range(passes):
        for x, y in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            after_step()
            losses.append(float(loss.detach()))
        after_pass()
    return losses


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of two models' parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def board(*, noise_w: float = 0.03, **changes: Any) -> SimulatedDevice:
    """A Jetson Nano with a sensor that is fast enough for short tests."""
    nano = builtin_board("jetson-nano")
    sensor = nano.sensor.model_copy(update={"period_s": 0.02, "window_s": 0.02, "noise_w": noise_w})
    return SimulatedDevice(nano.model_copy(update={"sensor": sensor, **changes}))


class OwnTimeDevice(TwoClocks, VirtualDevice):
    """A device that executes steps, on a time that steps and waiting alone let pass: 10 ms a step."""

    step_s = 0.01

    def power_w(self) -> float:
        return self.clock_mhz / 50

    def _check(self, work: StepWork) -> None:
        pass

    def _pieces(self, work: StepWork) -> tuple[int, Callable[[int], Piece]]:
        return 1, lambda _: Piece(self.step_s, self.power_w())

    def _at_rest(self) -> Piece:
        return Piece(1.0, self.power_w())


class Late(Numbered):
    """Each sample takes so many seconds of the device's time to come."""

    def __init__(self, device: Device, seconds: float):
        super().__init__()
        self.device, self.seconds = device, seconds

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.device.wait(self.seconds)
        return super().__getitem__(index)


class Tour:
    """In place of the search: every row once at the lowest setting, and then the fastest of what keeps the cap."""

    reason = "the tour is over"

    def __init__(self, rows: Any, settings: Any, *, cap_w: float | None, start: BatchShape, **_: Any):
        self.places = [OperatingPoint(row, min(settings)) for row in sorted(rows, key=lambda row: row != start)]
        self.cap_w = cap_w
        self.seen: dict[OperatingPoint, tuple[float, float]] = {}
        self.closed: set[OperatingPoint] = set()
        self.known: list[dict[int, tuple[float, float]]] = []

    def relative(self, known: dict[int, tuple[float, float]]) -> None:
        self.known.append(dict(known))

    def next(self) -> OperatingPoint | None:
        return next((p for p in self._open(self.places) if p not in self.seen and p not in self.closed), None)

    def _open(self, places: Any) -> list[OperatingPoint]:
        sizes = self.known[-1] if self.known else None
        return [p for p in places if sizes is None or p.batch_size in sizes]

    def tell(self, point: OperatingPoint, stretch: Stretch) -> None:
        self.seen[point] = stretch.step_s, stretch.power_peak_w

    def above(self, point: OperatingPoint, power_w: float) -> None:
        self.closed.add(point)
        self.seen.pop(point, None)

    def best(self) -> OperatingPoint | None:
        return min(self._open(self.seen), key=lambda p: self.seen[p][0] / p.batch_size, default=None)

    def own_recipe(self) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {
            "seen": [[list(p.shape), dict(p.knobs), *figures] for p, figures in self.seen.items()],
            "closed": [[list(p.shape), dict(p.knobs)] for p in self.closed],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = {
            OperatingPoint(BatchShape(*row), Knobs(at)): (step_s, peak_w) for row, at, step_s, peak_w in state["seen"]
        }
        self.closed = {OperatingPoint(BatchShape(*row), Knobs(at)) for row, at in state["closed"]}
