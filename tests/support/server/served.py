"""Small models as a server offers them, and requests for them."""

from __future__ import annotations

from typing import Any

from wattune.records.served import ServedModel, SweepRequest

DIGITS = {"source": "digits", "size": 8, "classes": [5, 6, 7, 8, 9]}


def model(name: str = "digits", **changes: Any) -> ServedModel:
    """A small network without weights of its own; a run of it takes about a second."""
    values: dict[str, Any] = {
        "record": "model",
        "model": name,
        "factory": "small-cnn",
        "options": {"classes": 5, "channels": 1, "width": 4},
        "input_shape": [1, 8, 8],
        "batch_sizes": [8, 16, 32, 64],
        "evaluate_every": 128,
        "budget_samples": 4096,
        "target": 0.8,
        "optimizer": {"learning_rate": 5e-3},
        "proxy": {"data": DIGITS},
    }
    return ServedModel.parse({**values, **changes})


def request(name: str = "digits", **changes: Any) -> SweepRequest:
    """A sweep of every batch size of that model, two seeds each."""
    return SweepRequest.model_validate({"model": name, "strategy": "full", "seeds": 2, **changes})


def pooled(name: str = "digits", **changes: Any) -> SweepRequest:
    """A sweep that chooses its runs itself."""
    return SweepRequest.model_validate({"model": name, **changes})
