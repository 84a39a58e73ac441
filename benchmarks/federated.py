"""Federated training of 20 clients on four kinds of simulated boards, each under a cap of its own.

`python -m benchmarks federated IMAGES`: images of a folder (train.npz and test.npz, MNIST's digits), a
convolutional network, real training; seconds and joules are the boards' exact figures of the same network's steps.
Labels are split by a Dirichlet distribution, so that clients have different digits and different numbers of them. Caps
are drawn between the lowest and the highest power of each board.

Time and energy until the test accuracy is ``TARGET``, beside FedAvg with equal steps, and with a time-out.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.groups import counted
from benchmarks.timing import keep
from wattune.cap import PowerCap
from wattune.devices.simulator.board_file import builtin_board
from wattune.devices.simulator.simulated import SimulatedDevice
from wattune.errors import InputError
from wattune.planning.fleet import ClientRound, FleetClient, plan_round, points_under
from wattune.point import BatchShape, OperatingPoint
from wattune.records import ProfileCell, ProfileTable

BOARDS = ("jetson-nano", "jetson-tx2", "jetson-orin-nano", "jetson-agx-orin")
"""Of the two TX2 boards the one whose power is fitted to recordings, and whose three clocks can be set."""
CLIENTS = 20
SEEDS = range(5)
BATCH = 32
STEPS = 32
"""Local steps of a round: two passes over a client's 500 images on average."""

RATE = 0.05
DIRICHLET = 0.3
LEAST_SAMPLES = BATCH
TARGET = 0.9
ROUNDS = 60
LINK_BITS_PER_S, LINK_S = 100e6, 0.01
"""A local network: seconds of a message are its bits over this, and a latency."""

TIMEOUT = 1.5
"""Time-out of a round over the median client's time."""


class Fleet(NamedTuple):
    """Clients with the points under their caps, their data, and the data to test on."""

    clients: tuple[FleetClient, ...]
    data: tuple[tuple[Tensor, Tensor], ...]
    test: tuple[Tensor, Tensor]


class Round(NamedTuple):
    """Parts of a round, its seconds, its joules, and the weight of each part's update."""

    parts: Sequence[ClientRound]
    seconds: float
    energy_j: float
    weights: Sequence[float]


Policy = Callable[[Fleet], Round]


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, and store the results."""
    if len(arguments) != 1:
        allowed = "the folder with train.npz and test.npz"
        raise InputError("arguments of federated", value=" ".join(arguments) or None, allowed=allowed)
    images = Path(arguments[0])
    for name in ("train.npz", "test.npz"):
        if not (images / name).is_file():
            raise InputError("no such images", value=str(images / name), hint="give the folder with them")
    with ProcessPoolExecutor(2) as pool:
        runs = [run for own in pool.map(runs_of, [images] * len(SEEDS), SEEDS) for run in own]
    keep(
        "federated",
        {
            "clients": CLIENTS,
            "boards": BOARDS,
            "target": TARGET,
            "seeds": len(SEEDS),
            "runs": runs,
            "time": [summed(name, runs) for name in POLICIES],
        },
    )


# --------------------------------------------------------------------------------------------------------------- fleet


def network() -> nn.Module:
    """A network of 106,000 parameters for 28x28 pixels."""
    layers = [nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10))


def board(name: str) -> ProfileTable:
    """The exact table of a simulated board's GPU."""
    device, digits = SimulatedDevice(builtin_board(name)), torch.randn(BATCH, 1, 28, 28)
    work = counted(network(), digits, torch.randint(10, (BATCH,)))
    cells = []
    for knobs, step in device.exact_steps(work).items():
        figures = {"step_s": step.step_s, "power_mean_w": step.power_mean_w, "power_peak_w": step.power_peak_w}
        cells.append(ProfileCell(**OperatingPoint(BatchShape.of(BATCH), knobs).fields(), **figures, steps=1))
    return ProfileTable(device=f"sim:{name}", workload="federated", cells=tuple(cells))


def clients_of(seed: int) -> tuple[FleetClient, ...]:
    """The clients of a fleet, with a cap each."""
    draw, boards = np.random.default_rng([seed, 1]), [board(name) for name in BOARDS]
    bits = 32 * sum(parameter.numel() for parameter in network().parameters())
    fixed_s = 2 * (bits / LINK_BITS_PER_S + LINK_S)
    clients = []
    for index in range(CLIENTS):
        one = boards[index % len(boards)]
        peaks_w = [cell.power_peak_w or 0.0 for cell in one.measured]
        limit_w = float(draw.uniform(min(peaks_w), max(peaks_w)))
        cap = PowerCap(limit_w, window="peak")
        clients.append(FleetClient(f"{index}", points_under(one, cap, BATCH), fixed_s=fixed_s))
    return tuple(clients)


def fleet_of(folder: Path, seed: int) -> Fleet:
    """Clients and their images: of each digit, shares that a Dirichlet distribution draws."""
    draw = np.random.default_rng([seed, 2])
    images, labels = _read(folder / "train.npz")
    while True:
        owners = np.empty(len(labels), dtype=int)
        for digit in range(10):
            own = np.flatnonzero(labels.numpy() == digit)
            owners[own] = draw.choice(CLIENTS, size=len(own), p=draw.dirichlet([DIRICHLET] * CLIENTS))
        counts = np.bincount(owners, minlength=CLIENTS)
        if counts.min() >= LEAST_SAMPLES:
            break
    data = tuple((images[owners == index], labels[owners == index]) for index in range(CLIENTS))
    return Fleet(clients_of(seed), data, _read(folder / "test.npz"))


def _read(path: Path) -> tuple[Tensor, Tensor]:
    with np.load(path) as arrays:
        images = torch.from_numpy(arrays["images"]).float().div(255).unsqueeze(1)
        return images, torch.from_numpy(arrays["labels"])


