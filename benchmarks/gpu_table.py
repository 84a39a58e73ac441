"""`python -m benchmarks gpu_table [--device nvidia:0] [--seconds 20] [--samples MODEL=RUNS.csv ...]`: one GPU.

Step time, power and joules of two networks by batch and micro-batch size, the meter beside the card's energy counter,
`wattune guard` around an unmodified script, and how NVML averages power. Ten minutes; no clock or limit is changed.
With recorded runs (see docs/estimate.md) also joules to their target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import keep
from benchmarks.tx2_recordings import ResNet50
from wattune.cli.main import main as wattune
from wattune.devices import Device, Meter, open_device
from wattune.doctor import examine
from wattune.sample_efficiency.recorded_runs import read_runs
from wattune_agent.tree import Tree

NAME = "gpu_table"
WARM_UP_S, WAVE_S, READ_EVERY_S = 2.0, 3.0, 0.005
PAIRS = 3

SCRIPT = """
import os
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which deterministic matrix products may ask for
import hashlib, json, sys, time, torch
on = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
model = torch.nn.Linear(256, 256).to(on)
optimizer = torch.optim.Adam(model.parameters())
for step in range({steps}):
    if step == 20:
        begun_s = time.perf_counter()
    optimizer.zero_grad()
    model(torch.randn(64, 256, device=on)).square().mean().backward()
    optimizer.step()
weights = model.weight.detach().cpu().numpy().tobytes()
step_s = (time.perf_counter() - begun_s) / ({steps} - 20)
json.dump({{"step_s": step_s, "weights": hashlib.sha256(weights).hexdigest()}}, open(sys.argv[1], "w"))
"""
"""Training as a user's script has it; it writes its time for a step and a hash of its weights."""


class GPT(nn.Module):
    """GPT-2 of 124 million parameters, its head tied to the embedding. Source: Radford et al. 2019, table 2."""

    def __init__(self, layers: int = 12, width: int = 768, vocabulary: int = 50257, length: int = 1024):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, L) -> logits (B, vocabulary, L)."""
        places = torch.arange(x.shape[1], device=x.device)
        later = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        seen = self.layers(self.token(x) + self.place(places), mask=later, is_causal=True)
        return F.linear(seen, self.token.weight).transpose(1, 2)


@dataclass(frozen=True)
class Network:
    """A network to build, the shape of an input (tokens: one axis), shape and number of classes of its targets, and the
    batch and micro-batch sizes, ascending."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    targets: tuple[tuple[int, ...], int]
    sizes: tuple[int, ...]

    def batch(self, size: int, on: str) -> tuple[Tensor, Tensor]:
        """Make a batch of random numbers."""
        shape, classes = self.targets
        y = torch.randint(classes, (size, *shape), device=on)
        return (y if len(self.shape) == 1 else torch.randn(size, *self.shape, device=on)), y


NETWORKS = {
    "resnet50": Network(lambda: ResNet50(1000), (3, 224, 224), ((), 1000), (32, 128, 512)),
    "gpt124m": Network(GPT, (1024,), ((1024,), 50257), (4, 16, 64)),
}


