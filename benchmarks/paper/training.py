"""Measured training runs: every family is pre-trained once, then trained on every data set, batch size and seed.

No run stops at a target: targets are set afterwards by one rule (`targets.py`), so that a curve serves as proxy and as
target. Finished runs are stored in the work folder and never repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file

from benchmarks.paper.families import Family
from wattune.algorithms import place
from wattune.errors import DeviceUnavailable
from wattune.proxy import sweep
from wattune.proxy.run import ProxyRun
from wattune.records import LearningCurve
from wattune.workloads import Workload

SEEDS = (0, 1, 2)
PRETRAINING_BATCH, PRETRAINING_RATE = 128, 3e-3
Processor = Literal["cpu", "gpu"]


def slug(name: str) -> str:
    """Convert a text to a file name."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def cuda_device() -> str:
    """Name of the CUDA device. Raises: DeviceUnavailable."""
    if not torch.cuda.is_available():
        raise DeviceUnavailable(
            f"the full-size models need a CUDA device, and torch {torch.__version__} finds none; leave out --full-size "
            "for the small networks"
        )
    return torch.cuda.get_device_name()


def pretrained(family: Family, data: Path, work: Path, on: Processor = "cpu") -> Path:
    """The file of the family's weights, trained first if it does not exist."""
    path = work / f"{slug(family.name)}.safetensors"
    if path.exists():
        return path
    work.mkdir(parents=True, exist_ok=True)
    workload = family.pretraining_workload(data)
    workload.check()
    torch.manual_seed(0)
    device = place(on)
    model = workload.model(0).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PRETRAINING_RATE)
    steps = family.pretraining_samples // PRETRAINING_BATCH
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=PRETRAINING_RATE, total_steps=steps)
    for x, y in itertools.islice(workload.batches(PRETRAINING_BATCH, seed=0), steps):
        optimizer.zero_grad()
        workload.loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        rate.step()
    print(f"{family.name}: pre-trained to {workload.evaluate(model):.3f} ({workload.metric.name})", flush=True)
    partial = path.with_suffix(".partial")
    save_file(model.state_dict(), partial)
    partial.replace(path)
    return path


def workload(family: Family, name: str, data: Path, work: Path, on: Processor = "cpu") -> Workload:
    """One data set of a family, from its pre-trained weights."""
    return family.workload(data, name, pretrained(family, data, work, on))


def curves(
    family: Family, name: str, data: Path, work: Path, processes: int | None, on: Processor = "cpu"
) -> list[LearningCurve]:
    """The learning curves of one data set, all batch sizes and seeds; on the GPU one after the other."""
    wanted = workload(family, name, data, work, on)
    folder, progress = work / slug(family.name) / slug(name), _progress(f"{family.name} on {name}")
    if on == "cpu":
        return sweep(wanted, seeds=SEEDS, folder=folder, processes=processes, progress=progress)
    folder.mkdir(parents=True, exist_ok=True)
    fingerprint = wanted.fingerprint()
    runs = [ProxyRun(fingerprint, size, seed, "backprop", folder) for size in wanted.batch_sizes for seed in SEEDS]
    found = []
    for run in runs:
        found.append(run.finished(wanted) or run.train(wanted, on=on))
        progress(len(found), len(runs), f"batch size {run.batch_size}, seed {run.seed}")
    return found


def _progress(what: str) -> Callable[[int, int, str], None]:
    return lambda done, total, line: print(f"{what}, {done}/{total}: {line}", flush=True)
