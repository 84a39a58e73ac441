"""Federated training in Flower's own simulation: 12 clients on four kinds of simulated boards, each under a cap.

`python -m benchmarks federated IMAGES` in the environment of `make test-flower` with `flwr[simulation]`: images of a
folder (train.npz and test.npz, MNIST's digits), a convolutional network, real training. Seconds and joules are those of
the boards, which replay the exact tables of the network's steps. Labels are split by a Dirichlet distribution, so that
clients have different digits and different numbers of them. Caps are drawn between the lowest and the highest power of
each board.

Time and energy until the test accuracy is ``TARGET``: wattune's strategy, FedAvg with a time-out, and FedProx with the
same steps for each client. Both of these train at the fastest point under each cap.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.groups import counted, exact_cells
from benchmarks.timing import folder_of, keep, measured_at
from wattune.devices.simulator.board_file import builtin_board
from wattune.devices.simulator.simulated import SimulatedDevice
from wattune.integrations.flower import JOULES, SECONDS, FleetStrategy, PowerCapMod
from wattune.planning.fleet import ClientRound
from wattune.point import BatchShape
from wattune.records import ProfileTable

BOARDS = ("jetson-nano", "jetson-tx2", "jetson-orin-nano", "jetson-agx-orin")
"""Of the two TX2 boards the one whose power is fitted to recordings, and whose three clocks can be set."""
CLIENTS = 12
SEEDS = range(3)
BATCH = 32
STEPS = 52
"""Local steps of a round: two passes over a client's 833 images on average."""

RATE = 0.05
DIRICHLET = 0.3
LEAST_SAMPLES = BATCH
TARGET = 0.9
ROUNDS = 60
LINK_BITS_PER_S, LINK_S = 100e6, 0.01
"""A local network: seconds of a message are its bits over this, and a latency."""

TIMEOUT = 1.5
"""Time-out of FedAvg's rounds over the median client's time."""

MU = 0.01
"""Weight of FedProx's proximal term. Source: Li et al. 2020, one of the values that they tried."""


def network() -> nn.Module:
    """A network of 106,000 parameters for 28x28 pixels."""
    layers = [nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10))


@cache
def profile_of(name: str) -> ProfileTable:
    """The exact table of a simulated board."""
    device, digits = SimulatedDevice(builtin_board(name)), torch.randn(BATCH, 1, 28, 28)
    work = counted(network(), digits, torch.randint(10, (BATCH,)))
    cells = tuple(exact_cells(device, BatchShape.of(BATCH), work))
    return ProfileTable(device=f"sim:{name}", workload="federated", cells=cells)


@cache
def mod_of(seed: int, client: int) -> PowerCapMod:
    """The mod of a client, with its board and its cap."""
    name = BOARDS[client % len(BOARDS)]
    peaks_w = [cell.power_peak_w or 0.0 for cell in profile_of(name).measured]
    cap_w = float(np.random.default_rng([seed, client, 1]).uniform(min(peaks_w), max(peaks_w)))
    return PowerCapMod(cap_w, profile=profile_of(name), device=f"sim:{name}")


@cache
def images_of(folder: str, file: str) -> tuple[Tensor, Tensor]:
    """Images (N, 1, 28, 28) and their digits."""
    with np.load(Path(folder) / file) as arrays:
        images = torch.from_numpy(arrays["images"]).float().div(255).unsqueeze(1)
        return images, torch.from_numpy(arrays["labels"])


@cache
def owners_of(folder: str, seed: int) -> np.ndarray[Any, Any]:
    """The client of each image: of each digit, shares that a Dirichlet distribution draws."""
    draw, labels = np.random.default_rng([seed, 2]), images_of(folder, "train.npz")[1].numpy()
    while True:
        owners = np.empty(len(labels), dtype=int)
        for digit in range(10):
            own = np.flatnonzero(labels == digit)
            owners[own] = draw.choice(CLIENTS, size=len(own), p=draw.dirichlet([DIRICHLET] * CLIENTS))
        if np.bincount(owners, minlength=CLIENTS).min() >= LEAST_SAMPLES:
            return owners


# ------------------------------------------------------------------------------------------------------------- clients


def held(seed: int, message: Message, context: Context, call_next: Any) -> Message:
    """Train at a client's point, below its cap."""
    return mod_of(seed, int(context.node_config["partition-id"]))(message, context, call_next)


