"""A fleet that sends scalars instead of arrays: bytes per round, rounds and samples to target, beside FedAvg.

`.venv-flower/bin/python -m benchmarks fleet_scalars` (`make test-flower` makes the environment). Scikit-learn's digits
are dealt out evenly to the clients; the strategy, its messages and the training are real, in one process. The learning
rate of each row is chosen on one part of the data with seed 0, and judged on another with three seeds. Bytes are those
of the messages' contents as Flower serialises them.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_to_proto
from tests.support.flower_fleet import InProcessGrid
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.asyncfgd.tasks import digits, perceptron
from benchmarks.timing import keep
from wattune.devices import open_device
from wattune.errors import InputError
from wattune.integrations.flower import FleetStrategy, PowerCapMod, ScalarTraining
from wattune.integrations.flower_client import OFFER
from wattune.integrations.flower_scalars import SCALARS
from wattune.profiling import profile
from wattune.records import ProfileTable
from wattune.workloads import Data, OptimizerRule, Workload

CLIENTS, STEPS, BATCH = 5, 16, 32
"""Clients, local steps of each in a round, and samples of a step."""

SEEDS = (0, 1, 2)
TARGETS = (0.8, 0.9)
DEVICE = "sim:jetson-nano"


Batch = tuple[Tensor, Tensor]
Network = Callable[[], nn.Module]


class Row(NamedTuple):
    """A way to train and reply; ``directions`` 0: backprop, and the parameters. ``rounds``: the most of them."""

    directions: int
    rates: tuple[float, ...]
    rounds: int

    @property
    def name(self) -> str:
        """Name in the table."""
        if not self.directions:
            return "FedAvg: backprop, parameters"
        return f"scalars, {self.directions} direction{'s' if self.directions > 1 else ''} a step"


def linear() -> nn.Module:
    """A linear model of the pixels: 650 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


MODELS: dict[str, Network] = {"linear": linear, "perceptron": perceptron}

ROWS = {
    "linear": (
        Row(0, (0.03, 0.1, 0.3), 60),
        Row(1, (0.01, 0.03, 0.1), 100),
        Row(8, (0.03, 0.1, 0.3), 40),
    ),
    "perceptron": (
        Row(0, (0.03, 0.1, 0.3), 60),
        Row(1, (1e-3, 2e-3, 3e-3), 400),
    ),
}

CHOSEN_AFTER = 0.25
"""Share of a row's rounds after which the rate with the best accuracy so far is chosen."""