def processor() -> str:
    """The processor that trains; the CPU where the benchmark itself is tried."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def cells(networks: dict[str, Network], device: Device, card: Any, seconds: float) -> Iterator[dict[str, Any]]:
    """Measure each network at each batch size, with each micro-batch size up to it."""
    on = processor()
    for name, network in networks.items():
        model = network.build().to(on)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        for size in network.sizes:
            for micro in (one for one in network.sizes if one <= size):
                cell = {"network": name, "batch_size": size, "micro_batch_size": micro}
                try:
                    x, y = network.batch(micro, on)
                    step = _step(model, optimizer, x, y, size // micro)
                    _for(step, min(WARM_UP_S, seconds))
                    before_j, meter = card.energy_j(), Meter(device)
                    with meter:
                        steps, taken_s = _for(step, seconds)
                    figures = meter.figures()
                except torch.cuda.OutOfMemoryError:
                    yield cell | {"out_of_memory": True}
                    continue
                after_j = card.energy_j()
                yield cell | {
                    "step_s": taken_s / steps,
                    "power_w": figures.power_mean_w,
                    "sample_j": figures.power_mean_w * taken_s / steps / size,
                    "metered_j": figures.energy_j,
                    "counted_j": after_j - before_j if before_j and after_j else None,
                }


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, micro_batches: int
) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        for _ in range(micro_batches):
            with torch.autocast(x.device.type, torch.bfloat16):
                loss = F.cross_entropy(model(x), y) / micro_batches
            torch.autograd.backward(loss)
        optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()

    return step


def _for(step: Callable[[], None], seconds: float) -> tuple[int, float]:
    """Repeat a step for so long; return the number of steps and their time."""
    begun_s, steps = time.perf_counter(), 0
    while True:
        step()
        steps += 1
        if (taken_s := time.perf_counter() - begun_s) >= seconds:
            return steps, taken_s


def guarded(spec: str, folder: Path, steps: int) -> dict[str, Any]:
    """Run an unmodified script alone and under `wattune guard`, in pairs: its time for a step and its weights."""
    script, out = folder / "train.py", folder / "out.json"
    script.write_text(SCRIPT.format(steps=steps))
    runs: dict[str, list[dict[str, Any]]] = {"alone": [], "guarded": []}
    for _ in range(PAIRS):
        for way, found in runs.items():
            command = [sys.executable, str(script), str(out)]
            if way == "alone":
                subprocess.run(command, check=True)
            elif code := wattune(["guard", "--device", spec, "--cap", "none", "--", *command]):
                raise RuntimeError(f"wattune guard ended with {code}")
            found.append(json.loads(out.read_text()))
    alone, under = ([one["step_s"] for one in found] for found in runs.values())
    overhead = statistics.median(two / one - 1 for one, two in zip(alone, under, strict=True))
    hashes = {one["weights"] for found in runs.values() for one in found}
    return {"overhead": overhead, "equal": len(hashes) == 1, "alone_s": alone, "guarded_s": under}


def averaging(card: Any, wave_s: float) -> dict[str, Any]:
    """Load the processor, then let it idle: how long the reported power takes from 10 % to 90 % of its rise, and how
    often it and the energy counter change."""
    square, begun_s, rows = torch.randn(2048, 2048, device=processor()), time.perf_counter(), []
    while (now_s := time.perf_counter() - begun_s) < 3 * wave_s:
        rows.append((now_s, card.usage_w(), card.energy_j()))
        if wave_s <= now_s < 2 * wave_s:
            _ = (square @ square)[0, 0].item()  # which waits for it
        else:
            time.sleep(READ_EVERY_S)
    times, usage, energy = zip(*rows, strict=True)
    high, loaded = max(usage), [(t, w) for t, w in zip(times, usage, strict=True) if t >= wave_s]
    low = loaded[0][1]  # before, the card may still be cooling
    reached = [next(t for t, w in loaded if w >= low + s * (high - low)) for s in (0.1, 0.9)]
    every = {name: _refresh_s(times, values) for name, values in (("usage_w", usage), ("energy_j", energy))}
    return {"from_w": low, "to_w": high, "rise_s": reached[1] - reached[0], "refresh_s": every}


def _refresh_s(times: tuple[float, ...], values: tuple[float, ...]) -> float | None:
    changes = [at for at, (before, value) in zip(times[1:], pairwise(values), strict=True) if value != before]
    return statistics.median(b - a for a, b in pairwise(changes)) if len(changes) > 2 else None


def to_target(measured: list[dict[str, Any]], network: str, runs: Path) -> list[dict[str, Any]]:
    """Seconds and joules to the target of recorded runs, in their order: their samples, times the least joules of a
    measured batch size up to theirs."""
    own = [cell for cell in measured if cell["network"] == network and "step_s" in cell]
    rows = []
    for _, run in read_runs(runs):
        fitting = [cell for cell in own if cell["batch_size"] <= run.batch_size]
        if run.reached and fitting:
            cell = max(fitting, key=lambda one: (one["batch_size"], -one["sample_j"]))
            time_s, energy_j = run.samples * cell["step_s"] / cell["batch_size"], run.samples * cell["sample_j"]
            row = {"batch_size": run.batch_size, "measured_at": cell["batch_size"]}
            rows.append(row | {"time_s": time_s, "energy_j": energy_j})
    return rows


def main(arguments: list[str], networks: dict[str, Network] = NETWORKS, wave_s: float = WAVE_S) -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu_table")
    parser.add_argument("--device", default="nvidia:0", help="the card (default: the first)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each cell (default: 20)")
    parser.add_argument("--steps", type=int, default=5000, help="of the guarded script (default: 5000)")
    parser.add_argument("--samples", metavar="NETWORK=RUNS.csv", action="append", default=[], help="recorded runs")
    given = parser.parse_args(arguments)
    spec = f"{given.device}?actuator=none"  # nothing is set
    card, device = Tree().cards().find(given.device.partition(":")[2]), open_device(spec)
    with closing(device):
        measured = list(cells(networks, device, card, given.seconds))
    recorded = dict(one.split("=", 1) for one in given.samples)
    data = {
        "device": {"name": device.name, "mode": device.mode},
        "doctor": asdict(examine(spec)) if device.kind == "measured" else None,
        "cells": measured,
        "averaging": averaging(card, wave_s),
        "to_target": {network: to_target(measured, network, Path(runs)) for network, runs in recorded.items()},
    }
    keep(NAME, data)  # before a script of its own may fail
    with TemporaryDirectory() as folder:
        data["guard"] = guarded(spec, Path(folder), given.steps)
    keep(NAME, data)