def train(message: Message, context: Context) -> Message:
    """The local steps of a client, as a user writes them."""
    torch.set_num_threads(1)
    config, model = message.content["config"], network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    folder, seed, client = config["folder"], config["seed"], int(context.node_config["partition-id"])
    images, labels = (part[owners_of(folder, seed) == client] for part in images_of(folder, "train.npz"))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    begin, mu = [parameter.detach().clone() for parameter in model.parameters()], config["mu"]
    draw = np.random.default_rng([seed, client, config["server-round"], 3])
    order = np.concatenate(
        [draw.permutation(len(labels)) for _ in range(-(-config["local-steps"] * BATCH // len(labels)))]
    )
    for chosen in torch.from_numpy(order).split(BATCH)[: config["local-steps"]]:
        loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
        if mu:
            apart = zip(model.parameters(), begin, strict=True)
            loss = loss + mu / 2 * sum((parameter - first).square().sum() for parameter, first in apart)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


# ---------------------------------------------------------------------------------------------------------- strategies


class Fleet(FleetStrategy):  # type: ignore[misc]
    """Wattune's strategy, until the target is reached. ``spent``: seconds and joules of each round."""

    mu = 0.0

    def __init__(self) -> None:
        super().__init__(local_steps=STEPS, batch_size=BATCH, fraction_evaluate=0.0)
        self.spent: list[tuple[float, float]] = []
        self.is_over = False

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Plan the round, or none any more."""
        config["mu"] = self.mu
        return [] if self.is_over else super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average what arrived, and note what the round took."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        if metrics is not None:
            self.spent.append((float(metrics[SECONDS]), float(metrics[JOULES])))
        return arrays, metrics


class EqualSteps(Fleet):
    """The same steps for each client, at its fastest point. What comes after ``timeout`` times the median is lost."""

    timeout = float("inf")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask each client for the same steps."""
        if not list(super().configure_train(server_round, arrays, config, grid)):
            return []
        parts = {}
        for node in self._parts:
            top, client = self.clients[node].fastest, self.clients[node]
            seconds = client.ends_s(top, STEPS)
            parts[node] = ClientRound(str(node), top.point, STEPS, seconds, STEPS * top.step_s * top.power_w)
        self._parts = parts
        return [self._message(node, arrays, config) for node in parts]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average what arrives in time by the samples of the clients."""
        own = [(next(iter(reply.content.metric_records.values())), reply) for reply in replies]
        if not own:
            return None, None
        until_s = self.timeout * statistics.median(float(figures[SECONDS]) for figures, _ in own)
        end_s = min(until_s, max(float(figures[SECONDS]) for figures, _ in own))
        joules = sum(figures[JOULES] * min(1.0, end_s / figures[SECONDS]) for figures, _ in own)
        self.spent.append((end_s, joules))
        in_time = [reply for figures, reply in own if figures[SECONDS] <= end_s]
        return FedAvg.aggregate_train(self, server_round, in_time)


class WithTimeout(EqualSteps):
    """FedAvg whose rounds end at a time-out."""

    timeout = TIMEOUT


class Proximal(EqualSteps):
    """FedProx, which waits for all."""

    mu = MU


STRATEGIES: dict[str, type[Fleet]] = {
    "FedAvg, time-out": WithTimeout,
    "FedProx, equal steps": Proximal,
    "wattune": Fleet,
}


def run_of(name: str, folder: str, seed: int) -> dict[str, Any]:
    """Train with a strategy until the target."""
    client, server, strategy = ClientApp(mods=[partial(held, seed)]), ServerApp(), STRATEGIES[name]()
    client.train()(train)
    images, labels = images_of(folder, "test.npz")
    best = 0.0

    def accuracy(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        nonlocal best
        if not strategy.is_over:
            model = network()
            model.load_state_dict(arrays.to_torch_state_dict())
            with torch.no_grad():
                best = max(best, float((model(images).argmax(1) == labels).float().mean()))
            strategy.is_over = best >= TARGET
        return MetricRecord({"accuracy": best})

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        torch.manual_seed(seed)
        config = ConfigRecord({"folder": folder, "seed": seed})
        first = ArrayRecord(network().state_dict())
        strategy.start(grid=grid, initial_arrays=first, num_rounds=ROUNDS, train_config=config, evaluate_fn=accuracy)

    # "local": a file of Ray's may name a cluster that has ended.
    backend = {"init_args": {"address": "local", "include_dashboard": False}, "client_resources": {"num_cpus": 1}}
    run_simulation(server, client, CLIENTS, backend_config=backend)
    bits = 32 * sum(parameter.numel() for parameter in network().parameters())
    link_s = 2 * (bits / LINK_BITS_PER_S + LINK_S) * len(strategy.spent)
    time_s, energy_j = (sum(column) for column in zip(*strategy.spent, strict=True))
    figures = {"rounds": len(strategy.spent), "time_s": time_s + link_s, "energy_j": energy_j, "best_accuracy": best}
    return {"policy": name, "seed": seed, "reached": strategy.is_over, **figures}


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, and store the results."""
    folder = folder_of("federated", arguments, "the folder with train.npz and test.npz")
    measured, runs = measured_at(), list[dict[str, Any]]()
    for seed in SEEDS:
        for name in STRATEGIES:
            runs.append(run_of(name, str(folder), seed))
            print(runs[-1], flush=True)
        figures = {"clients": CLIENTS, "boards": BOARDS, "target": TARGET, "seeds": seed + 1, "measured_at": measured}
        keep("federated", {**figures, "runs": runs, "time": [summed(name, runs) for name in STRATEGIES]})


def summed(name: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians and spread over the seeds; wattune's gains over this strategy with the same seed."""
    ours = {run["seed"]: run for run in runs if run["policy"] == "wattune" and run["reached"]}
    own = [run for run in runs if run["policy"] == name]
    reached = [run for run in own if run["reached"] and run["seed"] in ours]
    faster = sorted(run["time_s"] / ours[run["seed"]]["time_s"] for run in reached)
    energy = sorted(ours[run["seed"]]["energy_j"] / run["energy_j"] for run in reached)
    return {
        "policy": name,
        "reached": sum(run["reached"] for run in own),
        "rounds": statistics.median(run["rounds"] for run in own),
        "round_s": statistics.median(run["time_s"] / run["rounds"] for run in own),
        "time_s": statistics.median(run["time_s"] for run in own),
        "energy_j": statistics.median(run["energy_j"] for run in own),
        "faster": [statistics.median(faster), faster[0], faster[-1]] if faster else None,
        "of_energy": [statistics.median(energy), energy[0], energy[-1]] if energy else None,
    }
