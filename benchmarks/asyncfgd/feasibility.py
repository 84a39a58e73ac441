"""Memory limits under which each training algorithm fits, and its cost: `python -m benchmarks asyncfgd`.

Cases are generated: a model and a memory limit, on a simulated board under a cap, with batches that may be trained in
parts. Memory is counted from the operations of a step (modelled), step times and powers come from the board's formulas
(simulated), and samples relative to backprop from recorded runs (measured, on other and smaller models). The point is
then chosen as `wattune plan --also` does.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from benchmarks.asyncfgd.synthetic_models import MODELS, SyntheticModel
from benchmarks.groups import exact_cells
from benchmarks.tables.results import table
from benchmarks.timing import RESULTS, keep
from wattune.algorithms import open_algorithm, takes_micro_batches
from wattune.cap import PowerCap
from wattune.devices import open_device
from wattune.errors import CapError, InputError, NoFeasiblePoint
from wattune.planning import learns_as, plan, plan_algorithms
from wattune.point import BatchShape
from wattune.records import (
    EfficiencyPoint,
    Plan,
    ProfileTable,
    SampleEfficiency,
    StepWork,
    provenance,
)

ACCURACY = RESULTS / "asyncfgd_accuracy.json"
"""Samples to target of each algorithm on small tasks: ``accuracy``."""

BOARDS = {"jetson-nano": 4.5, "jetson-agx-orin": 15.0}
"""Simulated board -> cap in watts. AsyncFGD's paper names the latter."""

BATCH = 32
SAMPLES = 1000.0
"""Samples that backprop needs at every batch size; only ratios matter, so any number would do."""

ALGORITHMS = {
    "backprop": "backprop",
    "backprop, checkpointed": "backprop:checkpoint=auto",
    "forward gradient": "forward-gradient",
    "forward gradient, activities": "forward-gradient:perturb=activities",
    "AsyncFGD": "async-fgd:modules=4,perturb=weights",
    "AsyncFGD, activities": "async-fgd:directions=4,modules=4",
    "last layer by backprop, rest frozen": "backprop:last=1",
    "last block and layer by backprop, rest frozen": "backprop:last=3",
}
"""Name in the tables, as in the recorded runs -> spec."""

CUT = [model for name, model in MODELS.items() if name != "LSTM"]
"""Models with parts."""

# ------------------------------------------------------------------------------------------------------------- samples


Ratios = dict[str, list[float | None]]
"""Algorithm -> samples to the target over backprop's in each task that tried it; None if a seed did not reach it."""


def ratios(accuracy: dict[str, Any]) -> Ratios:
    """Sample ratios of the recorded runs."""
    tasks = [task["algorithms"] for task in accuracy["tasks"].values()]
    others = [name for name in ALGORITHMS if not name.startswith("backprop")]
    return {name: [_ratio(task, name) for task in tasks if name in task] for name in others}


def _ratio(task: dict[str, Any], name: str) -> float | None:
    needed, backprops = (task[one]["samples_to_target"] for one in (name, "backprop"))
    return None if None in needed + backprops else float(statistics.mean(needed) / statistics.mean(backprops))


def _reached(found: list[float | None]) -> list[float]:
    return [ratio for ratio in found if ratio is not None]


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

ROWS = ((1, 1), (8, 1), (8, 8), (BATCH, 1), (BATCH, 8), (BATCH, BATCH))
"""Batch sizes and micro-batch sizes that may be chosen."""

SHARES = (0.8, 0.5, 0.3, 0.15, 0.1, 0.06, 0.03, 0.015, 0.006)
"""Memory limits as shares of backprop's memory with one whole batch of ``BATCH``, from nearly enough to too little for
any algorithm."""


def works(model: SyntheticModel, spec: str) -> dict[BatchShape, StepWork]:
    """The work of a step of each row. Raises: InputError if unsupported."""
    return {
        BatchShape(batch_size, micro): open_algorithm(spec, model, batch_size, micro_batch_size=micro).work()
        for batch_size, micro in ROWS
        if micro == batch_size or takes_micro_batches(spec)
    }


def profiled(model: SyntheticModel, spec: str, works: dict[BatchShape, StepWork], board: str) -> ProfileTable:
    """Time and power of each row at each clock, by the board's formulas."""
    device = open_device(f"sim:{board}")
    cells = [cell for shape, work in works.items() for cell in exact_cells(device, shape, work)]
    origin = provenance("simulated", device=device.name)
    return ProfileTable(device=device.name, workload=model.name, algorithm=spec, cells=tuple(cells), provenance=origin)


