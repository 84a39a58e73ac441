"""`python -m benchmarks learning_rate`: does another learning rate by batch size need fewer samples to the target?

Rules: Adam's rate times (b / 32)^p, with betas as they are or raised to the power b / 32, which keeps their half-life
in samples. The rate at batch size 32 is tuned for each workload. The rule with the least time to the target on the
first three workloads is judged against the square root on the other three. Ten CPU minutes.
"""

from __future__ import annotations

import asyncio
import email
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.timing import keep
from wattune.proxy.run import ProxyRun
from wattune.workloads import Model, Workload
from wattune.workloads.example import Digits
from wattune.workloads.models import CharacterTransformer, resnet8, small_cnn
from wattune.workloads.texts import Text

NAME = "learning_rate"
AT = 32
SIZES = (4, 16, AT, 64, 128)
SEEDS = range(5)
RATES = (3e-3, 1e-2, 3e-2)
FIXED_SAMPLES = np.geomspace(1, 300, 41)
"""Fixed time of a step over its time for a sample: one device each."""


@dataclass(frozen=True)
class Rule:
    """Adam by batch size."""

    rate: float
    exponent: float
    keeps_half_life: bool = False

    def __call__(self, model: nn.Module, batch_size: int) -> torch.optim.Optimizer:
        """Make an optimizer of all parameters."""
        share = batch_size / AT
        power = share if self.keeps_half_life else 1.0
        return torch.optim.Adam(
            model.parameters(), lr=self.rate * share**self.exponent, betas=(0.9**power, 0.999**power)
        )


ROOT = "p 0.50"
RULES = {
    f"p {exponent:.2f}{', half-life kept' * keeps}": (exponent, keeps)
    for keeps in (False, True)
    for exponent in (0.33, 0.5, 1.0)
}


def perceptron(width: int) -> nn.Module:
    """Two hidden layers on 8 x 8 pixels."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def digits(name: str, model: Model, size: int, target: float, **options: Any) -> Workload:
    """Train on scikit-learn's digits."""
    return Workload(
        name,
        model=model,
        data=Digits(size, **options),
        input_shape=(1, size, size),
        target=target,
        budget_samples=16384,
        evaluate_every=128,
    )


def characters(name: str, library: str, layers: int, width: int, target: float) -> Workload:
    """Train on the source of a library of Python's."""
    files = tuple(sorted(Path(library).parent.glob("*.py")))
    return Workload(
        name,
        model=Model(CharacterTransformer, {"length": 32, "layers": layers, "heads": 2, "width": width}),
        data=Text(files, 32, vocabulary="ascii", test_share=0.03),
        input_shape=(32,),
        task="language",
        target=target,
        budget_samples=12288,
        evaluate_every=128,
    )


TO_CHOOSE = (
    digits("digits, perceptron", Model(perceptron, {"width": 64}), 8, 0.9),
    digits("digits, small convolutions", Model(small_cnn, {"width": 8, "channels": 1}), 16, 0.9),
    characters("asyncio, one layer", asyncio.__file__, 1, 32, 0.36),
)
TO_JUDGE = (
    digits("inverted noisy digits, perceptron", Model(perceptron, {"width": 128}), 8, 0.85, invert=True, noise=0.2),
    digits(
        "inverted noisy digits, ResNet-8", Model(resnet8, {"width": 8, "channels": 1}), 16, 0.85, invert=True, noise=0.3
    ),
    characters("email, two layers", email.__file__, 2, 48, 0.36),
)


def samples(workload: Workload, rule: Rule, batch_size: int) -> list[int]:
    """Samples to the target of each seed; the budget where it is not reached."""
    trained = replace(workload, optimizer=rule)
    runs = [ProxyRun("", batch_size, seed, "backprop", None).train(trained) for seed in SEEDS]
    return [run.samples if run.reached else workload.budget_samples for run in runs]


def measure(workload: Workload, names: list[str]) -> dict[str, Any]:
    """Tune the rate at one batch size, then train each rule at all others."""
    tuned = {rate: samples(workload, Rule(rate, 0.5), AT) for rate in RATES}
    rate = min(tuned, key=lambda one: sum(map(math.log, tuned[one])))
    rules: dict[str, dict[int, list[int]]] = {}
    for name in names:
        rule = Rule(rate, *RULES[name])
        rules[name] = {size: tuned[rate] if size == AT else samples(workload, rule, size) for size in SIZES}
        print(workload.name, name, {size: round(math.exp(_log(one))) for size, one in rules[name].items()}, flush=True)
    return {"rate": rate, "samples": rules, "times": {name: _over_root(rules, name) for name in names}}


def _over_root(rules: dict[str, dict[int, list[int]]], name: str) -> dict[str, float]:
    """Time to the target at the best batch size over the square root's, mean over devices, with its jackknife error."""
    logs = [_log_ratio(rules, name, left) for left in SEEDS]
    error = math.sqrt((len(logs) - 1) * np.var(logs))
    return {"times": math.exp(_log_ratio(rules, name, None)), "error": error}


def _log_ratio(rules: dict[str, dict[int, list[int]]], name: str, left: int | None) -> float:
    best = [
        np.log(
            np.min([math.exp(_log(one, left)) * (1 + FIXED_SAMPLES / size) for size, one in rules[way].items()], axis=0)
        )
        for way in (name, ROOT)
    ]
    return float(np.mean(best[0] - best[1]))


def _log(samples_of_seeds: list[int], left: int | None = None) -> float:
    return float(np.mean([math.log(one) for seed, one in enumerate(samples_of_seeds) if seed != left]))


def main(arguments: list[str]) -> None:
    """Choose a rule on three workloads, and judge it on the others."""
    torch.set_num_threads(1)
    chosen_on = {workload.name: measure(workload, list(RULES)) for workload in TO_CHOOSE}
    means = {name: _mean(chosen_on, name) for name in RULES}
    winner = min((name for name in RULES if name != ROOT), key=means.__getitem__)
    judged_on = {workload.name: measure(workload, [ROOT, winner]) for workload in TO_JUDGE}
    judged = {"times": _mean(judged_on, winner)}
    keep(NAME, {"chosen_on": chosen_on, "means": means, "winner": winner, "judged_on": judged_on, "judged": judged})


def _mean(measured: dict[str, dict[str, Any]], name: str) -> float:
    return math.exp(float(np.mean([math.log(one["times"][name]["times"]) for one in measured.values()])))
