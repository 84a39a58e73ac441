"""Positions that samplers keep outside the shared random state: epochs, counters and generators of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterableDataset

from wattune.loop.rng_state import set_state, state_of

PARTS = ("sampler", "batch_sampler", "dataset")
"""Attributes of a loader that may decide the order of its samples; a data set does if it has no indices."""


class OrderState:
    """Positions of one loader's samplers, as JSON values.

    Counters are the whole numbers in a sampler's attributes that have changed since this object was made.
    """

    def __init__(self, loader: Any):
        parts = {name: getattr(loader, name, None) for name in PARTS}
        if not isinstance(parts["dataset"], IterableDataset):
            del parts["dataset"]
        self._parts = {name: part for name, part in parts.items() if part is not None}
        self._first = {name: _attributes(part) for name, part in self._parts.items()}

    def state_dict(self) -> dict[str, Any]:
        """Positions by the name of the part; those of a part with a ``state_dict`` are that."""
        return {name: state for name, part in self._parts.items() if (state := self._state(name, part))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``; a sampler whose epoch the user has set already keeps it."""
        for name, positions in state.items():
            part = self._parts.get(name)
            if part is None:
                continue
            if _has_epoch(part):
                if part.epoch == 0 and "epoch" in positions:
                    part.set_epoch(positions["epoch"])
            elif hasattr(part, "load_state_dict"):
                part.load_state_dict(positions)
            else:
                for attribute, value in positions.items():
                    _restore(part, attribute, value)

    def _state(self, name: str, part: Any) -> dict[str, Any]:
        if _has_epoch(part):
            return {"epoch": part.epoch}
        if hasattr(part, "state_dict"):
            return dict(part.state_dict())
        first = self._first[name]
        return {key: value for key, value in _attributes(part).items() if value != first.get(key)}


def _has_epoch(part: Any) -> bool:
    return hasattr(part, "set_epoch") and isinstance(getattr(part, "epoch", None), int)


def _attributes(part: Any) -> dict[str, Any]:
    """Whole numbers and states of generators in attributes of a sampler, as JSON values."""
    found = {name: _value(one) for name, one in vars(part).items()} if hasattr(part, "__dict__") else {}
    return {name: value for name, value in found.items() if value is not None}


def _value(one: Any) -> Any:
    if isinstance(one, torch.Generator):  # among the random states of the pass
        return None
    return one if type(one) is int else state_of(one)


def _restore(part: Any, name: str, value: Any) -> None:
    one = getattr(part, name, None)
    if type(_value(one)) is not type(value):  # of another sampler
        return
    if isinstance(value, int):
        setattr(part, name, value)
    else:
        set_state(one, value)