def cases(samples: Ratios) -> Iterator[dict[str, Any]]:
    """Every case, with the best choice under its limit and the cost of each algorithm."""
    for model in CUT:
        counted = {}
        for name, spec in ALGORITHMS.items():
            with suppress(InputError):  # the algorithm refuses the model
                counted[name] = works(model, spec)
        print(f"{model.name} counted", flush=True)
        whole_bytes = max(work.peak_memory_bytes for work in counted["backprop"].values())
        for board, cap_w in BOARDS.items():
            tables = {name: profiled(model, ALGORITHMS[name], own, board) for name, own in counted.items()}
            for share in SHARES:
                case = _case(tables, samples, cap_w, share * whole_bytes)
                yield {"board": board, "model": model.name, "share": share, **case}


def _case(tables: dict[str, ProfileTable], samples: Ratios, cap_w: float, limit_bytes: float) -> dict[str, Any]:
    sizes = sorted({cell.batch_size for cell in tables["backprop"].cells})
    curves = {
        name: curve(profile.algorithm, min(_reached(samples[name]), default=None), sizes)
        for name, profile in tables.items()
        if not name.startswith("backprop")
    }
    curves["backprop"] = curve("backprop", 1.0, sizes)
    cap = PowerCap(cap_w)
    free = plan(tables["backprop"], curves["backprop"], cap=cap)
    assert free.predicted_s is not None
    chosen: Plan | None = None
    with suppress(CapError, NoFeasiblePoint):
        chosen = plan_algorithms(list(tables.values()), list(curves.values()), cap=cap, memory_bytes=limit_bytes)
    figures: dict[str, Any] = {}
    for name, profile in tables.items():
        least = min(cell.memory_bytes or 0.0 for cell in profile.cells)
        own = curves["backprop" if learns_as(profile.algorithm) == "backprop" else name]
        figures[name] = {"least_bytes": least, "fits": least <= limit_bytes, "cost": None}
        with suppress(CapError, NoFeasiblePoint):
            best = plan(profile, own, cap=cap, memory_bytes=limit_bytes)
            assert best.predicted_s is not None
            figures[name]["cost"] = best.predicted_s / free.predicted_s
    by_spec = {spec: name for name, spec in ALGORITHMS.items()}
    return {
        "limit_bytes": limit_bytes,
        "chosen": None if chosen is None else by_spec[chosen.algorithm],
        "algorithms": figures,
    }


# --------------------------------------------------------------------------------------------------------------- table


def main() -> None:
    """Generate and store the cases."""
    torch.set_num_threads(1)
    samples = ratios(json.loads(ACCURACY.read_text()))
    results: dict[str, Any] = {"boards": BOARDS, "batch_size": BATCH, "ratios": samples}
    keep("asyncfgd_feasibility", {**results, "cases": list(cases(samples))})


def markdown(results: dict[str, Any]) -> str:
    """The results as sentences, with the sample ratios that they rest on."""
    boards = " and ".join(f"`sim:{board}` under a cap of {cap_w:g} W" for board, cap_w in results["boards"].items())
    rows = []
    for name, found in results["ratios"].items():
        span = " to ".join(dict.fromkeys(f"{end(_reached(found)):.3g}" for end in (min, max) if _reached(found)))
        rows.append((name, span or "target not reached", f"{len(_reached(found))} of {len(found)}"))
    return (
        f"{len(results['cases'])} cases on {boards}. Each memory "
        f"limit is a share of what backprop needs for a whole batch of {results['batch_size']}; batches of 1, 8 and "
        f"{results['batch_size']} may be trained in micro-batches of 1 and 8. Each cost is the time to the target "
        "relative to backprop without a limit, with the lowest sample ratio below, which favours what reached the "
        "target of one task only. Memory is modelled; time and power are simulated.\n\n"
        f"{table('algorithm | samples relative to backprop, measured | tasks whose target it reached', rows)}"
        f"\n{verdict(results)}\n"
    )


def verdict(results: dict[str, Any]) -> str:
    """Sentences: how often each algorithm is chosen, and the cases that forward gradients win."""
    texts = []
    for board, cap_w in results["boards"].items():
        picks = [case["chosen"] for case in results["cases"] if case["board"] == board]
        counts = {name: picks.count(name) for name in ALGORITHMS}
        listing = "; ".join(f"{name} ({count})" for name, count in counts.items() if count)
        texts.append(
            f"On `sim:{board}` under {cap_w:g} W nothing fits in {picks.count(None)} of {len(picks)} cases. Chosen in "
            f"the others: {listing or 'nothing'}."
        )
    text = " ".join(texts)
    for group, start in (("forward gradients", ("forward", "async")), ("AsyncFGD", ("async",))):
        wins = [case for case in results["cases"] if ALGORITHMS.get(case["chosen"], "").startswith(start)]
        costs = [case["algorithms"][case["chosen"]]["cost"] for case in wins]
        times = f", at up to {max(costs):.3g} times the training time of backprop without a limit" if wins else ""
        text += f" Cases won by {group}: {len(wins) or 'none'}{times}."
    return text
