"""A batch as the user's loop sees it, and the splitting of batches into micro-batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from wattune.errors import InputError


@dataclass(eq=False, slots=True)
class Batch:
    """Input of one forward pass.

    ``data`` has the structure of the user's loader, with the samples of this micro-batch, on the model's device;
    ``samples`` is their number, ``last`` is True if the optimizer steps after it, and ``share`` is its share of the
    samples of that step. ``is_check``: the pass only compares gradients, see ``wattune.loop.division``; nothing is
    learned from it.
    """

    data: Any
    samples: int
    _: KW_ONLY
    last: bool
    share: float
    is_check: bool = False

    @property
    def x(self) -> Any:
        """The first entry of a pair. Raises: InputError if the loader does not yield pairs."""
        return self._pair()[0]

    @property
    def y(self) -> Any:
        """The second entry of a pair. Raises: InputError if the loader does not yield pairs."""
        return self._pair()[1]

    def _pair(self) -> Sequence[Any]:
        if isinstance(self.data, (list, tuple)) and len(self.data) == 2:
            return self.data
        kind = type(self.data).__name__
        raise InputError("the loader's batches are not (x, y) pairs", value=kind, hint="use batch.data")


def samples_of(data: Any) -> int:
    """Number of samples in a batch of any structure: the length of its first tensor, or its own length.

    Raises: InputError if it has neither.
    """
    samples = _length(data)
    if samples is None and isinstance(data, Sequence):
        samples = len(data)
    if not samples:
        raise InputError("cannot find the number of samples in a batch of type", value=type(data).__name__)
    return samples


def can_split(data: Any, samples: int) -> bool:
    """Check that a batch of ``samples`` samples can be split: a part of it must have one entry per sample.

    A tensor with another length (time steps, or the values of all samples one after another) mixes the samples, and
    cannot be split.
    """
    return not _has_other_lengths(data, samples) and (_is_structure(data, samples) or _is_list(data, samples))


def split(data: Any, samples: int, sizes: Sequence[int]) -> list[Any]:
    """A batch split into parts of these sizes.

    Tensors and lists with one entry per sample are split; everything else goes to every part.
    """
    if len(sizes) == 1:
        return [data]
    ends = itertools.accumulate(sizes)
    return [_cut(data, samples, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def _cut(data: Any, samples: int, part: slice) -> Any:
    is_structure = _is_structure(data, samples)
    if isinstance(data, Tensor) or (_is_list(data, samples) and not is_structure):
        return data[part] if not isinstance(data, Tensor) or is_structure else data
    return _mapped(data, lambda entry: _cut(entry, samples, part))


def even(samples: int, largest: int, least: int = 1) -> list[int]:
    """Sizes of the fewest possible parts of at most ``largest`` samples, as equal as possible.

    No part has fewer than ``least`` samples, even if others are then larger than ``largest``.
    """
    count = min(-(-samples // largest), max(1, samples // least))
    size, more = divmod(samples, count)
    return [size + 1] * more + [size] * (count - more)


def moved(data: Any, device: torch.device) -> Any:
    """A batch with its tensors on the device; pinned ones are copied asynchronously."""
    if isinstance(data, Tensor):
        return data if data.device == device else data.to(device, non_blocking=True)
    if isinstance(data, (Mapping, list, tuple)):
        return _mapped(data, lambda entry: moved(entry, device))
    return data.to(device) if hasattr(data, "to") else data


def shapes(data: Any) -> tuple[Any, ...]:
    """Shapes and types of a batch's tensors, which determine the operations that a model runs."""
    return (*data.shape, data.dtype) if isinstance(data, Tensor) else tuple(map(shapes, _entries(data)))


def _length(data: Any) -> int | None:
    if isinstance(data, Tensor):
        return int(data.shape[0]) if data.dim() else None
    return next((length for entry in _entries(data) if (length := _length(entry)) is not None), None)


def _is_structure(data: Any, samples: int) -> bool:
    """True if it contains a tensor or a list with one entry per sample."""
    if isinstance(data, Tensor):
        return data.dim() > 0 and data.shape[0] == samples
    if isinstance(data, Mapping):
        return any(can_split(value, samples) for value in data.values())
    if not isinstance(data, (list, tuple)):
        return False
    return any(_is_structure(v, samples) or (isinstance(v, (list, tuple)) and len(v) == samples) for v in data)


def _has_other_lengths(data: Any, samples: int) -> bool:
    if isinstance(data, Tensor):
        return data.dim() > 0 and data.shape[0] != samples
    return not _is_list(data, samples) and any(_has_other_lengths(entry, samples) for entry in _entries(data))


def _is_list(data: Any, samples: int) -> bool:
    return isinstance(data, (list, tuple)) and len(data) == samples and not hasattr(data, "_fields")


def _entries(data: Any) -> Iterable[Any]:
    """The entries of a structure; none of anything else."""
    return data.values() if isinstance(data, Mapping) else data if isinstance(data, (list, tuple)) else ()


def _mapped(data: Any, function: Callable[[Any], Any]) -> Any:
    """A structure of the same kind with a function of each entry; anything else as it is."""
    if isinstance(data, Mapping):
        entries = {key: function(value) for key, value in data.items()}
        try:
            return entries if type(data) is dict else type(data)(entries)  # type: ignore[call-arg]
        except TypeError:  # a custom mapping with another constructor
            return entries
    if not isinstance(data, (list, tuple)):
        return data
    values = [function(value) for value in data]
    if hasattr(data, "_fields"):
        return type(data)(*values)
    return values if isinstance(data, list) else tuple(values)
