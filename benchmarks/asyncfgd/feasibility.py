"""Memory limits under which each training algorithm fits, and its cost: `python -m benchmarks asyncfgd`.

Cases are generated: a model and a memory limit, on a simulated board under a cap, with batches that may be trained in
parts. Memory is counted from the operations of a step (modelled), step times and powers come from the board's formulas
(simulated), and samples relative to backprop from recorded runs (measured, on other and smaller models). The point is
then chosen as `wattune plan --also` does.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.asyncfgd.synthetic_models import SyntheticModel, convolutions, perceptron
from benchmarks.timing import RESULTS, keep
from wattune.algorithms import open_algorithm, takes_micro_batches
from wattune.cap import PowerCap
from wattune.devices import open_device
from wattune.errors import CapError, InputError, NoFeasiblePoint
from wattune.planning import learns_as, plan, plan_algorithms
from wattune.point import BatchShape, OperatingPoint
from wattune.records import EfficiencyPoint, Plan, ProfileCell, ProfileTable, SampleEfficiency, provenance
from wattune.workloads.models import CharacterTransformer, resnet8, resnet20

ACCURACY = RESULTS / "asyncfgd_accuracy.json"
"""Samples to target of each algorithm on five small tasks. README.md says how they were measured."""

BOARD = "jetson-nano"
CAP_W = 4.5
BATCH = 32
SAMPLES = 1000.0
"""Samples that backprop needs at every batch size; only ratios matter, so any number would do."""

ALGORITHMS = {
    "backprop": "backprop",
    "backprop, checkpointed": "backprop:checkpoint=auto",
    "forward gradient": "forward-gradient",
    "forward gradient, activities": "forward-gradient:perturb=activities",
    "AsyncFGD": "async-fgd:modules=4,perturb=weights",
    "AsyncFGD, activities": "async-fgd:modules=4,perturb=activities",
    "last layer by backprop, rest frozen": "backprop:last=1",
    "last block and layer by backprop, rest frozen": "backprop:last=3",
}
"""Name in the tables, as in the recorded runs -> spec."""

# ------------------------------------------------------------------------------------------------------------- models


def _model(
    name: str, build: Callable[[], nn.Module], *shape: int, classes: int = 10, text: bool = False
) -> SyntheticModel:
    return SyntheticModel(build, shape, classes, text, name)


MODELS = (
    _model("CNN, 4 layers", lambda: convolutions(4), 3, 32, 32),
    _model("CNN, 16 layers", lambda: convolutions(16), 3, 32, 32),
    _model("CNN, 64 layers", lambda: convolutions(64), 3, 32, 32),
    _model("CNN, 64 layers, 64x64", lambda: convolutions(64), 3, 64, 64),
    _model("ResNet8", resnet8, 3, 32, 32),
    _model("ResNet20", resnet20, 3, 32, 32),
    _model("transformer, 6 layers of 64", lambda: CharacterTransformer(width=64), 64, classes=96, text=True),
    _model("MLP, 8 x 256", lambda: perceptron(8, 256), 256),
)


# ------------------------------------------------------------------------------------------------------------- samples


class Ratio(NamedTuple):
    """Samples relative to backprop at the same batch size, least and most over the tasks; None if none reached it."""

    least: float | None
    most: float | None
    source: str


def ratios(accuracy: dict[str, Any]) -> dict[str, Ratio]:
    """Sample ratios by algorithm. ``accuracy``: the recorded runs."""
    by_algorithm: dict[str, Ratio] = {}
    for name in ALGORITHMS:
        if name.startswith("backprop"):
            continue
        by_task = {task: _ratio(result["algorithms"], name) for task, result in accuracy["tasks"].items()}
        tried = {task: ratio for task, ratio in by_task.items() if name in accuracy["tasks"][task]["algorithms"]}
        reached = [ratio for ratio in tried.values() if ratio is not None]
        source = f"measured: reached backprop's target on {len(reached)} of {len(tried)} tasks"
        by_algorithm[name] = Ratio(min(reached, default=None), max(reached, default=None), source)
    return by_algorithm


def _ratio(algorithms: dict[str, Any], name: str) -> float | None:
    """Mean samples to the target over backprop's; None if a seed did not reach it."""
    needed = [algorithms.get(one, {}).get("samples_to_target") for one in (name, "backprop")]
    if any(samples is None or None in samples for samples in needed):
        return None
    return float(statistics.mean(needed[0]) / statistics.mean(needed[1]))


