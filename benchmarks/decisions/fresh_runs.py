"""Fresh training runs: `python -m benchmarks decisions train --data DIR`; resumable, an hour of one core at most.

Each configuration (workload, learning rate, batch size) trains its ten seeds at once and stores its learning curves in
the work folder; finished ones are not trained again. Targets are derived from the curves, and with them the table of
runs, in results/decisions_runs.csv, and the gradient noise scales, in results/decisions_noise.csv.
"""

from __future__ import annotations

import csv
import math
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.decisions.fresh_data import FAMILIES, Family, Source
from benchmarks.decisions.fresh_models import Parameters, Stack, loss
from benchmarks.decisions.sweeps import Run, truth
from benchmarks.timing import RESULTS

BATCH_SIZES = (4, 8, 16, 32, 64, 128)
LEARNING_RATES = (5e-4, 2e-3)
SEEDS = 10
GRID = 128
"""Samples between two evaluations, the same for every batch size."""

WINDOW = 3
QUANTILES = (0.8, 0.95)
TENTH = 0.1
EARLY = 2048
"""Samples whose micro-batches make up the early noise scale."""

PRETRAINING_SAMPLES = 200_000
NOISE_AT, NOISE_EVERY, MICRO_BATCHES, MICRO_BATCH = 32, 16, 24, 8
"""Noise scale: batch size of the runs, evaluations between two measurements, number and size of micro-batches."""

RUNS, NOISE = RESULTS / "decisions_runs.csv", RESULTS / "decisions_noise.csv"
Floats = NDArray[np.float64]


def train(data: Path, work: Path) -> None:
    """Train configurations missing in ``work``, then write the two tables."""
    work.mkdir(parents=True, exist_ok=True)
    for family in FAMILIES:
        network = family.network(family.classes)
        pretrained = _pretrained(family, data, work)
        for workload in family.workloads:
            source = family.load(data, workload)
            for rate in LEARNING_RATES:
                for batch_size in BATCH_SIZES:
                    path = work / f"{family.name}-{workload}-{rate:g}-{batch_size}.npz"
                    if path.exists():
                        continue
                    begun = time.perf_counter()
                    curves = _run(path.stem, network, pretrained, source, rate, batch_size, family.budget)
                    np.savez_compressed(work / "partial.npz", **curves)
                    (work / "partial.npz").replace(path)
                    best = curves["accuracy"][:, -WINDOW:].mean()
                    print(f"{path.stem}: {best:.3f} at the end, {time.perf_counter() - begun:.0f} s", flush=True)
    collect(work)


def _pretrained(family: Family, data: Path, work: Path) -> Parameters:
    path = work / f"{family.name}.npz"
    if not path.exists():
        network = family.network(family.pretraining_classes)
        source = family.load(data, family.pretraining)
        parameters = [part.requires_grad_() for part in network.new([0])]
        batches = _batches(f"{family.name} pretraining", source, 1, PRETRAINING_SAMPLES, 64)
        _steps(network, parameters, batches, 2e-3)
        accuracy = _accuracy(network, parameters, source.tests)[0]
        print(f"{family.name}: pretrained to {accuracy:.3f}", flush=True)
        np.savez(path, *[part.detach().numpy() for part in parameters])
    with np.load(path) as file:
        return [torch.from_numpy(file[name]) for name in file.files]


def _run(
    name: str, network: Stack, pretrained: Parameters, source: Source, rate: float, batch_size: int, budget: int
) -> dict[str, Any]:
    """Accuracy (seeds, evaluations) on the grid, the first before training; noise and signal if measured."""
    parameters = network.begin(pretrained, [_seed(f"{name} head {seed}") for seed in range(SEEDS)])
    optimizer = torch.optim.Adam(parameters, lr=rate * math.sqrt(batch_size / 32), betas=(0.9, 0.999), eps=1e-8)
    accuracy = [_accuracy(network, parameters, source.tests)]
    at, noise, signal = [], [], []
    micro = _batches(f"{name} noise", source, SEEDS, budget * 10, MICRO_BATCH)
    chunks = _batches(name, source, SEEDS, budget, GRID)
    for number, (inputs, labels) in enumerate(chunks):
        if batch_size == NOISE_AT and number % NOISE_EVERY == 0:
            one, other = _noise(network, parameters, micro)
            at.append(number * GRID)
            noise.append(one)
            signal.append(other)
        parts = zip(inputs.split(batch_size, dim=1), labels.split(batch_size, dim=1), strict=True)
        for some, answers in parts:
            optimizer.zero_grad(set_to_none=True)
            loss(network.logits(parameters, some), answers).backward()
            optimizer.step()
        accuracy.append(_accuracy(network, parameters, source.tests))
    curves: dict[str, Any] = {"accuracy": np.stack(accuracy, axis=1)}
    if at:
        curves |= {"at": np.array(at, dtype=float), "noise": np.stack(noise, 1), "signal": np.stack(signal, 1)}
    return curves


