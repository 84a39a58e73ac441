"""Measured training runs: every family is pre-trained once, then trained on every data set, batch size and seed.

No run stops at a target: targets are set afterwards by one rule (``target_of``), so that a curve serves as proxy and as
target. Finished runs are stored in the work folder and never repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from safetensors.torch import save_file

from benchmarks.paper.families import Family
from wattune.proxy import sweep
from wattune.records import Evaluation, LearningCurve
from wattune.workloads import Workload

WINDOW_SAMPLES = 512
"""Samples before an evaluation whose mean metric has to reach the target, since single evaluations are noisy."""

SHARE = 0.9
"""Position of the target between the first evaluation and the level that every batch size reaches."""


def smoothed(curve: LearningCurve) -> LearningCurve:
    """The curve with the trailing mean of its metric, over the same number of samples at every batch size."""
    evaluations = []
    for one in curve.evaluations:
        window = [e.metric for e in curve.evaluations if one.samples - WINDOW_SAMPLES < e.samples <= one.samples]
        evaluations.append(one.model_copy(update={"metric": fmean(window)}))
    return curve.model_copy(update={"evaluations": tuple(evaluations)})


def target_of(curves: Sequence[LearningCurve], *, higher_is_better: bool = True) -> float:
    """``SHARE`` of the way from the mean first evaluation to the end of the batch size that ends worst."""
    start = fmean(curve.evaluations[0].metric for curve in curves)
    sizes = {curve.batch_size for curve in curves}
    ends = [fmean(c.evaluations[-1].metric for c in curves if c.batch_size == size) for size in sizes]
    end = min(ends) if higher_is_better else max(ends)
    return start + SHARE * (end - start)


def cut(curve: LearningCurve, target: float, *, higher_is_better: bool = True) -> LearningCurve:
    """The curve up to its first evaluation at the target, or the whole curve marked as not reached.

    Its samples are interpolated between that evaluation and the one before.
    """
    before: Evaluation | None = None
    for count, one in enumerate(curve.evaluations, start=1):
        if one.metric >= target if higher_is_better else one.metric <= target:
            samples = one.samples
            if before is not None:
                way = (target - before.metric) / (one.metric - before.metric)
                samples = round(before.samples + way * (one.samples - before.samples))
            evaluations = curve.evaluations[:count]
            return curve.model_copy(
                update={"target": target, "reached": True, "samples": samples, "evaluations": evaluations}
            )
        before = one
    return curve.model_copy(update={"target": target, "reached": False})


SEEDS = (0, 1, 2)
EVERY_SAMPLES = 64
"""Samples between evaluations; batch sizes above are evaluated after each step."""

PRETRAINING_BATCH, PRETRAINING_RATE = 128, 3e-3


def slug(name: str) -> str:
    """Convert a text to a file name."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def pretrained(family: Family, data: Path, work: Path) -> Path:
    """The file of the family's weights, trained first if it does not exist."""
    path = work / f"{slug(family.name)}.safetensors"
    if path.exists():
        return path
    work.mkdir(parents=True, exist_ok=True)
    workload = family.pretraining_workload(data)
    workload.check()
    torch.manual_seed(0)
    model = workload.model(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PRETRAINING_RATE)
    steps = family.pretraining_samples // PRETRAINING_BATCH
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=PRETRAINING_RATE, total_steps=steps)
    for x, y in itertools.islice(workload.batches(PRETRAINING_BATCH, seed=0), steps):
        optimizer.zero_grad()
        workload.loss(model(x), y).backward()
        optimizer.step()
        rate.step()
    print(f"{family.name}: pre-trained to {workload.evaluate(model):.3f} ({workload.metric.name})", flush=True)
    partial = path.with_suffix(".partial")
    save_file(model.state_dict(), partial)
    partial.replace(path)
    return path


def workload(family: Family, name: str, data: Path, work: Path) -> Workload:
    """One data set of a family, from its pre-trained weights."""
    return family.workload(data, name, pretrained(family, data, work))


def on_grid(wanted: Workload, batch_sizes: tuple[int, ...]) -> Workload:
    """The workload at these batch sizes, evaluated as often as the largest of them allows."""
    return replace(wanted, batch_sizes=batch_sizes, evaluate_every=max(EVERY_SAMPLES, batch_sizes[-1]))


def curves(family: Family, name: str, data: Path, work: Path, processes: int | None) -> list[LearningCurve]:
    """The learning curves of one data set, all batch sizes and seeds."""
    wanted = workload(family, name, data, work)
    folder, progress = work / slug(family.name) / slug(name), _progress(f"{family.name} on {name}")
    found: list[LearningCurve] = []
    for _, sizes in itertools.groupby(wanted.batch_sizes, lambda size: max(EVERY_SAMPLES, size)):
        on = on_grid(wanted, tuple(sizes))
        found += sweep(on, seeds=SEEDS, folder=folder, processes=processes, progress=progress)
    # Of one workload but for the evaluations, which are part of a fingerprint.
    return [one.model_copy(update={"fingerprint": found[0].fingerprint}) for one in found]


def _progress(what: str) -> Callable[[int, int, str], None]:
    return lambda done, total, line: print(f"{what}, {done}/{total}: {line}", flush=True)