def curve(spec: str, times: float | None, sizes: Sequence[int]) -> SampleEfficiency:
    """A curve on which every batch size needs the same samples, ``times`` backprop's; None: the target is not reached.

    Small batches seldom need more samples than large ones, so this favours algorithms with less memory per sample.
    """
    samples = SAMPLES * (times or 1.0)
    points = tuple(
        EfficiencyPoint(batch_size=b, relative_samples=None if times is None else 1.0, samples=samples) for b in sizes
    )
    return SampleEfficiency(workload="any", algorithm=spec, target=1.0, reference_batch_size=max(sizes), points=points)


# --------------------------------------------------------------------------------------------------------------- cases

Rows = tuple[tuple[int, int], ...]

ROWS: Rows = ((1, 1), (8, 1), (8, 8), (BATCH, 1), (BATCH, 8), (BATCH, BATCH))
"""Batch sizes and micro-batch sizes that may be chosen."""

SHARES = (0.8, 0.5, 0.3, 0.15, 0.1, 0.06, 0.03, 0.015, 0.006)
"""Memory limits as shares of backprop's memory with one whole batch of ``BATCH``, from nearly enough to too little for
any algorithm."""


def table(model: SyntheticModel, spec: str, rows: Rows) -> ProfileTable:
    """Time and power of each row at each clock, by the board's formulas. Raises: InputError if unsupported."""
    works = {
        BatchShape(batch_size, micro): open_algorithm(spec, model, batch_size, micro_batch_size=micro).work()
        for batch_size, micro in rows
        if micro == batch_size or takes_micro_batches(spec)
    }
    device = open_device(f"sim:{BOARD}")
    cells = [
        ProfileCell(
            **OperatingPoint(shape, knobs).fields(),
            step_s=step.step_s,
            power_mean_w=step.power_mean_w,
            power_peak_w=step.power_peak_w,
            memory_bytes=work.peak_memory_bytes,
        )
        for shape, work in works.items()
        for knobs, step in device.exact_steps(work).items()
    ]
    origin = provenance("simulated", device=device.name)
    return ProfileTable(device=device.name, workload=model.name, algorithm=spec, cells=tuple(cells), provenance=origin)


def cases(samples: dict[str, Ratio]) -> Iterator[dict[str, Any]]:
    """Every case, with the best choice under its limit and the cost of each algorithm."""
    for model in MODELS:
        tables = _tables(model)
        print(f"{model.name} counted", flush=True)
        whole_bytes = max(cell.memory_bytes or 0.0 for cell in tables["backprop"].cells)
        for share in SHARES:
            yield {"model": model.name, "share": share, **_case(tables, samples, share * whole_bytes)}


def _tables(model: SyntheticModel) -> dict[str, ProfileTable]:
    tables = {}
    for name, spec in ALGORITHMS.items():
        with suppress(InputError):  # the algorithm refuses the model
            tables[name] = table(model, spec, ROWS)
    return tables