# ------------------------------------------------------------------------------------------------------------ policies


def _sizes(fleet: Fleet, parts: Sequence[ClientRound]) -> list[float]:
    return [float(len(fleet.data[int(part.name)][1])) for part in parts]


def _at_top(clients: Sequence[FleetClient], steps: int = STEPS) -> list[ClientRound]:
    """Each client at the highest clocks under its cap."""
    parts = []
    for client in clients:
        one = max(client.points, key=lambda point: point.point)
        energy_j = steps * one.step_s * one.power_w
        parts.append(ClientRound(client.name, one.point, steps, client.ends_s(one, steps), energy_j))
    return parts


def equal_steps(fleet: Fleet) -> Round:
    """FedAvg: the same steps for each, at the top; the round waits for the slowest."""
    parts = _at_top(fleet.clients)
    seconds = max(part.seconds for part in parts)
    energy_j = sum(part.energy_j for part in parts)
    return Round(parts, seconds, energy_j, _sizes(fleet, parts))


def with_timeout(fleet: Fleet) -> Round:
    """The same, but the round ends at a time-out, and what is late is lost."""
    parts = _at_top(fleet.clients)
    seconds = TIMEOUT * statistics.median(part.seconds for part in parts)
    in_time = [part for part in parts if part.seconds <= seconds]
    late = [part for part in parts if part.seconds > seconds]
    energy_j = sum(part.energy_j for part in in_time) + sum(p.energy_j * seconds / p.seconds for p in late)
    return Round(in_time, seconds, energy_j, _sizes(fleet, in_time))


def by_speed(fleet: Fleet) -> Round:
    """Steps by speed, averaged by the samples that were trained on: wattune's strategy."""
    plan = plan_round(fleet.clients, steps=STEPS)
    return Round(plan.parts, plan.seconds, plan.energy_j, [float(part.steps) for part in plan.parts])


POLICIES: dict[str, Policy] = {
    "FedAvg, equal steps": equal_steps,
    "FedAvg, time-out": with_timeout,
    "wattune": by_speed,
}


# ------------------------------------------------------------------------------------------------------------ training


def runs_of(folder: Path, seed: int) -> list[dict[str, Any]]:
    """The runs of all policies. Those with the same steps and weights, at other points only, train alike: once."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    fleet, model = fleet_of(folder, seed), network()
    trained, runs = dict[Any, list[float]](), []
    for name, policy in POLICIES.items():
        round_ = policy(fleet)  # the same in every round: nothing about the boards changes
        shares = tuple(weight / sum(round_.weights) for weight in round_.weights)
        updates = tuple((part.name, part.steps, share) for part, share in zip(round_.parts, shares, strict=True))
        if updates not in trained:
            trained[updates] = accuracies_of(fleet, copy.deepcopy(model), updates, seed)
        accuracies = trained[updates]
        rounds = len(accuracies) if accuracies[-1] >= TARGET else None
        runs.append(
            {
                "policy": name,
                "seed": seed,
                "rounds": rounds,
                "round_s": round_.seconds,
                "time_s": None if rounds is None else rounds * round_.seconds,
                "energy_j": None if rounds is None else rounds * round_.energy_j,
            }
        )
        print(runs[-1], flush=True)
    return runs


def accuracies_of(fleet: Fleet, model: nn.Module, updates: Sequence[tuple[str, int, float]], seed: int) -> list[float]:
    """Test accuracies of the rounds until the target is reached, or of ``ROUNDS``. ``updates``: each client's name, its
    local steps, and the factor of its update."""
    batches = [_endless(images, labels, [seed, index]) for index, (images, labels) in enumerate(fleet.data)]
    accuracies: list[float] = []
    while len(accuracies) < ROUNDS and (not accuracies or accuracies[-1] < TARGET):
        begin = [parameter.detach().clone() for parameter in model.parameters()]
        change = [torch.zeros_like(parameter) for parameter in begin]
        for name, steps, factor in updates:
            local = copy.deepcopy(model)
            _train(local, batches[int(name)], steps)
            for total, own, start in zip(change, local.parameters(), begin, strict=True):
                total += factor * (own.detach() - start)
        with torch.no_grad():
            for parameter, total in zip(model.parameters(), change, strict=True):
                parameter += total
            images, labels = fleet.test
            accuracies.append(float((model(images).argmax(1) == labels).float().mean()))
    return accuracies


def _train(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for _ in range(steps):
        images, labels = next(batches)
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def _endless(images: Tensor, labels: Tensor, seed: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    draw = np.random.default_rng([*seed, 3])
    while True:
        order = torch.from_numpy(draw.permutation(len(labels)))
        for chosen in order[: len(order) // BATCH * BATCH].split(BATCH):
            yield images[chosen], labels[chosen]


def summed(name: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians and spread over the seeds; gains are over equal steps of the same seed."""
    base = {run["seed"]: run for run in runs if run["policy"] == "FedAvg, equal steps"}
    own = [run for run in runs if run["policy"] == name]
    reached = [run for run in own if run["rounds"] is not None and base[run["seed"]]["rounds"] is not None]
    faster = sorted(base[run["seed"]]["time_s"] / run["time_s"] for run in reached)
    saved = sorted(1 - run["energy_j"] / base[run["seed"]]["energy_j"] for run in reached)
    return {
        "policy": name,
        "reached": len(reached),
        "round_s": statistics.median(run["round_s"] for run in own),
        "rounds": statistics.median(run["rounds"] for run in reached) if reached else None,
        "faster": [statistics.median(faster), faster[0], faster[-1]] if faster else None,
        "energy_saved": [statistics.median(saved), saved[0], saved[-1]] if saved else None,
    }
