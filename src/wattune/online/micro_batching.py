"""A batch as the user's loop sees it, and batches cut into micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wattune.errors import InputError


class Batch:
    """What one forward pass takes.

    ``data`` is what the user's loader yields, cut to this micro-batch and on the model's device; ``samples`` how many
    there are, ``last`` whether the optimizer steps with it, ``share`` its part of the samples of that step.
    """

    __slots__ = ("data", "last", "samples", "share")

    def __init__(self, data: Any, samples: int, *, last: bool, share: float):
        self.data = data
        self.samples = samples
        self.last = last
        self.share = share

    @property
    def x(self) -> Any:
        """The first of a pair. Raises: InputError where the loader yields no pairs."""
        return self._pair()[0]

    @property
    def y(self) -> Any:
        """The second of a pair. Raises: InputError where the loader yields no pairs."""
        return self._pair()[1]

    def _pair(self) -> Sequence[Any]:
        if isinstance(self.data, (list, tuple)) and len(self.data) == 2:
            return self.data
        kind = type(self.data).__name__
        raise InputError("the loader's batches are no (x, y) pairs but", value=kind, hint="use batch.data")


def samples_of(data: Any) -> int:
    """How many samples a batch of any make holds: the length of its first tensor, or of itself.

    Raises: InputError where nothing in it tells.
    """
    found = _length(data)
    if found is None and isinstance(data, Sequence):
        found = len(data)
    if not found:
        raise InputError("cannot see how many samples are in a batch of", value=type(data).__name__)
    return found


def can_split(data: Any, samples: int) -> bool:
    """Whether a batch of so many samples can be cut: a part of it must have an entry for each sample.

    A tensor of more than one axis whose first one is another (time, for one) is content of all samples at once, and
    nobody knows how to cut that.
    """
    return not _has_other_axes(data, samples) and (_is_structure(data, samples) or _is_list(data, samples))


def split(data: Any, samples: int, sizes: Sequence[int]) -> list[Any]:
    """A batch cut into parts of these sizes.

    Tensors and lists with an entry for each sample are cut, whatever else there is goes to every part.
    """
    if len(sizes) == 1:
        return [data]
    if isinstance(data, Tensor):
        return list(torch.split(data, list(sizes))) if _is_structure(data, samples) else [data] * len(sizes)
    if isinstance(data, Mapping):
        columns = {key: split(value, samples, sizes) for key, value in data.items()}
        return [_like(data, {key: column[i] for key, column in columns.items()}) for i in range(len(sizes))]
    if isinstance(data, (list, tuple)):
        if _is_list(data, samples) and not _is_structure(data, samples):
            begins = [sum(sizes[:i]) for i in range(len(sizes))]
            return [data[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
        entries = [split(value, samples, sizes) for value in data]
        return [_rebuilt(data, [entry[i] for entry in entries]) for i in range(len(sizes))]
    return [data] * len(sizes)


def even(samples: int, largest: int) -> list[int]:
    """Sizes of as few parts as there can be of at most ``largest``, as equal as they can be.

    Equal parts, so that the rest of a pass never ends in a part of one sample, which BatchNorm refuses.
    """
    count = -(-samples // largest)
    size, more = divmod(samples, count)
    return [size + 1] * more + [size] * (count - more)


def moved(data: Any, device: torch.device) -> Any:
    """A batch with its tensors on the device, copied while the CPU goes on where they are pinned."""
    if isinstance(data, Tensor):
        return data if data.device == device else data.to(device, non_blocking=True)
    if isinstance(data, Mapping):
        return _like(data, {key: moved(value, device) for key, value in data.items()})
    if isinstance(data, (list, tuple)):
        return _rebuilt(data, [moved(value, device) for value in data])
    return data.to(device) if hasattr(data, "to") else data


def shapes(data: Any) -> tuple[Any, ...]:
    """What of a batch decides which operations a model runs: shapes and types of its tensors."""
    if isinstance(data, Tensor):
        return (*data.shape, data.dtype)
    if isinstance(data, Mapping):
        return tuple(shapes(value) for value in data.values())
    if isinstance(data, (list, tuple)):
        return tuple(shapes(value) for value in data)
    return ()


def _length(data: Any) -> int | None:
    if isinstance(data, Tensor):
        return int(data.shape[0]) if data.dim() else None
    entries = data.values() if isinstance(data, Mapping) else data if isinstance(data, (list, tuple)) else ()
    return next((found for entry in entries if (found := _length(entry)) is not None), None)


def _is_structure(data: Any, samples: int) -> bool:
    """Whether there is a tensor in it with an entry for each sample."""
    if isinstance(data, Tensor):
        return data.dim() > 0 and data.shape[0] == samples
    if isinstance(data, Mapping):
        return any(can_split(value, samples) for value in data.values())
    if not isinstance(data, (list, tuple)):
        return False
    return any(_is_structure(v, samples) or (isinstance(v, (list, tuple)) and len(v) == samples) for v in data)


def _has_other_axes(data: Any, samples: int) -> bool:
    if isinstance(data, Tensor):
        return data.dim() > 1 and data.shape[0] != samples
    if _is_list(data, samples):
        return False
    parts = data.values() if isinstance(data, Mapping) else data if isinstance(data, (list, tuple)) else ()
    return any(_has_other_axes(part, samples) for part in parts)


def _is_list(data: Any, samples: int) -> bool:
    return isinstance(data, (list, tuple)) and len(data) == samples and not hasattr(data, "_fields")


def _like(data: Mapping[Any, Any], entries: dict[Any, Any]) -> Any:
    if type(data) is dict:
        return entries
    try:
        return type(data)(entries)  # type: ignore[call-arg]
    except TypeError:  # a mapping of somebody's own
        return entries


def _rebuilt(data: Any, entries: list[Any]) -> Any:
    if hasattr(data, "_fields"):
        return type(data)(*entries)
    return entries if isinstance(data, list) else tuple(entries)
