"""Positions that samplers keep outside the shared random state: epochs, counters and generators of their own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

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
    found: dict[str, Any] = {}
    for name, one in vars(part).items() if hasattr(part, "__dict__") else ():
        if type(one) is int:
            found[name] = one
        elif type(one) is random.Random:
            version, words, gauss = one.getstate()
            found[name] = [version, list(words), gauss]
        elif isinstance(one, np.random.Generator):
            found[name] = _plain(one.bit_generator.state)
        elif isinstance(one, np.random.RandomState):
            found[name] = _plain(one.get_state(legacy=False))
    return found


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state


def _restore(part: Any, name: str, value: Any) -> None:
    one = getattr(part, name, None)
    if type(one) is int and isinstance(value, int):
        setattr(part, name, value)
    elif type(one) is random.Random and isinstance(value, list):
        one.setstate((value[0], tuple(value[1]), value[2]))
    elif isinstance(one, np.random.Generator) and isinstance(value, dict):
        one.bit_generator.state = value
    elif isinstance(one, np.random.RandomState) and isinstance(value, dict):
        state = value["state"]
        one.set_state({**value, "state": {**state, "key": np.asarray(state["key"], dtype=np.uint32)}})
