"""The level of the proxy's target: which share of the way to the plateau to train it to, if nobody knows the target's.

A rule is chosen on MNIST's targets and judged on the others'. Every rule gets the same proxy runs and devices, and the
target lies at each of the recorded levels in turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from benchmarks.decisions.estimators import SEEDS, Bank, Decision, SampleTimes, ours, raw_means, regret
from benchmarks.decisions.profiling_part import device
from benchmarks.decisions.scoring import regrets
from benchmarks.decisions.sweeps import Key, Sweep, truth

CASES = 40
"""Devices for each target and learning rate."""

CHOSEN_ON = "mnist"
"""Family whose targets choose the rule; the other families judge it."""

WAYS: dict[str, Callable[[Bank, SampleTimes], Decision]] = {"ours": ours, "means of 6 x 5 runs": raw_means}


def cases(sweeps: Sequence[Sweep]) -> list[dict[str, Any]]:
    """One row for each target, level, device, way to estimate, and rule for the proxy's level."""
    by_key = {sweep.key: sweep for sweep in sweeps}
    levels = sorted({key.quantile for key in by_key})
    rows = []
    for key in [key for key in by_key if key.role == "target" and key.quantile == levels[0]]:
        targets = {level: truth(by_key[key._replace(quantile=level)].runs) for level in levels}
        proxies = {one.quantile: by_key[one] for one in by_key if _is_proxy_of(one, key)}
        for number in range(CASES):
            draw = random.Random(f"levels {key.family} {key.workload} {key.rate} {number}")
            _, times = device(number, draw)
            seeds = draw.sample(range(10), SEEDS)
            for way, choose in WAYS.items():
                chosen = {level: choose(Bank(proxies[level].some(seeds)), times) for level in levels}
                for level, true in targets.items():
                    lost = {f"{one:.0%}": regret(decision, times, true) for one, decision in chosen.items()}
                    lost |= {"the target's own": lost[f"{level:.0%}"]}
                    lost |= {"another": fmean(lost[f"{one:.0%}"] for one in levels if one != level)}
                    group = f"{key.family} {key.workload} {key.rate:g}"
                    rows += [
                        {"way": way, "rule": rule, "family": key.family, "group": group, "regret": one}
                        for rule, one in lost.items()
                    ]
    return rows


def _is_proxy_of(one: Key, target: Key) -> bool:
    return (one.family, one.rate, one.role) == (target.family, target.rate, "proxy")


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Regret by way, rule and family, and the rule of one level that is best where it is chosen."""
    found: dict[str, Any] = {}
    for row in rows:
        found.setdefault(row["way"], {}).setdefault(row["rule"], {}).setdefault(row["family"], []).append(row)
    for rules in found.values():
        for families in rules.values():
            for family, some in families.items():
                families[family] = regrets([row["regret"] for row in some], [row["group"] for row in some])
    rules = found["ours"]
    shares = [rule for rule in rules if rule.endswith("%")]
    return {"auto": min(shares, key=lambda rule: rules[rule][CHOSEN_ON]["mean"]), "ways": found}
