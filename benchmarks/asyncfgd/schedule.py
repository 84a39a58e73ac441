"""AsyncFGD's alpha schedule, run to its end on a pre-trained network: `python -m benchmarks schedule [processes]`.

The network is the twin of the engines' example: frozen layers, adapters that learn, and a head, on turned digits. The
schedule trains the head alone for 10 epochs, and raises alpha to 0.15 over 10 more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.asyncfgd.engines import BATCH, spread, trained
from benchmarks.tables.results import table
from benchmarks.timing import keep
from wattune.algorithms.forward.alpha import Schedule

STEPS, EPOCH = 800, 1297
"""Steps, and samples of an epoch: the digits to train on."""

SCHEDULE = f"alpha=0.15,epoch_samples={EPOCH}"

SPECS = {
    "backprop of the head": "backprop:last=1",
    "weights": "async-fgd:modules=4,perturb=weights",
    "weights, schedule": f"async-fgd:modules=4,perturb=weights,{SCHEDULE}",
    "activities": "async-fgd:modules=4",
    "activities, schedule": f"async-fgd:modules=4,{SCHEDULE}",
    "backprop": "backprop",
}


def main(arguments: Sequence[str] = ()) -> None:
    """Choose a rate for each, train with five seeds, and store the accuracies."""
    methods = trained(
        {name: ("twin", spec) for name, spec in SPECS.items()}, STEPS, int(arguments[0]) if arguments else 1
    )
    alpha = Schedule(alpha=0.15, epoch_samples=EPOCH).at(STEPS * BATCH)
    keep("asyncfgd_schedule", {"epochs": STEPS * BATCH / EPOCH, "alpha": alpha, "methods": methods})


def markdown(results: dict[str, Any]) -> str:
    """The results as a table."""
    rows = [(name, f"{one['rate']:g}", spread(one["accuracies"])) for name, one in results["methods"].items()]
    return table("trained | learning rate | accuracy, mean (least to most)", rows) + (
        f"\nFive seeds of {results['epochs']:.0f} epochs; the schedule ends after 20 of them, with an alpha of "
        f"{results['alpha']:g}. Each rate is chosen on another rotation.\n"
    )