class MeasuredGrid(InProcessGrid):
    """A grid that adds up the bytes of the messages with arrays or scalars, to and from the clients."""

    def __init__(self, apps: dict[int, ClientApp]):
        super().__init__(apps)
        self.down_bytes = self.up_bytes = 0

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Hand the messages to the clients."""
        asked = list(messages)
        replies = list(super().send_and_receive(asked, timeout=timeout))
        self.down_bytes += sum(_bytes(one) for one in asked if not _is_offer(one))
        self.up_bytes += sum(_bytes(one) for one in replies if one.has_content() and not _is_offer(one))
        self.sent.clear()
        return replies


def _is_offer(message: Message) -> bool:
    return OFFER in message.content


def _bytes(message: Message) -> int:
    return len(recorddict_to_proto(message.content).SerializeToString())


class _ReachedError(Exception):
    """Raised to end a run: the highest target is reached."""


def client(training: ScalarTraining, batches: Iterator[Batch], mod: PowerCapMod, *, scalars: bool) -> ClientApp:
    """A client that replies scalars, or trains by backprop and replies its parameters."""
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if scalars:
            reply: dict[str, Any] = {SCALARS: training.train(message, batches).record}
        else:
            model = training.network()
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            optimizer = training.optimizer(model)
            for _ in range(message.content["config"]["local-steps"]):
                x, y = next(batches)
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            reply = {"arrays": ArrayRecord(model.state_dict())}
        return Message(RecordDict({**reply, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    return app


def _endless(images: Tensor, labels: Tensor, seed: int) -> Iterator[Batch]:
    draw = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(labels), (BATCH,), generator=draw)
        yield images[chosen], labels[chosen]


def run(
    model: Callable[[], nn.Module], row: Row, rate: float, rounds: int, seed: int, *, judge: bool
) -> dict[str, Any]:
    """The accuracy after each round, until the highest target or the last round.

    Also, for each client and round: the bytes of its messages, and CPU milliseconds of all parts of the program.
    """
    parts = digits(Path())
    x, y = parts.train
    owners = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)) % CLIENTS)
    optimizer = partial(_sgd, rate=rate)
    training = ScalarTraining(model, optimizer, functional.cross_entropy, directions=max(1, row.directions))
    mod = PowerCapMod(None, profile=_profile(model), device=DEVICE)
    apps = {}
    for node in range(CLIENTS):
        batches = _endless(x[owners == node], y[owners == node], 1000 * seed + node)
        apps[node + 1] = client(training, batches, mod, scalars=bool(row.directions))
    grid, curve = MeasuredGrid(apps), list[float]()
    tests, labels = parts.judge if judge else parts.choose

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        network = model()
        network.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            accuracy = float((network(tests).argmax(1) == labels).float().mean())
        if server_round:
            curve.append(round(accuracy, 4))
            if accuracy >= max(TARGETS):
                raise _ReachedError
        return MetricRecord({"accuracy": accuracy})

    strategy = FleetStrategy(
        local_steps=STEPS,
        batch_size=BATCH,
        split="even",
        scalars=training if row.directions else None,
        fraction_evaluate=0.0,
        min_train_nodes=CLIENTS,
        min_available_nodes=CLIENTS,
    )
    torch.manual_seed(seed)
    arrays, start = ArrayRecord(model().state_dict()), time.process_time()
    with suppress(_ReachedError):
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, evaluate_fn=evaluate)
    taken = len(curve) * CLIENTS
    return {
        "curve": curve,
        "up_bytes": grid.up_bytes / taken,
        "down_bytes": grid.down_bytes / taken,
        "cpu_ms": 1000 * (time.process_time() - start) / taken,
    }


def measured(name: str, row: Row) -> dict[str, Any]:
    """The chosen rate, and the runs with it."""
    model = MODELS[name]
    few = max(1, int(CHOSEN_AFTER * row.rounds))
    chosen_from = {rate: _rank(run(model, row, rate, few, 0, judge=False)["curve"]) for rate in row.rates}
    rate = max(row.rates, key=lambda one: chosen_from[one])
    runs = [run(model, row, rate, row.rounds, seed, judge=True) for seed in SEEDS]
    reached = {str(target): [_rounds(one["curve"], target) for one in runs] for target in TARGETS}
    figures = {key: statistics.median(one[key] for one in runs) for key in ("up_bytes", "down_bytes", "cpu_ms")}
    result = {
        "way": row.name,
        "rate": rate,
        "chosen_from": {f"{one:g}": rank for one, rank in chosen_from.items()},
        "most_rounds": row.rounds,
        "rounds": reached,
        "best": [max(one["curve"]) for one in runs],
        **{key: round(value, 1) for key, value in figures.items()},
    }
    print(name, result, flush=True)
    return result


def _rank(curve: list[float]) -> tuple[float, int]:
    """The best accuracy, and how early it came."""
    return max(curve), -curve.index(max(curve))


def _rounds(curve: list[float], target: float) -> int | None:
    return next((number for number, accuracy in enumerate(curve, start=1) if accuracy >= target), None)


def main(arguments: list[str]) -> None:
    """Measure, and store the results."""
    if arguments:
        raise InputError("arguments of fleet_scalars", value=" ".join(arguments), allowed="none")
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    models = {
        name: {
            "parameters": sum(p.numel() for p in MODELS[name]().parameters()),
            "ways": [measured(name, row) for row in rows],
        }
        for name, rows in ROWS.items()
    }
    figures = {"clients": CLIENTS, "local_steps": STEPS, "batch_size": BATCH, "targets": TARGETS, "models": models}
    keep("fleet_scalars", figures)


def _sgd(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), rate)


@cache
def _profile(model: Network) -> ProfileTable:
    """The table of a simulated board, for the clients' points; its seconds are not used."""
    workload = Workload(
        "digits",
        model=model,
        data=Data(digits(Path()).train, digits(Path()).choose),
        batch_sizes=(BATCH,),
        budget_samples=BATCH,
        optimizer=OptimizerRule("sgd", learning_rate=0.1, reference_batch_size=BATCH, scaling="none"),
    )
    return profile(open_device(DEVICE), workload, strategy="full")