def _steps(network: Stack, parameters: Parameters, batches: Iterator[tuple[Tensor, Tensor]], rate: float) -> None:
    optimizer = torch.optim.Adam(parameters, lr=rate)
    for inputs, labels in batches:
        optimizer.zero_grad(set_to_none=True)
        loss(network.logits(parameters, inputs), labels).backward()
        optimizer.step()


def _batches(name: str, source: Source, seeds: int, samples: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (seeds, size, ...); every seed has its own order and augmentation in each epoch."""
    draws = [torch.Generator().manual_seed(_seed(f"{name} order {seed}")) for seed in range(seeds)]
    augment = torch.Generator().manual_seed(_seed(f"{name} augmentation"))
    orders = [torch.randperm(source.count, generator=draw) for draw in draws]
    place = 0
    for _ in range(samples // size):
        if place + size > source.count:
            orders, place = [torch.randperm(source.count, generator=draw) for draw in draws], 0
        yield source.draw(torch.stack([order[place : place + size] for order in orders]), augment)
        place += size


@torch.no_grad()
def _accuracy(network: Stack, parameters: Parameters, tests: tuple[Tensor, Tensor]) -> Floats:
    inputs, labels = tests
    right = []
    for seed in range(len(parameters[0])):
        logits = network.logits([part[seed : seed + 1] for part in parameters], inputs[None])
        right.append(float((logits[0].argmax(dim=1) == labels).double().mean()))
    return np.array(right)


def _noise(network: Stack, parameters: Parameters, micro: Iterator[tuple[Tensor, Tensor]]) -> tuple[Floats, Floats]:
    """Unbiased tr(Sigma) and |G|^2 of each seed from micro-batches at the current weights.

    Source: McCandlish et al. 2018, arXiv 1812.06162, appendix A.1.
    """
    total = [torch.zeros_like(part) for part in parameters]
    small = torch.zeros(SEEDS)
    for _ in range(MICRO_BATCHES):
        inputs, labels = next(micro)
        gradients = torch.autograd.grad(loss(network.logits(parameters, inputs), labels), parameters)
        small += _squares(gradients) / MICRO_BATCHES
        for one, gradient in zip(total, gradients, strict=True):
            one += gradient / MICRO_BATCHES
    big, count = _squares(total), MICRO_BATCHES
    noise = (small - big) / (1 / MICRO_BATCH - 1 / (MICRO_BATCH * count))
    signal = (count * big - small) / (count - 1)
    return noise.double().numpy(), signal.double().numpy()


def _squares(parts: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    return torch.stack([part.flatten(1).square().sum(dim=1) for part in parts]).sum(dim=0)


def _seed(name: str) -> int:
    return zlib.crc32(name.encode())


# ------------------------------------------------------------------------------------------------------------ reading


def crossing(accuracy: Floats, target: float) -> float | None:
    """Samples at which the trailing mean of three evaluations first reaches ``target``; None if it never does."""
    smooth = np.convolve(accuracy, np.ones(WINDOW) / WINDOW, mode="valid")
    reached = np.flatnonzero(smooth >= target)
    if not len(reached):
        return None
    at = int(reached[0])
    share = 1.0 if at == 0 else (target - smooth[at - 1]) / (smooth[at] - smooth[at - 1])
    return float((at + WINDOW - 2 + share) * GRID)


def collect(work: Path) -> None:
    """Write the tables of runs and of noise scales, from the learning curves in ``work``."""
    runs, scales = [], []
    for family in FAMILIES:
        needed: dict[tuple[float, float], dict[int, float]] = {}  # of the proxy, which comes first
        for workload in family.workloads:
            role = "proxy" if workload == family.workloads[0] else "target"
            for rate in LEARNING_RATES:
                paths = {b: work / f"{family.name}-{workload}-{rate:g}-{b}.npz" for b in BATCH_SIZES}
                curves_by_size = {b: dict(np.load(path)) for b, path in paths.items()}
                for quantile, target in zip(
                    QUANTILES, _targets([c["accuracy"] for c in curves_by_size.values()]), strict=True
                ):
                    if role == "proxy":
                        needed[rate, quantile] = _needed(curves_by_size, target, family.budget)
                    tenths = {b: TENTH * samples for b, samples in needed[rate, quantile].items()}
                    key = {
                        "family": family.name,
                        "workload": workload,
                        "role": role,
                        "learning_rate_at_32": rate,
                        "target_quantile": quantile,
                        "target_accuracy": round(target, 5),
                    }
                    for b, curves in curves_by_size.items():
                        for seed, accuracy in enumerate(curves["accuracy"]):
                            samples = crossing(accuracy, target)
                            runs.append(
                                key
                                | {
                                    "batch_size": b,
                                    "seed": seed,
                                    "samples_to_target": "" if samples is None else round(samples, 1),
                                    "reached": int(samples is not None),
                                    "samples_budget": float(family.budget),
                                    "progress_at_tenth": _progress(accuracy, target, tenths[b]),
                                }
                            )
                    scales += [key | scale for scale in _scales(curves_by_size[NOISE_AT], target)]
    _write(RUNS, runs)
    _write(NOISE, scales)
    print(f"{len(runs)} runs in {RUNS.name}")


def _needed(curves_by_size: dict[int, dict[str, Any]], target: float, budget: int) -> dict[int, float]:
    """Batch size -> estimate of the true samples to the target."""
    runs: dict[int, list[Run]] = {}
    for b, curves in curves_by_size.items():
        crossed = [crossing(accuracy, target) for accuracy in curves["accuracy"]]
        runs[b] = [Run(float(budget) if one is None else one, one is not None) for one in crossed]
    return truth(runs)


def _progress(accuracy: Floats, target: float, tenth: float) -> float | str:
    """Progress as a share of the way from the first evaluation in training; empty if the tenth comes too early."""
    if not 2 * GRID <= tenth <= (len(accuracy) - 1) * GRID:
        return ""
    first, then = accuracy[1], float(np.interp(tenth, np.arange(len(accuracy)) * GRID, accuracy))
    return round(float((then - first) / (target - first)), 4)


def _targets(curves: list[Floats]) -> list[float]:
    """Target accuracies: shares of the gain that every batch size reaches."""
    begin = float(np.mean([accuracy[:, 0].mean() for accuracy in curves]))
    smooth = [np.convolve(accuracy.mean(axis=0), np.ones(WINDOW) / WINDOW, mode="valid") for accuracy in curves]
    gain = min(float(one.max()) for one in smooth) - begin
    return [begin + quantile * gain for quantile in QUANTILES]


def _scales(curves: dict[str, Floats], target: float) -> Iterator[dict[str, float | str]]:
    """Each seed's noise scale on its way to the target: noise and signal are summed first, then divided."""
    for seed, accuracy in enumerate(curves["accuracy"]):
        samples = crossing(accuracy, target)
        before = curves["at"] <= (math.inf if samples is None else samples)
        signal = float(curves["signal"][seed][before].sum())
        if signal > 0:
            scale = round(float(curves["noise"][seed][before].sum()) / signal, 1)
            first = curves["at"] <= EARLY
            noise, early = (float(curves[name][seed][first].sum()) for name in ("noise", "signal"))
            is_estimable = noise > 0 and early > 0
            yield {
                "seed": seed,
                "noise_scale": scale,
                "early_noise_scale": round(noise / early, 2) if is_estimable else "",
            }


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
