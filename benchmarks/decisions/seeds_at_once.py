"""Several seeds for each of the first three batch sizes: regret and requests, on the same runs and devices.

A stack of seeds takes little longer than one run. Later runs are single, as each depends on the results so far.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from benchmarks.decisions import estimators
from benchmarks.decisions.efficiency_part import device, regret
from benchmarks.decisions.estimators import Bank
from benchmarks.decisions.scoring import paired, regrets
from benchmarks.decisions.sweeps import Sweep, pairs, truth

DEVICES = 20
SEEDS = (1, 2, 3)


def compare(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """Figures by number of seeds; ``longest``: time of the longest runs of all requests, relative to one seed."""
    rows: dict[int, list[tuple[float, Bank]]] = {seeds: [] for seeds in SEEDS}
    groups = []
    for proxy, target in pairs(sweeps):
        true = truth(target.runs)
        for number in range(DEVICES):
            draw = random.Random(f"{proxy.key} {target.key.workload} {number}")
            _, times = device(number, draw)
            count = len(next(iter(proxy.runs.values())))
            runs = proxy.some(draw.sample(range(count), count))
            groups.append(f"{target.key.family} {target.key.workload} {target.key.rate:g}")
            for seeds, cases in rows.items():
                bank = Bank(runs, seeds)
                decision = estimators.ours(bank, times)
                cases.append((regret(decision, times, true), bank))
    one = rows[1]
    return {
        str(seeds): {
            "regret": regrets([case for case, _ in cases], groups),
            "against one": paired([case for case, _ in cases], [case for case, _ in one], groups),
            "runs_mean": sum(len(bank.made) for _, bank in cases) / len(cases),
            "requests_mean": sum(bank.requests for _, bank in cases) / len(cases),
            "longest": sum(bank.longest for _, bank in cases) / sum(bank.longest for _, bank in one),
        }
        for seeds, cases in rows.items()
    }
