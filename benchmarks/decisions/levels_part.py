"""The level of the proxy's target: which share of the way to the plateau to train it to, if nobody knows the target's.

A rule is chosen on MNIST's targets and judged on the others'. Every rule gets the same proxy runs and devices, and the
target lies at each of the recorded levels in turn.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.decisions.estimators import SEEDS, Bank, Decision, SampleTimes, ours, raw_means, regret
from benchmarks.decisions.pipeline_part import device
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


def progress(path: Path) -> dict[str, float]:
    """Whether a run's progress at a tenth of the predicted samples tells that the proxy misleads.

    Over targets, learning rates, levels and batch sizes: rank correlation between how far the progress is from the
    proxy's, and how far the relative samples are from the proxy's; both as logarithms.
    """
    tenths: dict[tuple[str, ...], list[float]] = {}
    samples: dict[tuple[str, ...], list[float]] = {}
    columns = ("family", "role", "workload", "learning_rate_at_32", "target_quantile", "batch_size")
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = tuple(row[name] for name in columns)
            samples.setdefault(key, []).append(math.log(float(row["samples_to_target"] or row["samples_budget"])))
            if row["progress_at_tenth"]:
                tenths.setdefault(key, []).append(float(row["progress_at_tenth"]))
    pairs = []
    for key, own in tenths.items():
        proxy = next(one for one in samples if one[0] == key[0] and one[1] == "proxy" and one[3:] == key[3:])
        if key[1] == "target" and proxy in tenths and min(fmean(own), fmean(tenths[proxy])) > 0:
            largest = tuple((*one[:5], "128") for one in (key, proxy))
            apart = [
                fmean(samples[one]) - fmean(samples[last]) for one, last in zip((key, proxy), largest, strict=True)
            ]
            pairs.append((abs(math.log(fmean(own) / fmean(tenths[proxy]))), abs(apart[0] - apart[1])))
    found = spearmanr(*np.array(pairs).T)
    return {"correlation": round(float(found.statistic), 2), "p": round(float(found.pvalue), 2), "count": len(pairs)}
