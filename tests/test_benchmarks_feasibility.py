"""The feasibility table of the asyncfgd benchmark: where its figures come from, and that it says what they say."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.asyncfgd import feasibility
from benchmarks.asyncfgd.feasibility import ALGORITHMS, Ratios, ratios
from benchmarks.asyncfgd.synthetic_models import SyntheticModel, perceptron

pytestmark = pytest.mark.slow

OTHERS = tuple(ALGORITHMS)[2:]
"""All that have samples of their own."""


def results(**samples: dict[str, list[int | None]]) -> dict[str, Any]:
    return {
        "tasks": {
            task: {"algorithms": {name: {"samples_to_target": needed} for name, needed in found.items()}}
            for task, found in samples.items()
        }
    }


def test_ratios_are_those_of_the_trainings():
    found = ratios(
        results(
            one={"backprop": [100, 300], "forward gradient": [4000, 4000], "AsyncFGD": [None, 9000]},
            other={"backprop": [100, 100], "forward gradient": [6000, 4000]},
        )
    )
    assert found["forward gradient"] == [20.0, 50.0]
    assert found["AsyncFGD"] == [None]
    assert "backprop" not in found


@pytest.fixture
def generated(monkeypatch):
    """The whole table for one small model."""
    model = SyntheticModel(lambda: perceptron(4, 64), (64,), name="MLP")
    monkeypatch.setattr(feasibility, "CUT", (model,))

    def make(samples: Ratios) -> dict[str, Any]:
        return {
            "boards": feasibility.BOARDS,
            "batch_size": 32,
            "ratios": samples,
            "cases": list(feasibility.cases(samples)),
        }

    return make


def test_the_chosen_one_fits_and_is_the_cheapest(generated):
    found = generated({name: [33.0, 60.0] for name in OTHERS})
    assert len(found["cases"]) == 2 * len(feasibility.SHARES)
    for case in found["cases"]:
        for one in case["algorithms"].values():
            assert one["fits"] == (one["least_bytes"] <= case["limit_bytes"]) == (one["cost"] is not None)
        costs = {name: one["cost"] for name, one in case["algorithms"].items() if one["cost"] is not None}
        assert case["chosen"] == (min(costs, key=costs.__getitem__) if costs else None)
    text = feasibility.markdown(found)
    assert "| AsyncFGD | 33 to 60 | 2 of 2 |" in text
    wins = sum(ALGORITHMS.get(case["chosen"], "").startswith(("forward", "async")) for case in found["cases"])
    assert f"Cases won by forward gradients: {wins or 'none'}" in text
