"""Positions that samplers keep outside the shared random state: epochs, counters and generators of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from wattune.errors import RecordError
from wattune.loop.rng_state import generators, set_state, state_of

PARTS = ("sampler", "batch_sampler", "dataset")
"""Attributes of a loader that may decide the order of its samples; a data set does if it has no indices, and a loader
that is not a DataLoader."""

MOST = 100_000
"""Largest array or list that is looked at: of an order itself, which is as long as the data set, nothing follows."""

HOLDERS = (list, tuple, dict, FunctionType)
"""Kinds of objects, beside iterators, in which a position may be held."""

Place = tuple[str, Any, Callable[[Any], object]]
"""Path in a part of the loader, its value as JSON, and a function that sets it to such a value."""


class OrderState:
    """Positions of one loader's samplers, as JSON values.

    They are the plain values, arrays and generators in attributes of the samplers, of what these wrap, and of the lists
    and dictionaries in both, that have changed since this object was made. A sampler with a ``state_dict`` or a
    ``set_epoch`` is asked for its position instead.
    """

    def __init__(self, loader: Any):
        parts = {name: getattr(loader, name, None) for name in PARTS}
        if not isinstance(parts["dataset"], IterableDataset):
            del parts["dataset"]
        if not isinstance(loader, DataLoader):
            parts["loader"] = loader
        self._parts = parts
        self._elsewhere = {id(one) for one in generators(loader)}  # saved with the random states of the pass
        if "dataset" not in parts:
            self._elsewhere.add(id(getattr(loader, "dataset", None)))  # samples, which samplers refer to
        self._first = {name: {path: value for path, value, _ in places} for name, places in self._places()}

    def state_dict(self) -> dict[str, Any]:
        """Positions by the name of the part and the path in it."""
        return {name: changed for name, places in self._places() if (changed := self._changed(name, places))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``; a sampler whose epoch the user has set already keeps it.

        Raises: RecordError if a place now has a value of another kind, for the order would be another one. An object
        without a value here is passed over: samplers make such objects from their other positions.
        """
        for name, places in self._places():
            positions = state.get(name, {})
            for path, value, put in list(places):
                if path not in positions:
                    continue
                if not _is_like(positions[path], value):
                    raise RecordError(
                        "the loader has no place for a position of the interrupted training run",
                        value=f"{name}.{path}",
                        allowed="an attribute that has a value of the same kind when the loader is made",
                        hint="set it in __init__, or give its object state_dict and load_state_dict",
                    )
                put(positions[path])

    def _places(self) -> Iterator[tuple[str, Iterator[Place]]]:
        seen = set(self._elsewhere)
        for name, part in self._parts.items():
            yield name, _within(part, "", seen)

    def _changed(self, name: str, places: Iterable[Place]) -> dict[str, Any]:
        first = self._first[name]
        changed = {path: value for path, value, _ in places if _is_told(path) or value != first.get(path)}
        return {path: value for path, value in changed.items() if value is not None}


def _within(part: Any, path: str, seen: set[int]) -> Iterator[Place]:
    """The places in an object that may decide an order."""
    if id(part) in seen:
        return
    seen.add(id(part))
    if hasattr(part, "set_epoch") and isinstance(getattr(part, "epoch", None), int):
        yield f"{path}epoch()", part.epoch, partial(_set_epoch, part)
        return
    if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
        yield f"{path}state_dict()", dict(part.state_dict()), part.load_state_dict
        return
    for key, one in _items(part):
        value = _value(one) if id(one) not in seen else None
        if value is not None or one is None:
            yield f"{path}{key}", value, partial(_put, part, key, one)
        elif isinstance(one, HOLDERS) or (hasattr(one, "__iter__") and not hasattr(one, "__getitem__")):
            yield from _within(one, f"{path}{key}.", seen)


def _is_like(saved: Any, value: Any) -> bool:
    if value is None:
        return type(saved) in (bool, int, float, str)  # a list may have been an array, or the state of a generator
    return type(saved) is type(value) or {type(saved), type(value)} == {int, float}


def _is_told(path: str) -> bool:
    return path.endswith("()")


def _set_epoch(part: Any, epoch: int) -> None:
    if part.epoch == 0:
        part.set_epoch(epoch)


def _items(part: Any) -> list[tuple[Any, Any]]:
    if isinstance(part, (list, tuple, dict)):
        pairs = part.items() if isinstance(part, dict) else enumerate(part)
        return list(pairs) if len(part) <= MOST else []
    if isinstance(part, FunctionType):  # only the generators it refers to: they alone can be set from outside
        cells = zip(part.__code__.co_freevars, part.__closure__ or (), strict=True)
        filled = [(name, cell.cell_contents) for name, cell in cells if cell != CellType()]
        return [(name, one) for name, one in filled if state_of(one) is not None]
    slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(part, name)]
    return [*getattr(part, "__dict__", {}).items(), *((name, getattr(part, name)) for name in slots)]


def _value(one: Any) -> Any:
    """A plain value, a list of plain values, an array or the state of a generator, as JSON; None for anything else."""
    if isinstance(one, (Tensor, np.ndarray, np.generic)):
        is_plain = not one.is_complex() if isinstance(one, Tensor) else one.dtype.kind in "biuf"
        return one.tolist() if is_plain and math.prod(one.shape) <= MOST else None
    if type(one) in (list, tuple):
        return list(one) if len(one) <= MOST and all(type(each) in (bool, int, float, str) for each in one) else None
    return one if type(one) in (bool, int, float, str) else state_of(one)


def _put(part: Any, key: Any, one: Any, value: Any) -> None:
    """Set the place of ``one`` in a part of the loader to a ``_value``."""
    if isinstance(one, Tensor):
        value = torch.tensor(value, dtype=one.dtype, device=one.device)
        if value.shape == one.shape:  # other objects may refer to it
            with torch.no_grad():
                one.copy_(value)
            return None
    elif isinstance(one, (np.ndarray, np.generic)):
        value = np.array(value, dtype=one.dtype)[()]
    elif type(one) is tuple:
        value = tuple(value)
    elif type(one) not in (bool, int, float, str, list, type(None)):
        return set_state(one, value)
    if isinstance(part, (dict, list)):
        part[key] = value
    elif not isinstance(part, tuple):
        setattr(part, key, value)
    return None