def _case(tables: dict[str, ProfileTable], samples: dict[str, Ratio], limit_bytes: float) -> dict[str, Any]:
    sizes = sorted({cell.batch_size for cell in tables["backprop"].cells})
    curves = {
        name: curve(profile.algorithm, samples[name].least, sizes)
        for name, profile in tables.items()
        if not name.startswith("backprop")
    }
    curves["backprop"] = curve("backprop", 1.0, sizes)
    free = plan(tables["backprop"], curves["backprop"], cap=PowerCap(CAP_W))
    assert free.predicted_s is not None
    chosen: Plan | None = None
    with suppress(CapError, NoFeasiblePoint):
        chosen = plan_algorithms(
            list(tables.values()), list(curves.values()), cap=PowerCap(CAP_W), memory_bytes=limit_bytes
        )
    figures: dict[str, Any] = {}
    for name, profile in tables.items():
        least = min(cell.memory_bytes or 0.0 for cell in profile.cells)
        own = curves["backprop" if learns_as(profile.algorithm) == "backprop" else name]
        figures[name] = {"least_bytes": least, "fits": least <= limit_bytes, "cost": None}
        with suppress(CapError, NoFeasiblePoint):
            best = plan(profile, own, cap=PowerCap(CAP_W), memory_bytes=limit_bytes)
            assert best.predicted_s is not None
            figures[name]["cost"] = best.predicted_s / free.predicted_s
    by_spec = {spec: name for name, spec in ALGORITHMS.items()}
    return {
        "limit_bytes": limit_bytes,
        "chosen": None if chosen is None else by_spec[chosen.algorithm],
        "algorithms": figures,
    }


# --------------------------------------------------------------------------------------------------------------- table


def main(arguments: Sequence[str] = ()) -> None:
    """Generate and store the cases. Raises: InputError for any argument."""
    if arguments:
        raise InputError("arguments of asyncfgd", value=" ".join(arguments), allowed="none")
    torch.set_num_threads(1)
    samples = ratios(json.loads(ACCURACY.read_text()))
    results: dict[str, Any] = {
        "board": BOARD,
        "cap_w": CAP_W,
        "batch_size": BATCH,
        "ratios": {name: ratio._asdict() for name, ratio in samples.items()},
        "cases": list(cases(samples)),
    }
    keep("asyncfgd_feasibility", results)


def markdown(results: dict[str, Any]) -> str:
    """The results as sentences, with the sample ratios that they rest on."""
    lines = [
        f"{len(results['cases'])} cases on `sim:{results['board']}` under a cap of {results['cap_w']:g} W. Each memory "
        f"limit is a share of what backprop needs for a whole batch of {results['batch_size']}; batches of 1, 8 and "
        f"{results['batch_size']} may be trained in micro-batches of 1 and 8. Each cost is the time to the target "
        "relative to backprop without a limit, with the lowest sample ratio below, which favours what reached the "
        "target of one task only. Memory is modelled; time and power are simulated.",
        "",
        "| algorithm | samples relative to backprop | source |",
        "|---|---|---|",
        *(f"| {name} | {_span(ratio)} | {ratio['source']} |" for name, ratio in results["ratios"].items()),
        "",
        verdict(results),
    ]
    return "\n".join(lines) + "\n"


def verdict(results: dict[str, Any]) -> str:
    """Sentences: how often each algorithm is chosen, and the cases that forward gradients win."""
    picks = [case["chosen"] for case in results["cases"]]
    counts = {name: picks.count(name) for name in ALGORITHMS}
    listing = "; ".join(f"{name} ({count})" for name, count in counts.items() if count)
    text = f"Nothing fits in {picks.count(None)} of {len(picks)} cases. Chosen in the others: {listing or 'nothing'}."
    for group, start in (("Forward gradients", ("forward", "async")), ("AsyncFGD", ("async",))):
        wins = [case for case in results["cases"] if ALGORITHMS.get(case["chosen"], "").startswith(start)]
        if not wins:
            text += f" {group} win{'s' if group == 'AsyncFGD' else ''} nowhere."
            continue
        costs = [case["algorithms"][case["chosen"]]["cost"] for case in wins]
        text += (
            f" {group} win{'s' if group == 'AsyncFGD' else ''} {len(wins)} cases, at {min(costs):.3g} to "
            f"{max(costs):.3g} times the training time of backprop without a limit."
        )
    return text


def _span(ratio: dict[str, Any]) -> str:
    if ratio["least"] is None:
        return "target not reached"
    low, high = f"{ratio['least']:.3g}", f"{ratio['most']:.3g}"
    return low if low == high else f"{low} to {high}"
