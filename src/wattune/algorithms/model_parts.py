"""A model as a sequence of parts, each taking the output of the one before: the units of a pipeline's modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import nn

from wattune.errors import InputError, WorkloadError


@runtime_checkable
class HasParts(Protocol):
    """A model that defines its own sequence of parts."""

    def parts(self) -> Sequence[nn.Module]:
        """Modules with the model's own layers; run one after the other they are its forward pass."""


def parts(model: nn.Module) -> list[nn.Module]:
    """The parts of a model: those that it defines itself, or the layers of an ``nn.Sequential``, flattened.

    Raises: WorkloadError if the model is not a sequence, or if two of its parts share a parameter: every part of a
    pipeline has its own parameters.
    """
    sequence = _flatten(model)
    if len(sequence) == 1 and sequence[0] is model:
        raise WorkloadError(
            "a model that cannot be cut into parts",
            value=type(model).__name__,
            allowed="an nn.Sequential, or a model with a method parts() that lists modules to be run one after another",
        )
    owner: dict[int, int] = {}
    for place, part in enumerate(sequence):
        for name, parameter in part.named_parameters():
            if owner.setdefault(id(parameter), place) != place:
                raise WorkloadError("a parameter shared by two parts of the model", value=f"{name} of part {place + 1}")
    return sequence


def even_ends(count: int, groups: int) -> list[int]:
    """Ends of ``groups`` groups of ``count`` parts: equal numbers of parts, and one more in the first ones."""
    each, more = divmod(count, groups)
    return [each * (i + 1) + min(more, i + 1) for i in range(groups)]


def freeze_all_but(model: nn.Module, last: int) -> None:
    """Freeze what is before the last ``last`` parts that have trained parameters: none of its activations is stored.

    Raises: WorkloadError if the model has no parts, InputError if fewer have trained parameters.
    """
    layers = parts(model)
    places = [place for place, part in enumerate(layers) if any(p.requires_grad for p in part.parameters())]
    if last > len(places):
        raise InputError(
            "last of the algorithm backprop",
            value=last,
            allowed=f"1 to {len(places)}, the number of the model's parts with trained parameters",
        )
    for part in layers[: places[-last]]:
        part.requires_grad_(False)


def _flatten(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, HasParts):
        return [inner for part in model.parts() for inner in _flatten(part)]
    if isinstance(model, nn.Sequential) and len(model):
        return [inner for part in model for inner in _flatten(part)]
    return [model]
