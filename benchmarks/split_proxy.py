"""What `proxy = "split"` can promise: half of the data as the proxy of the rest, `python -m benchmarks split_proxy`.

Of each data set one half is the proxy. Every batch size is trained with several seeds on that half, on the other half
and on all of it; the pick by the first is then judged by the other two. Step times are those of a simulated board.
Further data sets: `FOLDER TARGET` of each, with train.npz and test.npz (`images`, `labels`) in the folder.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import wattune
from benchmarks.timing import keep
from wattune.cap import SensorLimit
from wattune.planning import log_step_times
from wattune.proxy import curve, sweep
from wattune.records import ProfileTable, SampleEfficiency
from wattune.workloads import Data, Model, Workload, example_workload
from wattune.workloads.data import Half, load
from wattune.workloads.models import resnet8

DEVICE, CAP_W, SEEDS = "sim:jetson-nano", 4.5, 3


class Rest:
    """The half of the training samples that ``Half`` leaves, with the whole test part."""

    def __init__(self, source: Any):
        self.source = source

    def __call__(self) -> Data:
        """The rest."""
        data = load(self.source)
        assert isinstance(data, Data)
        x, y = data.train
        order = np.random.default_rng(0).permutation(len(x))[len(x) // 2 :].copy()
        return Data((x[order], y[order]), data.test)


def judged(workload: Workload, table: ProfileTable) -> dict[str, Any]:
    """The relative samples on half, rest and all, and what the pick by half costs on the other two."""
    times = {size: mean for size, (mean, _) in log_step_times(table, SensorLimit(CAP_W, window_s=1.0)).items()}
    parts = {"half": Half(workload.data), "rest": Rest(workload.data), "all": workload.data}
    curves = {name: samples(replace(workload, data=data, proxy=None)) for name, data in parts.items()}
    usable = {
        name: {
            p.batch_size: math.log(p.relative_samples) + times[p.batch_size]
            for p in one.points
            if p.relative_samples and p.batch_size in times
        }
        for name, one in curves.items()
    }
    pick = min(usable["half"], key=lambda size: usable["half"][size])
    largest = max(usable["half"])
    return {
        "workload": workload.name,
        "pick": pick,
        "relative_samples": {
            name: {str(p.batch_size): p.relative_samples for p in one.points} for name, one in curves.items()
        },
        "regret": {
            name: math.expm1(usable[name][pick] - min(usable[name].values())) if pick in usable[name] else None
            for name in ("rest", "all")
        },
        "largest_batch_regret": {
            name: math.expm1(usable[name][largest] - min(usable[name].values())) if largest in usable[name] else None
            for name in ("rest", "all")
        },
        "largest_error": {
            name: max(
                abs(math.log((one.relative_samples or 1.0) / (other.relative_samples or 1.0)))
                for one, other in zip(curves["half"].points, curves[name].points, strict=True)
                if one.relative_samples and other.relative_samples
            )
            for name in ("rest", "all")
        },
    }


def samples(workload: Workload) -> SampleEfficiency:
    """The curve over all batch sizes and seeds."""
    return curve(
        sweep(workload, batch_sizes=workload.batch_sizes, seeds=range(SEEDS), folder=None), workload=workload.name
    )


def images(folder: Path, target: float) -> Workload:
    """The example's recipe from random weights, on the images of a folder."""
    parts = []
    for part in ("train", "test"):
        with np.load(folder / f"{part}.npz") as file:
            x, y = file["images"], file["labels"].astype(np.int64)
        parts.append((x[:, None] if x.ndim == 3 else x, y))
    (x, y), _ = parts
    example = example_workload()
    return replace(
        example,
        name=folder.name,
        model=Model(resnet8, {"classes": 1 + int(y.max()), "channels": x.shape[1]}),
        data=Data(*parts),
        input_shape=x.shape[1:],
        target=target,
        evaluate_every=256,
        budget_samples=30_000,
        proxy=None,
    )


def main(arguments: list[str]) -> None:
    """Measure, and store the results. Arguments: folder and target of each further data set."""
    table = wattune.profile(DEVICE)
    sets = [judged(example_workload(), table)]
    for folder, target in zip(arguments[::2], arguments[1::2], strict=True):
        sets.append(judged(images(Path(folder), float(target)), table))
    keep("split_proxy", {"device": DEVICE, "cap_w": CAP_W, "seeds": SEEDS, "sets": sets})
